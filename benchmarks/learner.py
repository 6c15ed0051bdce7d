"""Tokens a second of a learner update, against TRL, unstable-rl and plain transformers + PEFT.

    python benchmarks/learner.py [--repeats N] [--peers PYTHON] [--models MODEL …] [--turns N]

All learn from the same turns of SimpleTak (``benchmarks/turns.py``): the same token ids, advantages
and start of a LoRA adapter on the same layers, float32, one thread, one step of AdamW. A turn of
the clock is one whole update: forward, loss, backward, clipping, optimizer. Tokens are those of
prompts and answers, padding aside. Each contender is a process of its own, and they take turns;
CPU seconds are reported next to wall time, for machines that others use as well.
Before that, the gradients of all are compared with those of plain PEFT: the same to rounding.

rlforge runs with the options of its learner for the model (conf/learner). Plain PEFT and TRL take a
fixed number of turns at a time, chosen here as the fastest of a few on the first turns; unstable-rl
takes one, its default. The settings of each are described in ``benchmarks/contenders/``.

``--peers`` names the interpreter of an environment with ``benchmarks/requirements-peers.txt``.

    python benchmarks/learner.py --device cuda --shape qwen3-0.6b [--packed-tokens N] [--compile]

measures tokens a second and MFU of a random model of a published shape: ``benchmarks/shapes.py``;
with ``--compile``, of compiled layers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import record, shown, spread
from contenders import ABSENT
from contenders.work import Work
from shapes import SHAPES, measure_shape

HERE = Path(__file__).parent
NAMES = {
    "rlforge_learner": "rlforge",
    "plain_peft": "plain PEFT",
    "trl_grpo": "TRL GRPO",
    "unstable_rl": "unstable-rl",
}
PEERS = ("trl_grpo", "unstable_rl")
#: Model -> turns in its batch, and the fixed counts to choose from.
BATCHES = {"tiny": (768, (48, 192, 768)), "smollm2_135m": (16, (1, 2, 4))}
FLOORS = {"plain_peft": 1.5, "trl_grpo": 2.0, "unstable_rl": 2.0}
COSINE = 0.9999


class Contender:
    """A worker process that updates on request."""

    def __init__(self, name: str, python: str, work: Path, count: int) -> None:
        self.name = name
        self.log = work.with_name(f"{name}.log")
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [python, "-m", "contenders.worker", name, str(work), str(count)],
                cwd=HERE,
                env=os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.versions: dict[str, str] | None = self._answer()

    def seconds(self, order: str = "update") -> tuple[float, float]:
        """How long one update took: by the clock, and on the CPU."""
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        assert answer is not None
        return answer["seconds"], answer["cpu_seconds"]

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any] | None:
        """Its next answer; None when its packages are not installed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        if self._process.wait() == ABSENT:
            return None
        raise SystemExit(f"{NAMES[self.name]} failed:\n{self.log.read_text()[-2000:]}")


def fastest_count(name: str, python: str, work: Work, folder: Path) -> dict[int, float]:
    """Tokens a second of each fixed count on the first turns, after one update to warm up."""
    counts = BATCHES[work.name][1]
    part = work.part(max(counts))
    file = folder / "part.json"
    part.write(file)
    speeds = {}
    for count in counts:
        contender = Contender(name, python, file, count)
        if contender.versions is None:
            return {}
        contender.seconds()
        speeds[count] = part.tokens / contender.seconds()[0]
        contender.close()
    return speeds


def compare(work: Work, peers: str, repeats: int, folder: Path) -> dict[str, Any]:
    """Every contender's spread of tokens a second, counts tried, versions and gradient cosine."""
    file = folder / "work.json"
    work.write(file)
    contenders, rows = {}, {}
    for name in NAMES:
        python = peers if name in PEERS else sys.executable
        fixed = name in ("plain_peft", "trl_grpo")
        tried = fastest_count(name, python, work, folder) if fixed else {}
        contender = Contender(name, python, file, max(tried, key=lambda n: tried[n], default=1))
        if contender.versions is not None:
            contenders[name] = contender
            rows[name] = {"tokens_per_s_by_turns_at_a_time": tried, "versions": contender.versions}
    frameworks = {
        (row["versions"]["torch"], row["versions"]["transformers"]) for row in rows.values()
    }
    if len(frameworks) > 1:
        raise SystemExit(
            f"torch and transformers differ between rlforge's environment and the peers' "
            f"({sorted(frameworks)}); install both with -c constraints.txt"
        )
    gradients = {}
    for name, contender in contenders.items():
        contender.seconds(f"gradient {folder / name}.pt")
        gradients[name] = torch.load(folder / f"{name}.pt", weights_only=True).double()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _, (name, contender) in itertools.product(range(repeats), contenders.items()):
        times[name].append(contender.seconds())
    plain = gradients["plain_peft"]
    for name, contender in contenders.items():
        contender.close()
        gradient = gradients[name]
        rows[name] |= {
            "tokens": spread([work.tokens / clock for clock, _ in times[name]], "per_s"),
            "tokens_on_the_cpu": spread([work.tokens / cpu for _, cpu in times[name]], "per_s"),
            "gradient_cosine": float(gradient @ plain / (gradient.norm() * plain.norm())),
            "gradient_relative_error": float((gradient - plain).norm() / plain.norm()),
        }
    return rows


def show(work: Work, rows: dict[str, Any]) -> None:
    """A table, and what falls short of the figures to reach."""
    print(f"{work.name}: {len(work.turns)} turns, {work.tokens} tokens")
    print(f"  {'':14}{'tokens/s':>26}{'tokens/CPU s':>26}   rlforge is faster, asked for")
    for name, row in rows.items():
        clock, cpu = (
            rows["rlforge_learner"][key]["median_per_s"] / row[key]["median_per_s"]
            for key in ("tokens", "tokens_on_the_cpu")
        )
        cells = (shown(row[key], "per_s", digits=0) for key in ("tokens", "tokens_on_the_cpu"))
        times = f"{clock:.2f} x (CPU {cpu:.2f} x)"
        floor = f", {FLOORS[name]:g} x" if name in FLOORS else ""
        print(f"  {NAMES[name]:14}{''.join(f'{cell:>26}' for cell in cells)}   {times}{floor}")
        if row["gradient_cosine"] < COSINE:
            raise SystemExit(f"{NAMES[name]}: gradient cosine {row['gradient_cosine']}, other work")
    if absent := [shown_name for name, shown_name in NAMES.items() if name not in rows]:
        print(f"absent: {', '.join(absent)}; to install: benchmarks/requirements-peers.txt")


def main() -> None:
    parser = argparse.ArgumentParser(description="Learner tokens a second, and peers'.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--models", nargs="+", choices=BATCHES, default=list(BATCHES))
    parser.add_argument("--turns", type=int, help="default: 768 tiny, 16 smollm2_135m")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--packed-tokens", type=int, default=16384)
    parser.add_argument("--compile", action="store_true", help="learner.compile, with --shape")
    arguments = parser.parse_args()
    if arguments.repeats < 2:
        parser.error("--repeats: a spread needs at least 2")
    if arguments.shape is not None:
        measure_shape(
            arguments.shape,
            arguments.device,
            arguments.packed_tokens,
            arguments.repeats,
            compiled=arguments.compile,
        )
        return
    if arguments.device == "cuda":
        parser.error("--device cuda needs --shape")
    if arguments.compile:
        parser.error("--compile needs --shape")
    if shutil.which(arguments.peers) is None:
        parser.error(f"--peers {arguments.peers}: no such interpreter")
    for name in arguments.models:
        most = max(BATCHES[name][1])
        if arguments.turns is not None and (arguments.turns < most or arguments.turns % most):
            parser.error(f"--turns {arguments.turns}: {name} needs a multiple of {most}")
    from turns import make_work  # plays games: more packages than --shape needs

    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            work = make_work(name, arguments.turns or BATCHES[name][0], Path(folder))
            rows = compare(work, arguments.peers, arguments.repeats, Path(folder))
        show(work, rows)
        results = {
            "turns": len(work.turns),
            "tokens": work.tokens,
            "prompt_tokens": spread([float(len(t.prompt_ids)) for t in work.turns], "tokens"),
            "answer_tokens": spread([float(len(t.answer_ids)) for t in work.turns], "tokens"),
            "rank": work.rank,
            "threads": 1,
            "dtype": "float32",
            "contenders": rows,
        }
        record(f"learner_{name}", results, script="learner")


if __name__ == "__main__":
    main()
