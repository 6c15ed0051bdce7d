"""Runs with several policies, with the actors in the test's process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.harness.in_process import rlforge_here
from tests.harness.live_run import rows
from tests.run.conftest import Train

from rlforge.buffer.batches import read_batch
from rlforge.config.roots import read_run
from rlforge.config.schema import GamesConfig
from rlforge.local.policies import find_policy, seated_with
from rlforge.record.game_files import read_games
from rlforge.system.checkpoint import find_checkpoint, list_checkpoints, policy_in, read_manifest

LEAGUE = (
    "policies={main: {share: 2}, rival: {opponents: [main], reset: {every: 2}, "
    "learner: {learning_rate: 1e-3}, pool: {mode: random}}}"
)


@pytest.mark.slow
def test_a_league_trains_begins_anew_and_goes_on_after_a_resume(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("learner.total_updates=8", "learner.state_every=4", "buffer.max_staleness=0")
    settings += ("learner.batch_size=8", "env.train.0.error_allowance=1")
    done, _, said = train(LEAGUE, *settings)
    assert done == 0, said
    assert "rival begins anew as rival-8" not in said  # the last update is one
    more = rlforge_here("train", "--resume", "run", "--more", "6")
    said = capsys.readouterr().err
    assert more == 0, said
    assert "rival begins anew as rival-11, from its start" in said
    order = ["main", "rival", "main"] * 5
    saved = [path.name for path in list_checkpoints(Path("run/checkpoints"))]
    assert saved == [f"{order[number - 1]}-{number}" for number in range(1, 15)]
    parents = {
        path.name: read_manifest(path).meta["parent_uid"]
        for path in list_checkpoints(Path("run/checkpoints"))
    }
    assert parents["main-6"] == "main-4"
    assert parents["rival-8"] == "rival-5"
    assert parents["rival-11"] == "rival-0"
    metrics = {row["step"]: row for row in rows("metrics.jsonl")}
    assert sorted(metrics) == [*range(1, 11), 12, 13, 14]
    for number, row in metrics.items():
        prefix = "" if order[number - 1] == "main" else "policies/rival/"
        assert row[f"{prefix}logprob_gap_max"] <= 1e-2
        assert ("loss" in row) == (prefix == "")
        assert row[f"{prefix}lag_max"] <= 2  # updates of the others between two of its own
        batch = read_batch(Path(f"run/batches/batch-{number:06d}.parquet"))
        assert {policy_in(sample.policy_uid) for sample in batch.samples} == {order[number - 1]}
    for game in read_games(Path("run")):
        if game.spec.purpose == "train" and game.error is None:
            trained = {game.spec.seats[player].policy.name for player in game.spec.trained}
            assert trained == {game.spec.learner}
            assert (len(game.spec.trained) == 2) == (game.spec.learner == "main")
    assert {row["policy_uid"] for row in rows("evals.jsonl")} == {"main-0", "main-7", "main-13"}
    assert find_checkpoint(Path("run/checkpoints")).name == "main-13"
    entries = json.loads(Path("run/pool.json").read_text())["entries"]
    assert {"main-13", "rival-14"} <= {entry["uid"] for entry in entries if entry["active"]}


def test_two_policies_share_the_seats_of_a_game(train: Train) -> None:
    seats = (
        "policies={first: {seats: [0], opponents: [second]}, "
        "second: {seats: [1], opponents: [first], algorithm: {entropy_coef: 0.01}}}"
    )
    small = ("learner.total_updates=4", "learner.batch_size=8", "env.train.0.error_allowance=1")
    assert train(seats, *small).code == 0
    for game in read_games(Path("run")):
        names = [seat.policy.name for seat in game.spec.seats]
        if game.spec.purpose == "train":
            assert names == ["first", "second"]
            assert game.spec.trained == ((0,) if game.spec.learner == "first" else (1,))
        else:  # the evaluated seat is that of its policy
            assert names[game.spec.focus] == ("first", "second")[game.spec.focus]
    evals = rows("evals.jsonl")
    assert {row["policy_uid"] for row in evals} == {"first-0", "second-4"}
    assert {row["games"] for row in evals} == {4}
    evaluated = ("--checkpoint", "second-2", "--games", "2", "--opponent", "base")
    assert rlforge_here("eval", "run", *evaluated) == 0
    root = Path("run")
    second = find_policy(root, "second-2")[0]
    there = seated_with(root, second, read_run(root, GamesConfig), seats=2)
    assert [policy.uid for policy in there] == ["first-1", "second-2"]
