"""Whether runs with ``determinism=strict`` are the same again, the price, and what verify finds.

    python benchmarks/strict.py [--parts PART ...] [--seeds N] [--updates N] [--kills N] [--edits N]
        [--add]

- same: by seed three runs of ``simpletak_mirror``, strict ones with one and with two collectors and
  a fast one, one after the other; compared are adapters, optimizers and games, and the time from
  the first update to the last.
- verify: the default check of a run of 80 updates, beside its training time.
- kills: shorter strict runs in which a process, or all of them, is killed at a random moment; they
  are resumed until they end, and their digests compared with those of a run that was left alone.
- continuous: the same of continuous runs.
- edits: one reward, token, log-prob, observation or weight of a finished run is changed at random,
  with the manifest of a checkpoint to fit; ``verify --all`` should find each.
- kinds: short strict runs with other algorithms, pools, buffers and games, with one and with two
  collectors and engines; their digests are compared, and everything is verified.

What other parts measured before stays in the result, and with ``--add`` the kills that were
measured before, as part of the number that is asked for.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
from common import RESULTS, record
from safetensors.torch import load_file, save_file

from rlforge.buffer.batches import read_batch, write_batch
from rlforge.lab.verify.check import verify
from rlforge.record.digests import FILE, digest_of_games
from rlforge.record.files import read_jsonl
from rlforge.record.game_files import read_games
from rlforge.system.checkpoint import MANIFEST

RLFORGE = [sys.executable, "-m", "rlforge"]
SIMPLETAK = [
    "train",
    "+experiment=simpletak_mirror",
    "tracker.report=false",
    "tracker.progress=off",
]
SHORT = [
    *SIMPLETAK,
    "determinism=strict",
    *("learner.total_updates=5", "learner.state_every=1"),
    *("eval.every=2", "eval.games=8", "eval.final_games=8"),
]
CONTINUOUS = [
    *("continuous", "market=small", "continuous.agents=8", "continuous.compare_episodes=0"),
    *("window.clock=simulated", "window.minutes=30", "continuous.windows=6"),
    *("engine.batch_invariant=true", "hardware.threads=1", "deployment.holdout_games=0"),
    *("tracker.report=false", "tracker.progress=off"),
]
PARTS = ("same", "verify", "edits", "kills", "continuous", "kinds")
#: Kinds of processes; all but the driver by the name of their actor.
KINDS = ("driver", "all", "learner", "pool", "buffer", "tracker", "engine", "collector")
#: Those that continuous runs lack.
OF_GAMES = ("pool", "buffer", "collector")


#: Of ``kinds``: what each run is.
OTHERS = (
    ["+experiment=kuhn_nash", "learner.batch_size=64"],
    ["+experiment=tictactoe_mirror", "algorithm=ppo"],
    ["+experiment=tictactoe_mirror", "algorithm=a2c", "pool=exploration"],
    ["+experiment=kuhn_grpo", "learner.batch_size=64", "pool=match_quality"],
    ["+experiment=multi_game", "learner.batch_size=128", "pool=ts_dist"],
    ["+experiment=simpletak_lagged", "learner.batch_size=128", "buffer.max_staleness=0"],
    [
        *("+experiment=simpletak_mirror", "learner.batch_size=128", "pool=random"),
        "pool.fixed_opponents=[random_legal,win_block]",
    ],
    [
        *("+experiment=simpletak_mirror", "learner.batch_size=128"),
        *("learner.save_every=2", "buffer.max_staleness=2"),
    ],
    [
        *("+experiment=tictactoe_mirror", "env.context=conversation"),
        *("engine.max_model_len=512", "learner.batch_size=64"),
    ],
    [
        *("+experiment=simpletak_mirror", "learner.batch_size=64"),
        "policies={main: {}, rival: {opponents: [main]}}",
    ],
    [
        *("+experiment=tictactoe_mirror", "env=market", "model=tiny_market"),
        *("model.prompt_template=board", "learner.batch_size=64", "eval.opponents=null"),
    ],
    ["+experiment=leduc_nash", "learner.batch_size=128", "engine.top_p=0.9", "engine.top_k=20"],
    ["+experiment=kuhn3_nash", "learner.batch_size=96"],
    ["+experiment=tictactoe_mirror", "learner.num_learners=2"],
    [
        *("+experiment=simpletak_mirror", "learner.batch_size=128"),
        *("hardware.alternate=true", "pool=nash"),
    ],
)


def start(*arguments: str) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    return subprocess.Popen([*RLFORGE, *arguments], stdout=quiet, stderr=quiet)


def go_on(run_dir: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Resume the run in ``run_dir``, or start it where it has not begun."""
    if (run_dir / "config.yaml").exists():
        return start(arguments[0], "--resume", str(run_dir))
    return start(*arguments, f"run_dir={run_dir}")


def run(run_dir: Path, *arguments: str) -> Path:
    assert start(*arguments, f"run_dir={run_dir}").wait() == 0, run_dir
    return run_dir


def chain(run_dir: Path) -> list[str]:
    return [row["digest"] for row in read_jsonl(run_dir / FILE)]


def training_s(run_dir: Path) -> float:
    """From the first update to the last."""
    rows = read_jsonl(run_dir / "metrics.jsonl")
    return float(rows[-1]["time_s"] - rows[0]["time_s"])


# ---------------------------------------------------------------- the same again


def same(folder: Path, seeds: int, updates: int) -> dict[str, Any]:
    rows = []
    for seed in range(seeds):
        arguments = [*SIMPLETAK, f"seed={seed}", f"learner.total_updates={updates}"]
        arguments += ["eval.every=20", "learner.state_every=20"]
        strict = [*arguments, "determinism=strict"]
        fast = run(folder / f"fast-{seed}", *arguments)
        one = run(folder / f"one-{seed}", *strict)
        two = run(folder / f"two-{seed}", *strict, "collector.num_collectors=2")
        rows.append(
            {
                "seed": seed,
                "differing_files": differing(one, two),
                "strict_s": training_s(one),
                "two_collectors_s": training_s(two),
                "fast_s": training_s(fast),
                "ratio": training_s(one) / training_s(fast),
            }
        )
        print(rows[-1], flush=True)
        for each in (fast, one, two):
            shutil.rmtree(each)
    ratios = [row["ratio"] for row in rows]
    return {"runs": rows, "ratio": statistics.median(ratios), "worst_ratio": max(ratios)}


def differing(one: Path, two: Path) -> list[str]:
    """Names of what is not byte for byte the same: files of checkpoints, games, digests."""
    names = []
    for file in sorted((one / "checkpoints").rglob("*")):
        other = two / file.relative_to(one)
        # The state names the places of checkpoints, and manifests have its digest.
        compared = file.is_file() and file.name not in ("run.json", MANIFEST)
        if compared and not (other.is_file() and file.read_bytes() == other.read_bytes()):
            names.append(str(file.relative_to(one)))
    if digest_of_games(read_games(one)) != digest_of_games(read_games(two)):
        names.append("games")
    return names + (["digests"] if chain(one) != chain(two) else [])


def verified(folder: Path) -> dict[str, Any]:
    done = run(folder / "whole", *SIMPLETAK, "determinism=strict", "seed=0")
    began = time.monotonic()
    found = verify(done)
    part_s = time.monotonic() - began
    wall_s = json.loads((done / "summary.json").read_text())["wall_s"]
    shutil.rmtree(done)
    return {
        "problems": len(found.problems),
        "training_s": wall_s,
        "verify_s": part_s,
        "share": part_s / wall_s,
    }


# ---------------------------------------------------------------- kills


def kills(
    folder: Path, number: int, command: list[str], known: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """What was found after each point. known: what was found before."""
    wanted = chain(run(folder / f"{command[0]}-first", *command))
    began = time.monotonic()  # the model is made
    assert chain(run(folder / f"{command[0]}-alone", *command)) == wanted
    length_s = time.monotonic() - began
    rows = list(known.get("points", []))
    for seed in range(len(rows), number):
        rng, killed = random.Random(seed), folder / f"{command[0]}-{seed}"
        kinds = [each for each in KINDS if command[0] == "train" or each not in OF_GAMES]
        # Killed at the very end, or after it, nothing would be left to resume.
        kind, moment_s = rng.choice(kinds), rng.uniform(0.2, 0.85) * length_s
        process = start(*command, f"run_dir={killed}")
        time.sleep(moment_s)
        victims = processes(process, kind)
        for victim in victims:
            victim.kill()
        code, resumes = process.wait(), 0
        while code and resumes < 3:
            code, resumes = go_on(killed, *command).wait(), resumes + 1
        rows.append(
            {
                "kind": kind,
                "moment_s": round(moment_s, 1),
                "killed": len(victims),
                "resumes": resumes,
                "same": chain(killed) == wanted,
            }
        )
        print(seed, rows[-1], flush=True)
        shutil.rmtree(killed)
        hit = [row for row in rows if row["killed"]]
        yield {"points": rows, "killed": len(hit), "same": sum(row["same"] for row in hit)}


def processes(driver: subprocess.Popen[bytes], kind: str) -> list[psutil.Process]:
    """What is there of a kind; of ``all`` the driver and everything below it."""
    if driver.poll() is not None:
        return []
    above = psutil.Process(driver.pid)
    below = above.children(recursive=True)
    if kind == "driver":
        return [above]
    if kind == "all":
        return [*below, above]
    return [each for each in below if f"{kind.capitalize()}Actor" in title(each)]


def title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


# ---------------------------------------------------------------- kinds of runs


def kinds(folder: Path) -> dict[str, Any]:
    short = ["determinism=strict", "hardware.threads=1", "learner.total_updates=4"]
    short += ["learner.state_every=2", "eval.every=2", "eval.games=4", "eval.final_games=4"]
    quiet = SIMPLETAK[2:]
    two = ["collector.num_collectors=2", "engine.num_engines=2"]
    rows = []
    for number, overrides in enumerate(OTHERS):
        arguments = ["train", *overrides, *short, *quiet]
        one = run(folder / f"kind-{number}", *arguments)
        other = run(folder / f"kind-{number}-two", *arguments, *two)
        problems = verify(one, whole=True).problems
        rows.append(
            {
                "run": " ".join(overrides),
                "same": chain(one) == chain(other),
                "problems": len(problems),
            }
        )
        print(rows[-1], flush=True)
        for each in (one, other):
            shutil.rmtree(each)
    return {"runs": rows, "same": sum(row["same"] and not row["problems"] for row in rows)}


# ---------------------------------------------------------------- edits


def edits(folder: Path, number: int) -> dict[str, Any]:
    small = ("learner.total_updates=3", "learner.batch_size=64", "collector.num_train_workers=32")
    other = [each for each in SHORT if "total_updates" not in each]
    done = run(folder / "to_edit", *other, *small)
    assert not verify(done, whole=True).problems
    rows = []
    for seed in range(number):
        rng, copy = random.Random(seed), folder / "edited"
        shutil.copytree(done, copy)
        name = rng.choice(sorted(EDITS))
        EDITS[name](copy, rng)
        found = verify(copy, whole=True).problems
        rows.append({"edit": name, "found_by": sorted({check for check, _ in found})})
        print(seed, rows[-1], flush=True)
        shutil.rmtree(copy)
    return {
        "edits": number,
        "found": sum(bool(row["found_by"]) for row in rows),
        "by_kind": {
            name: [sum(bool(row["found_by"]) for row in of_kind), len(of_kind)]
            for name in sorted(EDITS)
            if (of_kind := [row for row in rows if row["edit"] == name])
        },
    }


def edit_batch(run_dir: Path, rng: random.Random, field: str) -> None:
    """One sample of one batch: its reward, or a log-prob or token of its answer."""
    file = rng.choice(sorted((run_dir / "batches").glob("*.parquet")))
    batch = read_batch(file)
    place = rng.randrange(len(batch.samples))
    value = getattr(batch.samples[place], field)
    new = value + 0.01 if field == "reward" else (value[0] + 1, *value[1:])
    samples = list(batch.samples)
    samples[place] = dataclasses.replace(samples[place], **{field: new})
    write_batch(file, dataclasses.replace(batch, samples=tuple(samples)))


def edit_game(run_dir: Path, rng: random.Random, change: Callable[[dict[str, Any]], None]) -> None:
    """One game of one file."""
    file = rng.choice(sorted((run_dir / "games").glob("*.parquet")))
    table = pq.read_table(file)
    rows = table.to_pylist()
    row = rng.choice([row for row in rows if row["turns"][0]["completion"]["token_ids"]])
    change(row)
    pq.write_table(table.from_pylist(rows, table.schema), file)


def other_reward(row: dict[str, Any]) -> None:
    row["rewards"] = [(player, reward + 0.01) for player, reward in row["rewards"]]


def other_token(row: dict[str, Any]) -> None:
    row["turns"][0]["completion"]["token_ids"][0] += 1


def other_logprob(row: dict[str, Any]) -> None:
    row["turns"][0]["completion"]["logprobs"][0] += 1e-6


def other_text(row: dict[str, Any]) -> None:
    row["turns"][0]["observation"] += " "


def edit_weight(run_dir: Path, rng: random.Random) -> None:
    """One weight of an adapter in its last bits, and the manifest to fit."""
    folder = rng.choice(sorted((run_dir / "checkpoints").glob("step-*")))
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    weights = tensors[rng.choice(sorted(name for name in tensors if "lora_B" in name))].view(-1)
    weights[rng.randrange(len(weights))] += 1e-6
    save_file(tensors, file, metadata={"format": "pt"})
    data = json.loads((folder / MANIFEST).read_text())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    data["files"][file.name] = {"size": file.stat().st_size, "sha256": digest}
    (folder / MANIFEST).write_text(json.dumps(data))


EDITS: dict[str, Callable[[Path, random.Random], None]] = {
    "reward of a step": lambda run_dir, rng: edit_batch(run_dir, rng, "reward"),
    "token of a step": lambda run_dir, rng: edit_batch(run_dir, rng, "token_ids"),
    "log-prob of a step": lambda run_dir, rng: edit_batch(run_dir, rng, "logprobs"),
    "reward of a game": lambda run_dir, rng: edit_game(run_dir, rng, other_reward),
    "token of a game": lambda run_dir, rng: edit_game(run_dir, rng, other_token),
    "log-prob of a game": lambda run_dir, rng: edit_game(run_dir, rng, other_logprob),
    "observation of a game": lambda run_dir, rng: edit_game(run_dir, rng, other_text),
    "weight of an adapter": edit_weight,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--continuous-kills", type=int, default=20)
    parser.add_argument("--edits", type=int, default=100)
    parser.add_argument("--add", action="store_true")
    asked = parser.parse_args()
    done = RESULTS / "strict.json"
    known = json.loads(done.read_text()) if done.exists() else {}
    results = {part: known[part] for part in PARTS if part in known}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = {part: results.get(part, {}) if asked.add else {} for part in PARTS}
        continuous = asked.continuous_kills, CONTINUOUS, before["continuous"]
        measure: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
            "same": lambda: [same(folder, asked.seeds, asked.updates)],
            "verify": lambda: [verified(folder)],
            "edits": lambda: [edits(folder, asked.edits)],
            "kills": lambda: kills(folder, asked.kills, SHORT, before["kills"]),
            "continuous": lambda: kills(folder, *continuous),
            "kinds": lambda: [kinds(folder)],
        }
        for part in asked.parts:
            for found in measure[part]():
                results[part] = found
                record("strict", results)


if __name__ == "__main__":
    main()
