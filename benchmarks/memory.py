"""Peaks of learner and engine on a card, against the planner's figures.

    python benchmarks/memory.py [--models NAME …] [--tokens N …]
    python benchmarks/memory.py --rehearse

Random weights of the true shapes in bfloat16, LoRA of rank 32 on all linear layers, REINFORCE. A
learner makes two updates of two full-length samples each, so that gradients and AdamW's moments are
allocated during the fullest pass; an engine answers full-length prompts. The peak is the most that
torch's allocator handed out (``torch.cuda.max_memory_allocated``); the plan is without its share
for the process. Memory of the process outside the allocator is measured too. ``--rehearse`` goes
through the same samples on a CPU with a small shape; it measures and records nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import torch
from common import record
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from rlforge.algorithms import make_algorithm
from rlforge.config.engine import EngineConfig
from rlforge.config.schema import RunConfig
from rlforge.config.training import GameLearnerConfig, ReinforceConfig
from rlforge.engines.transformers import TransformersEngine
from rlforge.learner import Learner, PolicySpec
from rlforge.models.devices import resolve_device
from rlforge.models.shape import KNOWN, ModelShape
from rlforge.preflight.memory.needs import GIB, engine_need, learner_need
from rlforge.preflight.memory.plan import engine_job, learner_job
from rlforge.samples import Sample, TrainBatch
from rlforge.types import PolicyRef, SamplingParams

CHECKPOINTS: dict[str, dict[str, bool]] = {
    "none": {},
    "activation": {"activation_checkpointing": True},
    "gradient": {"gradient_checkpointing": True},
}
SMALL = ModelShape(
    name="small",
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    ffn=160,
    vocab=512,
    tied=True,
    head_norms=True,
)


class WordCount:
    """Stands in for a tokenizer: the engine only asks it for text, which is not read here."""

    pad_token_id = 0

    def decode(self, ids: list[int], **_: Any) -> str:
        return f"{len(ids)} tokens"


def random_model(shape: ModelShape, device: torch.device) -> Any:
    """A causal model of ``shape`` with random weights in bfloat16."""
    kind = Qwen3Config if shape.head_norms else LlamaConfig
    config = kind(
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=65536,
    )
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def full_step(shape: ModelShape, tokens: int, answer: int, seed: int) -> Sample:
    """A sample of ``tokens`` in all, of which the last ``answer`` were sampled."""
    ids = torch.randint(1, shape.vocab, (tokens,), generator=torch.Generator().manual_seed(seed))
    return Sample(
        origin=str(seed),
        env_id="random",
        player_id=0,
        group_id=None,
        turn_index=0,
        last_turn=True,
        observation="",
        action="",
        prompt_token_ids=tuple(ids[:-answer].tolist()),
        token_ids=tuple(ids[-answer:].tolist()),
        logprobs=(-1.0,) * answer,
        raw_reward=1.0,
        reward=1.0 if seed % 2 else -1.0,
        policy_uid="step-0",
        policy_version=0,
    )


def settings(tokens: int, **learner: bool) -> RunConfig:
    """Passes of one sample of ``tokens``, nearly all of them the answer."""
    return RunConfig(
        engine=EngineConfig(max_model_len=tokens, max_tokens=tokens - 64),
        learner=GameLearnerConfig(
            batch_size=2, mini_batch_size=1, micro_batch_tokens=tokens, **learner
        ),
        algorithm=ReinforceConfig(),
    )


def update_twice(shape: ModelShape, config: RunConfig, device: torch.device) -> None:
    """Two updates of two samples by the learner itself."""
    tokens, answer = config.engine.max_model_len, config.engine.max_tokens
    spec = PolicySpec(
        model=random_model(shape, device),
        lora=config.model.lora,
        temperature=1.0,
        pad_token_id=0,
        seed=0,
    )
    algorithm = make_algorithm(config.algorithm, answer)
    learner = Learner(spec, config.learner, algorithm, device=device)
    samples = tuple(full_step(shape, tokens, answer, seed) for seed in range(2))
    batch = TrainBatch(samples=samples, whole_episodes=False)
    for _ in range(2):
        learner.update(batch)


def answer_prompts(shape: ModelShape, config: RunConfig, device: torch.device) -> None:
    """As many full-length sequences at once as the engine may run; the last 16 tokens sampled."""
    length = config.engine.max_model_len

    async def ask() -> None:
        model = random_model(shape, device)
        engine = TransformersEngine(config.engine, model, WordCount())
        base = PolicyRef(uid="step-0", kind="checkpoint", path_or_name=None)
        prompts = [
            full_step(shape, length - 16, 1, seed).prompt_token_ids
            for seed in range(config.engine.max_parallel_seq)
        ]
        params = SamplingParams(max_tokens=16, seed=0)
        await asyncio.gather(*(engine.generate(prompt, params, base) for prompt in prompts))
        await engine.close()

    asyncio.run(ask())


def peak_of(work: Callable[[], None]) -> int:
    """Most bytes that torch's allocator handed out during ``work``."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def learner_points(
    shape: ModelShape, lengths: list[int]
) -> list[tuple[dict[str, Any], RunConfig, int]]:
    """(what is run, its configuration, planned bytes) for every length and checkpointing."""
    points = []
    for tokens in lengths:
        for name, checkpoints in CHECKPOINTS.items():
            config = settings(tokens, **checkpoints)
            need = learner_need(learner_job(config, shape, bf16=True), process=0)
            about = {"part": "learner", "model": shape.name, "tokens": tokens}
            points.append((about | {"checkpointing": name}, config, need.total))
    return points


def engine_point(shape: ModelShape, tokens: int) -> tuple[dict[str, Any], RunConfig, int]:
    """The same for an engine with 16 sequences and no versions but the base."""
    config = settings(tokens)
    config = dataclasses.replace(
        config, engine=dataclasses.replace(config.engine, max_parallel_seq=16)
    )
    job = dataclasses.replace(engine_job(config, shape, "cuda", bf16=True), versions=0)
    about = {"part": "engine", "model": shape.name, "tokens": tokens, "checkpointing": "–"}
    return about, config, engine_need(job, process=0).total


def run(shape: ModelShape, about: dict[str, Any], config: RunConfig, device: torch.device) -> None:
    """One point, whichever part it is of."""
    part = update_twice if about["part"] == "learner" else answer_prompts
    part(shape, config, device)


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory peaks against the plan.")
    names = [shape.name for shape in KNOWN]
    parser.add_argument("--models", nargs="+", choices=names, default=["Qwen3-1.7B"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1024, 2048, 4096, 8192])
    parser.add_argument("--rehearse", action="store_true", help="small, on a CPU, not recorded")
    arguments = parser.parse_args()
    small = [*learner_points(SMALL, [128]), engine_point(SMALL, 128)]
    if arguments.rehearse:
        for about, config, planned in small:
            run(SMALL, about, config, torch.device("cpu"))
            print(f"{about['part']:8} {about['checkpointing']:11} ran; planned {planned:,} bytes")
        return
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/memory.py measures a CUDA device and torch finds none")
    device = resolve_device("cuda")
    room = torch.cuda.get_device_properties(0).total_memory
    for about, config, _ in small:  # cuBLAS takes workspaces, which no plan counts, and keeps them
        run(SMALL, about, config, device)
    rows = []
    for shape in (shape for shape in KNOWN if shape.name in arguments.models):
        points = [*learner_points(shape, arguments.tokens), engine_point(shape, 1024)]
        for about, config, planned in points:
            if planned > 0.9 * room:
                continue  # a point that cannot run has no peak
            work = lambda s=shape, a=about, c=config: run(s, a, c, device)  # noqa: E731
            peak = peak_of(work)
            rows.append(about | {"planned": planned, "peak": peak, "ratio": planned / peak})
            print(
                f"{shape.name:14}{about['part']:9}{about['checkpointing']:11}{about['tokens']:>7}"
                f"{planned / GIB:8.2f} GiB planned {peak / GIB:8.2f} measured {planned / peak:6.2f}"
            )
    free, total = torch.cuda.mem_get_info()
    outside = total - free - torch.cuda.memory_reserved()  # by now all kernels are loaded
    record(
        "memory",
        {"card_bytes": room, "on_the_card_beside_tensors": outside, "rank": 32, "points": rows},
    )


if __name__ == "__main__":
    main()
