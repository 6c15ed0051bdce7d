"""How long the documented quick start takes on one GPU, projected from its measured steady rates.

    python benchmarks/quick_start.py [--seconds S] [--repeats N]

The quick start (``+experiment=qwen3_1p7b_simpletak``) is 200 updates of 384 samples each; its
documentation tells of 12 hours on three RTX 6000 Ada. Here learner and engine have one card in
turns, with the embedded engine, so that a round is the sum of what is measured:

- ``playing``: 384 answers, at the rate of an engine with 384 requests always under way, half of
  them for a version that has just been loaded. One seat of two is learned from in the quick start,
  so that 768 are played for an update; its tuned preset learns from both (``projected_tuned``);
- ``learning``: an update of 384 turns, all phases of it;
- ``writing`` the adapter, and ``loading`` it into the engine, which answers meanwhile.

Weights are random, of the shape of Qwen3-1.7B. Prompts have the lengths of SimpleTak turns, answers
log-normal ones (``benchmarks/shapes.py``). Needs neither Ray nor games. Evaluations are left out:
they play against a model behind an API.

    python benchmarks/quick_start.py --shape tiny --device cpu --workers 8 --seconds 1

tries this file without a GPU, and records nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from adapters import save_adapters
from common import record, seconds, shown, spread
from shapes import SHAPES, make_learner, make_steps, random_model, vocabulary

from rlforge.config.engine import EngineConfig
from rlforge.config.training import LearnerConfig
from rlforge.engines.transformers import TransformersEngine
from rlforge.models.devices import resolve_device
from rlforge.samples import Sample, TrainBatch
from rlforge.types import PolicyRef, SamplingParams

UPDATES, BATCH, WORKERS = 200, 384, 384
LONGEST = 4096
Figures = dict[str, list[float]]


class NoText:
    """In the place of a tokenizer: what random weights say is nothing to read."""

    pad_token_id = 0

    def decode(self, ids: Sequence[int], **_options: Any) -> str:
        return ""


async def play(
    engine: TransformersEngine,
    samples: Sequence[Sample],
    policies: Sequence[PolicyRef],
    workers: int,
    length: float,
) -> dict[str, float]:
    """Answers and tokens a second in ``length`` seconds, and those until a version was loaded."""
    next_step = itertools.cycle(enumerate(samples))
    newest = policies[0]
    answers = tokens = 0
    over = False

    async def worker() -> None:
        nonlocal answers, tokens
        while not over:
            index, sample = next(next_step)
            wanted = SamplingParams(max_tokens=len(sample.token_ids), seed=index)
            answer = await engine.generate(sample.prompt_token_ids, wanted, newest)
            answers += 1
            tokens += len(answer.token_ids)

    asking = [asyncio.create_task(worker()) for _ in range(workers)]
    await asyncio.sleep(length / 2)  # until requests of all ages are under way
    before, started = (answers, tokens), time.perf_counter()
    await asyncio.sleep(length / 2)
    asked = time.perf_counter()
    await engine.load(policies[1])
    newest, loaded = policies[1], time.perf_counter() - asked
    await asyncio.sleep(length / 2)
    took = time.perf_counter() - started
    rates = {"answers": (answers - before[0]) / took, "tokens": (tokens - before[1]) / took}
    over = True
    for task in asking:
        task.cancel()
    for ended in await asyncio.gather(*asking, return_exceptions=True):
        if isinstance(ended, Exception):  # which being cancelled is not
            raise ended
    return rates | {"loading": loaded}


def learn(shape: str, device: str, samples: Sequence[Sample], packed: int, repeats: int) -> Figures:
    """Seconds of an update of all ``samples``, and of writing what it made."""
    learner = make_learner(shape, device, LearnerConfig(micro_batch_tokens=packed))
    batch = TrainBatch(samples=tuple(samples), whole_episodes=False)
    figures: Figures = {"learning": [], "writing": []}
    learner.update(batch)  # kernels are chosen and compiled
    for _ in range(repeats):
        figures["learning"].append(seconds(lambda: learner.update(batch)))
        with tempfile.TemporaryDirectory() as folder:
            figures["writing"].append(seconds(lambda path=Path(folder): learner.save(path)))
    return figures


def generate(
    shape: str, device: str, samples: Sequence[Sample], workers: int, length: float, repeats: int
) -> Figures:
    """Answers and tokens a second, and seconds until a version is loaded."""
    figures: Figures = {"answers": [], "tokens": [], "loading": []}
    config = EngineConfig(max_parallel_seq=workers, max_model_len=LONGEST)
    model = random_model(shape, device)
    with tempfile.TemporaryDirectory() as folder:
        policies = save_adapters(model, Path(folder), 2, rank=SHAPES[shape][1])
        for _ in range(repeats):
            engine = TransformersEngine(config, model, NoText())
            for name, value in asyncio.run(
                play(engine, samples, policies, workers, length)
            ).items():
                figures[name].append(value)
            asyncio.run(engine.close())
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Hours that the quick start takes, projected.")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-1.7b")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--packed-tokens", type=int, default=16384)
    parser.add_argument("--median-answer", type=int, default=200, metavar="TOKENS")
    arguments = parser.parse_args()
    if arguments.repeats < 2:
        parser.error("--repeats: a spread needs at least 2")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch finds no CUDA device here; this needs a GPU")
    samples = make_steps(vocabulary(arguments.shape), number=BATCH, median=arguments.median_answer)
    shape, repeats = arguments.shape, arguments.repeats
    device = resolve_device(arguments.device).type
    figures = learn(shape, device, samples, arguments.packed_tokens, repeats)
    figures |= generate(shape, device, samples, arguments.workers, arguments.seconds, repeats)
    if not all(figures["answers"]):
        raise SystemExit(f"no answer ended in {arguments.seconds:g} s; raise --seconds")
    rates = {f"{name}_per_s": figures.pop(name) for name in ("answers", "tokens")}
    figures["playing"] = [BATCH / rate for rate in rates["answers_per_s"]]
    tuned = [sum(parts) for parts in zip(*figures.values(), strict=True)]
    rounds = [once + again for once, again in zip(tuned, figures["playing"], strict=True)]
    hours, tuned_hours = (
        spread([UPDATES * each / 3600 for each in kind], "h") for kind in (rounds, tuned)
    )
    parts = {name: spread(values) for name, values in figures.items()}
    for name, part in parts.items():
        print(f"{name}: {shown(part, digits=3)} s")
    print(f"{UPDATES} updates, tuned: {shown(tuned_hours, 'h', digits=2)} h")
    print(f"{UPDATES} updates: {shown(hours, 'h', digits=2)} h")
    if arguments.device == "cuda":
        results = {
            "shape": arguments.shape,
            "card": torch.cuda.get_device_name(),
            "updates": UPDATES,
            "samples_per_update": BATCH,
            "requests_under_way": arguments.workers,
            "packed_tokens": arguments.packed_tokens,
            "answer_tokens": arguments.median_answer,
            "projected": hours,
            "projected_tuned": tuned_hours,
            "seconds_per_update": parts,
            **{name: spread(values, "per_s") for name, values in rates.items()},
        }
        record("quick_start", results)


if __name__ == "__main__":
    main()
