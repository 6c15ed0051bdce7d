"""The learner on models of published shapes with random weights: tokens a second and MFU.

Used by ``benchmarks/learner.py --shape NAME``; needs torch, transformers and peft, no game and no
Ray. A batch has the prompt lengths of SimpleTak turns (``simpletak_lengths.json``) and answers of
log-normal length, as models write that think before they move; its ids are random, so that no two
prompts share a beginning. A batch fills four forward passes of ``--packed-tokens``.

MFU is the ``mfu`` of the learner's own metrics (``rlforge.learner.update_metrics``): the model's
arithmetic, 4 operations per token and weight of a frozen matrix and 6 of a trained one, and
attention, over the card's peak in bfloat16. Recomputation and padding do not count.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from common import record, shown, spread
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlforge.algorithms import make_algorithm
from rlforge.config.model import LoraConfig
from rlforge.config.training import LearnerConfig, ReinforceConfig
from rlforge.learner import Learner, PolicySpec
from rlforge.learner.batching import select_rows
from rlforge.learner.partition import parts
from rlforge.samples import Sample, TrainBatch

LENGTHS = Path(__file__).parent / "simpletak_lengths.json"
#: Published sizes, and the rank to train with. ``tiny`` is for trying this file on a CPU.
SHAPES: dict[str, tuple[dict[str, Any], int]] = {
    "qwen3-0.6b": ({"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}, 16),
    "qwen3-1.7b": ({"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28}, 32),
    "tiny": (
        {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 512,
        },
        4,
    ),
}
QWEN3 = {
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
PASSES = 4
MEDIAN_ANSWER, SPREAD_OF_LOG, LONGEST_ANSWER = 200, 0.7, 2048


def make_steps(
    vocabulary: int,
    *,
    tokens: float = math.inf,
    number: float = math.inf,
    median: int = MEDIAN_ANSWER,
    seed: int = 0,
) -> tuple[Sample, ...]:
    """Turns of random ids: ``number`` of them, or about ``tokens`` of prompts and answers together.

    median: tokens of an answer.
    """
    draw = random.Random(seed)
    prompts = json.loads(LENGTHS.read_text())["prompt_tokens"]
    samples: list[Sample] = []
    while tokens > 0 and len(samples) < number:
        answer = round(median * draw.lognormvariate(0.0, SPREAD_OF_LOG))
        lengths = (draw.choice(prompts), max(1, min(answer, LONGEST_ANSWER)))
        tokens -= sum(lengths)
        prompt_ids, answer_ids = (
            tuple(draw.randrange(vocabulary) for _ in range(length)) for length in lengths
        )
        samples.append(
            Sample(
                origin=f"game-{len(samples)}",
                env_id="SimpleTak-v0-train",
                player_id=0,
                group_id=None,
                turn_index=0,
                last_turn=True,
                observation="",
                action="",
                prompt_token_ids=prompt_ids,
                token_ids=answer_ids,
                logprobs=(-1.0,) * len(answer_ids),
                raw_reward=0.0,
                reward=draw.gauss(0.0, 1.0),
                policy_uid="step-0",
                policy_version=0,
            )
        )
    return tuple(samples)


def full_passes(vocabulary: int, packed_tokens: int) -> tuple[Sample, ...]:
    """As many turns as the learner packs into ``PASSES`` passes of ``packed_tokens`` positions.

    One more turn would open another pass, small and slow compared with the others.
    """
    samples = make_steps(vocabulary, tokens=PASSES * packed_tokens)
    while len(list(parts(select_rows(samples, None).rows, None, packed_tokens, "shared"))) > PASSES:
        samples = samples[:-1]
    return samples


def vocabulary(name: str) -> int:
    """Tokens that a model of shape ``name`` knows."""
    size: int = (QWEN3 | SHAPES[name][0])["vocab_size"]
    return size


def random_model(name: str, device: str) -> Qwen3ForCausalLM:
    """A model of shape ``name`` as it is trained on ``device``: in bfloat16 on GPUs."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM(Qwen3Config(**(QWEN3 | SHAPES[name][0])))
    if device == "cuda":
        for parameter in model.parameters():  # the rotation's frequencies stay as they are
            parameter.data = parameter.data.to(torch.bfloat16)
    return model


def policy_spec(name: str, device: str) -> PolicySpec:
    """Such a model with an adapter of the shape's rank."""
    rank = SHAPES[name][1]
    return PolicySpec(
        model=random_model(name, device),
        lora=LoraConfig(rank=rank, alpha=rank),
        temperature=1.0,
        pad_token_id=0,
        seed=0,
    )


def make_learner(name: str, device: str, config: LearnerConfig | None = None) -> Learner:
    """A learner of ``policy_spec``."""
    algorithm = make_algorithm(ReinforceConfig(), LONGEST_ANSWER)
    return Learner(policy_spec(name, device), config or LearnerConfig(), algorithm, device=device)


def measure_shape(
    name: str, device: str, packed_tokens: int, repeats: int, *, compiled: bool = False
) -> dict[str, Any]:
    """Times updates, prints them and returns them; on a GPU they are recorded as well.

    compiled: with ``learner.compile``.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch finds no CUDA device here; this needs a GPU")
    learner = make_learner(
        name, device, LearnerConfig(micro_batch_tokens=packed_tokens, compile=compiled)
    )
    samples = full_passes(vocabulary(name), packed_tokens)
    batch = TrainBatch(samples=samples, whole_episodes=False)

    def update() -> Mapping[str, float]:
        return learner.update(batch).metrics  # waits for the device

    first, _ = update(), update()  # kernels are chosen and compiled
    if device == "cuda" and first["padding_share"] > 0:
        raise SystemExit("the learner pads instead of packing; its log says what is missing")
    updates = [update() for _ in range(repeats)]
    result: dict[str, Any] = {
        "shape": name,
        "rank": SHAPES[name][1],
        "dtype": "bfloat16" if device == "cuda" else "float32",
        "compiled": "yes" if compiled else "no",
        "packed_tokens": packed_tokens,
        "turns": len(samples),
        "tokens": sum(len(sample.prompt_token_ids) + len(sample.token_ids) for sample in samples),
        "padding_share": updates[0]["padding_share"],
        "tokens_per_second": spread([metrics["tokens_per_s"] for metrics in updates], "per_s"),
    }
    print(f"{name}: {shown(result['tokens_per_second'], 'per_s', digits=0)} tokens/s")
    if device == "cuda":
        result["card"] = torch.cuda.get_device_name()
        result["memory_peak_gb"] = max(metrics["memory_peak_gb"] for metrics in updates)
        if "mfu" in updates[0]:
            result["mfu"] = spread([metrics["mfu"] for metrics in updates], "share")
            print(f"MFU {shown(result['mfu'], 'share', scale=100)} %")
        else:
            print(f"no MFU: rlforge.learner does not know the peak of {result['card']}")
        record(f"learner_{name}{'_compiled' if compiled else ''}", result, script="learner")
    return result
