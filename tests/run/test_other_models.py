"""Whole runs against other models (``hf:``): recorded, repeated and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.factories import causal_folder
from tests.harness import live_run
from tests.harness.in_process import rlforge_here, use_actors_in_process
from tests.harness.live_run import strict_arguments

from rlforge.errors import RunError
from rlforge.lab.verify.check import verify
from rlforge.record.digests import digest_of
from rlforge.record.files import read_json, read_jsonl
from rlforge.record.game_files import read_games


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-2 with a tokenizer of bytes; the trained model is a Llama with another one."""
    return causal_folder(tmp_path_factory.mktemp("models") / "gpt2", "gpt2")


@pytest.fixture(scope="module")
def arguments(small_model: Path, other: Path) -> list[str]:
    """A strict run of two updates that meets the other model in training and in evaluations."""
    name = f"hf:{other}"
    return strict_arguments(
        small_model,
        *("pool=fixed", f"pool.fixed_opponents=[{name}]", f"eval.opponents=[{name}]"),
        *("pool.hf.max_tokens=12", "pool.hf.max_model_len=1024", "env.train.0.error_allowance=0"),
        *("learner.total_updates=2", "learner.batch_size=8", "collector.num_train_workers=6"),
        *("eval.games=2", "eval.final_games=2", "eval.every=9"),
    )


def ended(folder: Path, *arguments: str) -> int:
    """The exit code of a run in ``folder``, whose actors are objects of this process."""
    with pytest.MonkeyPatch.context() as patch:
        use_actors_in_process(patch.setattr)
        patch.chdir(folder)
        return rlforge_here(*arguments)


@pytest.fixture(scope="module")
def run(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first")
    assert ended(folder, *arguments) == 0
    return folder / "run"


def digests(run_dir: Path) -> dict[int, Any]:
    """Digests of weights, games and ratings after each update."""
    names, lines = ("policy", "games", "pool"), live_run.digests(run_dir)
    return {line["step"]: [line[name] for name in names] for line in lines if "policy" in line}


def test_its_answers_are_recorded_and_rated_and_not_learned_from(run: Path, other: Path) -> None:
    name = f"hf:{other}"
    met = 0
    for record in read_games(run):
        for seat in record.spec.seats:
            if seat.policy.uid != name:
                continue
            met += 1
            assert seat.policy.kind == "hf"
            assert not seat.trained
            own = [turn for turn in record.turns if turn.player_id == seat.player_id]
            assert {turn.completion.policy_uid for turn in own} <= {name}
            assert all(len(turn.completion.token_ids) <= 12 for turn in own)
            assert all(turn.completion.prompt_token_ids for turn in own)
    assert met > 5
    pool = read_json(run / "pool.json")
    [rated] = [entry for entry in pool["entries"] if entry["uid"] == name]
    assert rated["games"] > 5
    assert name in {row["opponent"] for row in read_jsonl(run / "evals.jsonl")}


@pytest.mark.slow
def test_a_strict_run_against_it_is_the_same_again_also_when_it_failed_meanwhile(
    run: Path, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def digest_or_fail(content: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == 3:  # pool and buffer after the first update, then that of the second
            raise RunError("the disk is full")
        return digest_of(content)

    monkeypatch.setattr("rlforge.run.collection.digest_of", digest_or_fail)
    assert ended(tmp_path, *arguments) == 1
    assert [*digests(tmp_path / "run")] == [1]
    assert ended(tmp_path, "train", "--resume", "run") == 0
    assert digests(tmp_path / "run") == digests(run)
    assert [*digests(run)] == [1, 2]


def test_its_answers_are_no_versions_of_the_run_to_compute_again(run: Path) -> None:
    verified = verify(run, whole=True)
    assert verified.problems == []
    [logprobs] = (check for check in verified.checks if check.name == "log-probs")
    assert logprobs.checked > 5
    [note] = logprobs.notes
    assert note.endswith("answers are of other models (hf:)")
