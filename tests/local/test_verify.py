"""``rlforge verify`` finds what was changed in a finished run, and nothing in one that was not."""

import dataclasses
import hashlib
import json
import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file
from tests.harness.in_process import rlforge_here

from rlforge.buffer.batches import read_batch, write_batch
from rlforge.local.verify import verify
from rlforge.system.checkpoint import MANIFEST
from rlforge.tracking.digests import FILE, DigestChain
from rlforge.tracking.files import read_jsonl

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def copy(golden_run):
    """A run to change, in another place than where it was made."""
    shutil.copytree(golden_run, "copy")
    return Path("copy").absolute()


def as_fast(run_dir):
    """Without what only strict runs note, and with what they would be compared by."""
    config = run_dir / "config.yaml"
    config.write_text(config.read_text().replace("determinism: strict", "determinism: fast"))


def problems(run_dir, *, whole=True):
    found: dict[str, list[str]] = {}
    for name, problem in verify(run_dir, whole=whole).problems:
        found.setdefault(name, []).append(problem)
    return found


def change_games(run_dir, change, seed=0):
    """Change a random row of a random file of games."""
    rng = random.Random(seed)
    file = rng.choice(sorted((run_dir / "games").glob("*.parquet")))
    table = pq.read_table(file)
    rows = table.to_pylist()
    change(rng.choice([row for row in rows if row["purpose"] == "train"]))
    pq.write_table(table.from_pylist(rows, table.schema), file)


def change_batch(run_dir, change):
    file = run_dir / "batches" / "batch-000003.parquet"
    batch = read_batch(file)
    first, *others = batch.steps
    write_batch(file, dataclasses.replace(batch, steps=(change(first), *others)))


def change_weight(run_dir, *, manifest):
    """One number of an adapter by its last bits; manifest: its digest is changed to fit."""
    folder = run_dir / "checkpoints" / "step-2"
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


def test_a_fast_run_is_compared_up_to_rounding(copy):
    as_fast(copy)
    assert not problems(copy)


def test_one_reward_of_a_batch(copy):
    change_batch(copy, lambda step: dataclasses.replace(step, reward=step.reward + 0.5))
    found = problems(copy)
    assert "batch-000003.parquet is not the batch that was drawn" in found["batches"][0]
    assert found["updates"][0].startswith("update 3: it gives weights that are not what was noted")


def test_one_token_of_a_batch(copy):
    def change(step):
        return dataclasses.replace(step, token_ids=(step.token_ids[0] + 1, *step.token_ids[1:]))

    change_batch(copy, change)
    found = problems(copy)
    assert "batches" in found
    assert "token_ids is not that of the game" in found["rewards"][0]


@pytest.mark.parametrize("fast", [False, True])
def test_the_reward_of_a_game(copy, fast):
    def change(row):
        row["rewards"] = [(player, -reward + 0.5) for player, reward in row["rewards"]]

    change_games(copy, change)
    if fast:
        as_fast(copy)
    found = problems(copy)["games"]
    assert any("rewards is" in problem and "recorded" in problem for problem in found)
    assert any("are not those that were played" in problem for problem in found) is not fast


def test_the_text_of_an_answer(copy):
    def change(row):
        row["turns"][0]["completion"]["text"] = "[nothing]"

    change_games(copy, change)
    as_fast(copy)
    assert any("turn 1: action is" in problem for problem in problems(copy)["games"])


@pytest.mark.parametrize("fast", [False, True])
def test_a_log_prob_of_an_answer(copy, fast):
    def change(row):
        row["turns"][0]["completion"]["logprobs"][0] += 1e-3

    change_games(copy, change)
    if fast:
        as_fast(copy)
    assert "the log-probs of the answer differ by 0.001" in problems(copy)["log-probs"][0]


def test_answers_of_a_version_that_was_made_again_after_a_resume_are_left_out(copy):
    """The weights that gave them are gone; the games stay."""
    as_fast(copy)
    lines = read_jsonl(copy / FILE)
    (copy / FILE).unlink()
    chain = DigestChain(copy)
    for line in lines:
        facts = {name: fact for name, fact in line.items() if name not in ("step", "digest")}
        again = {"part": 1} if line["step"] >= 4 else {}
        chain.append(line["step"], {**facts, **again})
    for file in (copy / "games").glob("*.parquet"):
        table = pq.read_table(file)
        rows = table.to_pylist()
        for row in rows:
            for turn in row["turns"]:
                if row["purpose"] == "eval" and turn["completion"]["policy_uid"] == "step-4":
                    turn["completion"]["logprobs"][0] += 1.0
        pq.write_table(table.from_pylist(rows, table.schema), file)
    found = verify(copy, whole=True)
    assert found.problems == []
    [notes] = [check.notes for check in found.checks if check.name == "log-probs"]
    assert "answers are of versions that the run, resumed, made again" in notes[-1]


def test_one_weight(copy):
    change_weight(copy, manifest=False)
    (found,) = problems(copy, whole=False)["checkpoints"]
    assert "step-2: adapter_model.safetensors is longer than written" in found


def test_one_weight_with_a_manifest_to_fit(copy):
    change_weight(copy, manifest=True)
    found = problems(copy)
    assert found["updates"][0] == (
        "update 2: it gives another adapter_model.safetensors than step-2 has"
    )
    assert "under step-2 the log-probs of the answer differ" in found["log-probs"][0]


def test_a_line_of_digests(copy, capsys):
    lines = (copy / FILE).read_text().splitlines()
    row = json.loads(lines[2])
    row["samples"] += 1
    (copy / FILE).write_text("\n".join([*lines[:2], json.dumps(row), *lines[3:]]) + "\n")
    assert rlforge_here("verify", str(copy)) == 1
    error = capsys.readouterr().err
    assert "rlforge: chain: digests.jsonl: the line of update 2 does not follow" in error
    (copy / FILE).write_text("\n".join([*lines[:2], *lines[3:]]) + "\n")
    assert problems(copy)["chain"] == [
        "digests.jsonl: the line of update 3 does not follow from the one before",
        "digests.jsonl: there is no line of update 2",
    ]


def test_what_is_missing_is_named_and_the_rest_is_verified(copy):
    (copy / "batches" / "batch-000002.parquet").unlink()
    found = verify(copy, whole=True)
    assert found.problems == [("batches", "batch-000002.parquet is missing")]
    assert {check.name: check.checked for check in found.checks}["updates"] == 4
    games = sorted((copy / "games").glob("*.parquet"))
    games[1].unlink()
    found = verify(copy, whole=True)
    assert {name for name, _ in found.problems} == {"batches", "games"}
    assert any("of a batch is missing" in problem for _, problem in found.problems)


def test_what_computes_here_and_did_not_there_is_said_first(copy, capsys):
    lines = (copy / FILE).read_text().splitlines()
    first = json.loads(lines[0])
    first["computed"] |= {"torch": "1.0", "processor": "abacus"}
    (copy / FILE).write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    rlforge_here("verify", str(copy))
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("computed elsewhere: torch: 1.0 then, ")
    assert shown[1].startswith("computed elsewhere: processor: abacus then, ")
