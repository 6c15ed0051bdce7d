"""``rlforge verify`` finds what was changed in a finished run, and nothing in one that was not."""

import dataclasses
import hashlib
import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file
from tests.harness.configs import edit_config
from tests.harness.in_process import rlforge_here

from rlforge.buffer.batches import read_batch, write_batch
from rlforge.lab.verify.check import verify
from rlforge.record.digests import FILE, DigestChain
from rlforge.record.files import read_jsonl
from rlforge.system.checkpoint import MANIFEST

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def copy(golden_run):
    """A run to change, in another place than where it was made."""
    shutil.copytree(golden_run, "copy")
    return Path("copy").absolute()


@pytest.fixture
def without_games(copy):
    """A copy of which only digests and versions are left to check."""
    for name in ("games", "batches"):
        shutil.rmtree(copy / name)
    return copy


def as_fast(run_dir):
    """Without what only strict runs note, and with what they would be compared by."""
    edit_config(run_dir, "determinism: strict", "determinism: fast")


def problems(run_dir, *, whole=True):
    found: dict[str, list[str]] = {}
    for name, problem in verify(run_dir, whole=whole).problems:
        found.setdefault(name, []).append(problem)
    return found


def change_games(run_dir, change):
    """Apply ``change`` to the rows of each file of games."""
    for file in sorted((run_dir / "games").glob("*.parquet")):
        table = pq.read_table(file)
        rows = table.to_pylist()
        change(rows)
        pq.write_table(table.from_pylist(rows, table.schema), file)


def change_batch(run_dir, number, change):
    file = run_dir / "batches" / f"batch-{number:06d}.parquet"
    batch = read_batch(file)
    first, *others = batch.samples
    write_batch(file, dataclasses.replace(batch, samples=(change(first), *others)))


def change_weight(folder, *, manifest):
    """One number of an adapter by its last bits; manifest: its digest is changed to fit."""
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(name for name in sorted(tensors) if "lora_B" in name)
    tensors[name].view(-1)[3] *= 1 + 1e-6
    save_file(tensors, file, metadata={"format": "pt"})
    if manifest:
        data = json.loads((folder / MANIFEST).read_text())
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        data["files"][file.name] = {"size": file.stat().st_size, "sha256": digest}
        (folder / MANIFEST).write_text(json.dumps(data))


def test_a_run_that_was_not_changed_is_what_it_says(copy, capsys):
    assert rlforge_here("verify", "copy") == 0
    shown = capsys.readouterr().out
    assert "verified a part (--all checks everything)" in shown
    assert rlforge_here("verify", "copy", "--all", "--json", "found.json") == 0
    shown = capsys.readouterr().out
    assert "largest difference 0, allowed 0" in shown
    assert "verified everything" in shown
    found = json.loads(Path("found.json").read_text())
    assert [check["name"] for check in found["checks"]] == [
        *("chain", "checkpoints", "batches", "games", "rewards", "log-probs", "updates")
    ]
    assert all(check["checked"] == check["total"] > 0 for check in found["checks"])


def test_each_change_is_named_with_its_place(copy):
    """Changes that do not touch each other, of a strict run, and as of a fast one."""
    ids = []

    def change(rows):
        trained = [row for row in rows if row["purpose"] == "train"]
        if ids or not trained:  # the first file of training games alone
            return
        rewarded, said, drawn = trained[:3]
        rewarded["rewards"] = [(player, -one + 0.5) for player, one in rewarded["rewards"]]
        said["turns"][0]["completion"]["text"] = "[nothing]"
        drawn["turns"][0]["completion"]["logprobs"][0] += 1e-3
        ids.extend(row["game_id"] for row in (rewarded, said, drawn))

    def next_token(step):
        return dataclasses.replace(step, token_ids=(step.token_ids[0] + 1, *step.token_ids[1:]))

    change_games(copy, change)
    change_batch(copy, 2, next_token)
    change_batch(copy, 3, lambda step: dataclasses.replace(step, reward=step.reward + 0.5))
    change_weight(copy / "checkpoints" / "step-4", manifest=True)
    rewarded, said, drawn = ids

    found = problems(copy)

    [noted, *games] = found["games"]
    assert noted == "the games recorded by update 1 are not those that were played"
    differs = "log-probs of the answer differ by"
    assert any(f"under step-4 the {differs}" in problem for problem in found["log-probs"][1:])
    as_fast(copy)
    rounded = problems(copy)
    assert rounded["games"] == games
    assert len(rounded["log-probs"]) == 1  # the changed weight is within what rounding explains
    for each in (found, rounded):
        assert each["batches"] == [
            f"batch-00000{number}.parquet is not the batch that was drawn: its digest differs"
            for number in (2, 3)
        ]
        of_reward, of_text = each["games"][-2:]
        assert re.fullmatch(f"game {rewarded}: rewards is .* in play, .* recorded", of_reward)
        assert of_text.startswith(f"game {said}: turn 1: action is")
        of_game, of_batch = each["rewards"]
        assert of_game.endswith(f"in game {drawn}: logprobs is not that of the game")
        assert of_batch.startswith("batch 2: ")
        assert of_batch.endswith("token_ids is not that of the game")
        assert each["log-probs"][0].startswith(
            f"game {drawn}, turn 1: under step-0 the {differs} 0.001 "
        )
        assert each["updates"] == [
            "update 2: it gives weights that are not what was noted",
            "update 3: it gives weights that are not what was noted",
            "update 4: it gives another adapter_model.safetensors than step-4 has",
        ]


def test_answers_of_a_version_that_was_made_again_after_a_resume_are_left_out(copy):
    """The weights that gave them are gone; the games stay. The rest agrees up to rounding."""
    as_fast(copy)
    lines = read_jsonl(copy / FILE)
    (copy / FILE).unlink()
    chain = DigestChain(copy)
    for line in lines:
        facts = {name: fact for name, fact in line.items() if name not in ("step", "digest")}
        again = {"part": 1} if line["step"] >= 4 else {}
        chain.append(line["step"], {**facts, **again})

    def change(rows):
        for row in rows:
            for turn in row["turns"]:
                if row["purpose"] == "eval" and turn["completion"]["policy_uid"] == "step-4":
                    turn["completion"]["logprobs"][0] += 1.0

    change_games(copy, change)
    found = verify(copy, whole=True)
    assert found.problems == []
    [notes] = [check.notes for check in found.checks if check.name == "log-probs"]
    assert "answers are of versions that the run, resumed, made again" in notes[-1]


def test_one_weight(without_games):
    change_weight(without_games / "checkpoints" / "step-2", manifest=False)
    (found,) = problems(without_games, whole=False)["checkpoints"]
    assert "step-2: adapter_model.safetensors is longer than written" in found


def test_a_line_of_digests(without_games, capsys):
    lines = (without_games / FILE).read_text().splitlines()
    row = json.loads(lines[2])
    row["samples"] += 1
    (without_games / FILE).write_text("\n".join([*lines[:2], json.dumps(row), *lines[3:]]) + "\n")
    assert rlforge_here("verify", str(without_games)) == 1
    error = capsys.readouterr().err
    assert "rlforge: chain: digests.jsonl: the line of update 2 does not follow" in error
    (without_games / FILE).write_text("\n".join([*lines[:2], *lines[3:]]) + "\n")
    assert problems(without_games)["chain"] == [
        "digests.jsonl: the line of update 3 does not follow from the one before",
        "digests.jsonl: there is no line of update 2",
    ]


def test_what_is_missing_is_named_and_the_rest_is_verified(copy):
    (copy / "batches" / "batch-000002.parquet").unlink()
    sorted((copy / "games").glob("*.parquet"))[1].unlink()
    found = verify(copy, whole=True)
    assert {name for name, _ in found.problems} == {"batches", "games"}
    assert ("batches", "batch-000002.parquet is missing") in found.problems
    assert {check.name: check.checked for check in found.checks}["updates"] == 4
    assert any("of a batch is missing" in problem for _, problem in found.problems)


def test_what_cannot_be_read_does_not_agree_beside_what_was_found_before(without_games):
    file = without_games / "checkpoints" / "step-2" / "manifest.json"
    file.write_bytes(file.read_bytes()[:50])
    found = problems(without_games)
    for check in ("checkpoints", "files"):
        assert "step-2/manifest.json is damaged" in found[check][0]


def test_what_computes_here_and_did_not_there_is_said_first(without_games, capsys):
    lines = (without_games / FILE).read_text().splitlines()
    first = json.loads(lines[0])
    first["computed"] |= {"torch": "1.0", "processor": "abacus"}
    (without_games / FILE).write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    rlforge_here("verify", str(without_games))
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("computed elsewhere: torch: 1.0 then, ")
    assert shown[1].startswith("computed elsewhere: processor: abacus then, ")
