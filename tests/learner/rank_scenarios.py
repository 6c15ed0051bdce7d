"""The same updates by one rank or by several: run as a process by test_ranks.py, once per rank."""

from __future__ import annotations

import dataclasses
import math
import random
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tests.factories import causal_lm
from tests.learner import parts
from torch.distributed.tensor import DTensor

from rlforge.algorithms import make_algorithm
from rlforge.config.model import LoraConfig
from rlforge.config.training import A2cConfig, AlgorithmConfig, GrpoConfig, KlConfig, PpoConfig
from rlforge.learner import attention
from rlforge.learner.learner import Learner
from rlforge.learner.ranks import ConnectedRanks, Ranks, join, meeting_point
from rlforge.learner.sharding import whole
from rlforge.samples import TrainBatch

GRPO = GrpoConfig(group_size=4, kl=KlConfig(coef=0.05), loss_aggregation="sequence_mean")
PPO = PpoConfig(kl=KlConfig(coef=0.05), value_clip=0.2, entropy_coef=0.01, value_learning_rate=1e-2)
SPREAD = {"shard_weights": True}
STEPS = {"epochs": 2, "optimizer_steps": 3}
SCENARIOS: dict[str, tuple[AlgorithmConfig, dict[str, Any]]] = {
    "grpo": (GRPO, STEPS),
    "ppo": (PPO, STEPS),
    "clipped": (AlgorithmConfig(), {"grad_clip": 1e-3}),
    "full": (A2cConfig(), {"train": "full", "grad_clip": 0.5}),
    "fewer rows than ranks": (AlgorithmConfig(), {"games": 0}),
    "shared beginnings": (PPO, {"games": 10, "rules": 30, "mini_batch_size": 8, "packing": "on"}),
    "spread, shared beginnings": (PPO, {**SPREAD, "games": 10, "rules": 30, "packing": "on"}),
    "not finite": (AlgorithmConfig(), {"infinite": True}),
    "without signal": (PPO, {**STEPS, "equal": True}),
    "spread, without signal": (GRPO, {**SPREAD, **STEPS, "equal": True}),
    "resumed": (GRPO, {**STEPS, "resume": True}),
    "lagged": (GRPO, {**STEPS, "lag": 1, "games": 10, "resume": True}),
    "spread, lagged": (GRPO, {**SPREAD, **STEPS, "lag": 1, "games": 10, "resume": True}),
    "spread reinforce": (AlgorithmConfig(), SPREAD),
    "spread grpo": (GRPO, {**SPREAD, **STEPS, "gradient_checkpointing": True}),
    "spread ppo": (PPO, {**SPREAD, **STEPS, "activation_checkpointing": True}),
    "spread warm start": (GRPO, {**SPREAD, "warm": True}),
    "spread full": (PPO, {**SPREAD, **STEPS, "train": "full", "grad_clip": 0.5}),
    "spread full, own head": (A2cConfig(), {**SPREAD, "train": "full", "tied": False}),
    "spread, scaled logits": (AlgorithmConfig(), {**SPREAD, "scaled": True}),
    "spread, logits by the model alone": (AlgorithmConfig(), {**SPREAD, "alone": True}),
    "spread, adapted head": (PPO, {**SPREAD, **STEPS, "adapted_head": True, "packing": "on"}),
    "spread, adapted head in float32": (
        AlgorithmConfig(),
        {**SPREAD, "adapted_head": True, "fp32_head": True},
    ),
    "spread, a kernel that fails": (PPO, {**SPREAD, "packing": "on", "no_kernel": True}),
    "spread, fewer rows than ranks": (AlgorithmConfig(), {**SPREAD, "games": 0}),
    "spread full, resumed": (PPO, {**SPREAD, **STEPS, "train": "full", "resume": True}),
}
UPDATES = 3


def batch_of(games: int, version: int, rules: int, lag: int) -> TrainBatch:
    """``games`` games of three turns in one group; a single turn for 0 games.

    rules: tokens with which all prompts begin. lag: the turns were drawn so many versions earlier.
    """
    draw = random.Random(version)
    samples = parts.random_steps(max(1, 3 * games), seed=version, group_id="group", last_turn=True)
    for index in range(3 * games):
        reward = draw.choice([-1.0, 1.0])
        samples[index] = dataclasses.replace(
            samples[index],
            prompt_token_ids=(*range(1, 1 + rules), *samples[index].prompt_token_ids),
            origin=f"game-{index // 3}",
            turn_index=index % 3,
            last_turn=index % 3 == 2,
            reward=reward,
            raw_reward=reward,
            policy_version=max(0, version - lag),
        )
    return dataclasses.replace(parts.batch(samples), whole_episodes=True)


def play(
    name: str, ranks: Ranks, folder: Path, *, resume_from: Path | None = None
) -> dict[str, Any]:
    """Three updates of one scenario: ``weights`` (of rank 0) and ``metrics`` of each update.

    folder: empty; rank 0 leaves what the engine would load in ``saved``. resume_from: a state that
    other ranks saved in the same scenario, instead of this run's own.
    """
    algorithm, options = SCENARIOS[name]
    options = dict(options)
    games, resume = options.pop("games", 4), options.pop("resume", False)
    tied, warm = options.pop("tied", True), options.pop("warm", False)
    rules = options.pop("rules", 0)
    scaled, alone = options.pop("scaled", False), options.pop("alone", False)
    infinite, lag = options.pop("infinite", False), options.pop("lag", 0)
    equal = options.pop("equal", False)
    if alone or options.pop("adapted_head", False):
        tied = False
        targets = ["down_proj", "q_b_proj"] if alone else ["down_proj", "q_proj", "lm_head"]
        options["lora"] = LoraConfig(rank=4, alpha=8, target_modules=targets)
    if ranks.size == 1:
        options.pop("shard_weights", None)
    kernel = broken_kernel if options.pop("no_kernel", False) else attention.segment_attention
    if warm:
        trained = parts.model()
        first = parts.learner(trained, seed=3)
        parts.randomise_adapter(trained, seed=5)
        start = folder / f"start-{ranks.rank}"
        start.mkdir()
        first.save(start)
        options["initial_adapter"] = str(start)

    def new() -> tuple[Learner, Any]:
        model = parts.model(tie_word_embeddings=tied)
        if scaled or alone:
            model = causal_lm("granite", logits_scaling=4.0) if scaled else parts.minicpm()
        with mock.patch.object(attention, "segment_attention", kernel):
            learner = parts.learner(
                model,
                make_algorithm(algorithm, 8),
                ranks=ranks,
                value_learning_rate=getattr(algorithm, "value_learning_rate", None),
                kept_versions=lag,
                **{"mini_batch_size": 2, "learning_rate": 1e-3, "grad_clip": 1.0, **options},
            )
        if options.get("train") != "full" and not warm:
            parts.randomise_adapter(model)
        return learner, model

    learner, model = new()
    metrics = []
    for version in range(UPDATES):
        batch = batch_of(games, version, rules, lag)
        if lag:
            place = folder / f"step-{version}"
            if ranks.rank == 0:
                place.mkdir()
            learner.save(place if ranks.rank == 0 else None)
        if infinite and version == 1:
            samples = (dataclasses.replace(batch.samples[0], reward=math.inf), *batch.samples[1:])
            batch = dataclasses.replace(batch, samples=samples)
        if equal and version == 1:
            same = {"reward": 1.0, "raw_reward": 1.0, "outcome_reward": 1.0}
            samples = tuple(dataclasses.replace(sample, **same) for sample in batch.samples)
            batch = dataclasses.replace(batch, samples=samples)
        metrics.append(dict(learner.update(batch).metrics))
        if resume and version == 1:
            state = folder / "state"
            if ranks.rank == 0:
                state.mkdir()
            learner.save_state(state if ranks.rank == 0 else None)
            ranks.add_up({})  # a barrier: all ranks wait until it is written
            learner, model = new()
            learner.load_state(resume_from or state)
            learner.recall(lambda name: folder / name if (folder / name).exists() else None)
    saved = folder / "saved"
    if ranks.rank == 0:
        saved.mkdir()
    learner.save(saved if ranks.rank == 0 else None)
    return {"weights": learner.state_dict()["policy"], "metrics": metrics, "held": held(model)}


def bfloat16_gradient(ranks: Ranks, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """One update of all weights of a model loaded in ``dtype``, spread where there are ranks.

    ``gradient`` by name, whole. ``dtypes``: of weights and gradients as they are held.
    ``gathered``: of weights while a layer runs.
    """
    model = parts.model(hidden_size=64, intermediate_size=128).to(torch.bfloat16).to(dtype)
    spread = {"shard_weights": True} if ranks.size > 1 else {}
    learner = parts.learner(model, ranks=ranks, train="full", packing="off", **spread)
    found: dict[str, Any] = {"gathered": set()}
    sum_gradients = ranks.sum_gradients

    def look(parameters: Any) -> None:
        sum_gradients(parameters)
        found["gradient"] = {n: whole(p.grad).clone() for n, p in model.named_parameters()}
        found["dtypes"] = {t.dtype for p in parameters for t in (p, p.grad)}

    (layer, *_) = model.model.layers
    layer.mlp.register_forward_pre_hook(
        lambda mlp, _: found["gathered"].add(mlp.up_proj.weight.dtype)
    )
    with mock.patch.object(ranks, "sum_gradients", look):
        learner.update(parts.batch(parts.random_steps(12)))
    return found


def broken_kernel(*arguments: Any) -> Any:
    """Fails as on a card without a kernel for packed sequences."""
    raise RuntimeError("no kernel for this card")


def held(model: torch.nn.Module) -> float:
    """Share of the weights, the adapter aside, that this process holds."""
    weights = [p.detach() for name, p in model.named_parameters() if "lora" not in name]
    here = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in weights)
    return here / sum(p.numel() for p in weights)


def main(rank: int, size: int, folder: Path) -> None:
    """Connect to the other ranks, run every scenario and leave the results in ``folder``."""
    torch.set_num_threads(1)
    port_file = folder / "port"
    if rank == 0:
        store = meeting_point("127.0.0.1", size)
        port_file.with_suffix(".new").write_text(str(store.port))
        port_file.with_suffix(".new").rename(port_file)
    else:
        while not port_file.exists():
            time.sleep(0.05)
        store = join("127.0.0.1", int(port_file.read_text()), size)
    ranks = ConnectedRanks(store, rank, size, torch.device("cpu"))
    results = {}
    for name in SCENARIOS:
        own = folder / name
        own.mkdir(exist_ok=True)
        results[name] = play(name, ranks, own)
    results["bfloat16"] = bfloat16_gradient(ranks)
    torch.save(results, folder / f"rank-{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
