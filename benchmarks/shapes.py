"""The learner on models of published shapes with random weights: tokens a second and MFU.

Used by ``benchmarks/learner.py --shape NAME``; needs torch, transformers and peft, no game and no
Ray. A batch has the prompt lengths of SimpleTak turns (``simpletak_lengths.json``) and answers of
log-normal length, as models write that think before they move; its ids are random, so that no two
prompts share a beginning. A batch fills four forward passes of ``--packed-tokens``.

MFU is the model's own work over what the card could do in that time. With L layers, heads of
together D values, N parameters in the frozen matrices of the layers, A in the adapter, a head of
H x V, a sequence of s tokens and its a answer tokens, an update takes in floating point operations

    s * 4 N    forward 2 N, and 2 N for the gradient of the activations; a frozen matrix has none
    s * 6 A    forward, activations and weights
    a * 4 H V  only answers pass through the head, which is frozen
    6 L D s^2  scores and mixing, 4 D s^2 per layer, half of it under a causal mask, 3 passes

What is computed again (the chunks of the head, checkpointed layers) and padding do not count.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from common import record, seconds, shown, spread
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlforge.algorithms import make_algorithm
from rlforge.config.schema import LearnerConfig, LoraConfig, ReinforceConfig
from rlforge.learner import Learner
from rlforge.types import Step, TrainBatch

LENGTHS = Path(__file__).parent / "simpletak_lengths.json"
#: Published sizes, and the rank to train with. ``tiny`` is for trying this file on a CPU.
SHAPES: dict[str, tuple[dict[str, Any], int]] = {
    "qwen3-0.6b": (
        {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28},
        16,
    ),
    "qwen3-1.7b": (
        {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28},
        32,
    ),
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
#: Dense bfloat16 operations a second, from NVIDIA's data sheets; the longest name found counts.
PEAKS = {
    "H200": 989e12,
    "H100": 989e12,
    "H100 PCIe": 756e12,
    "A100": 312e12,
    "RTX 6000 Ada": 364e12,
    "RTX 4090": 165e12,
}
PASSES = 4
MEDIAN_ANSWER, SPREAD_OF_LOG, LONGEST_ANSWER = 200, 0.7, 2048


def peak_of(device_name: str) -> float | None:
    """Operations a second of the card, None for one that is not in ``PEAKS``."""
    found = [name for name in PEAKS if name in device_name]
    return PEAKS[max(found, key=len)] if found else None


def operations(model: Any, steps: tuple[Step, ...]) -> float:
    """Floating point operations of one update; see the module's formula."""
    config = model.config
    adapter = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(
        parameter.numel()
        for name, parameter in model.get_decoder().named_parameters()
        if parameter.ndim == 2 and not parameter.requires_grad and "embed_tokens" not in name
    )
    width = config.num_attention_heads * config.head_dim
    total = 0.0
    for step in steps:
        answer = len(step.token_ids)
        length = len(step.prompt_token_ids) + answer
        total += length * (4 * frozen + 6 * adapter)
        total += answer * 4 * config.hidden_size * config.vocab_size
        total += 6 * config.num_hidden_layers * width * length**2
    return total


def make_steps(tokens: int, vocabulary: int, seed: int = 0) -> tuple[Step, ...]:
    """Turns of random ids with about ``tokens`` prompt and answer tokens together."""
    draw = random.Random(seed)
    prompts = json.loads(LENGTHS.read_text())["prompt_tokens"]
    steps: list[Step] = []
    while tokens > 0:
        answer = round(MEDIAN_ANSWER * draw.lognormvariate(0.0, SPREAD_OF_LOG))
        lengths = (draw.choice(prompts), max(1, min(answer, LONGEST_ANSWER)))
        tokens -= sum(lengths)
        prompt_ids, answer_ids = (
            tuple(draw.randrange(vocabulary) for _ in range(length)) for length in lengths
        )
        steps.append(
            Step(
                game_id=f"game-{len(steps)}",
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
    return tuple(steps)


def measure_shape(name: str, device: str, packed_tokens: int, repeats: int) -> dict[str, Any]:
    """Times updates, prints them and returns them; on a GPU they are recorded as well."""
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch finds no CUDA device here; this needs a GPU")
    sizes, rank = SHAPES[name]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM(Qwen3Config(**(QWEN3 | sizes))).to(dtype)
    learner = Learner(
        model,
        LearnerConfig(micro_batch_tokens=packed_tokens),
        LoraConfig(rank=rank, alpha=rank),
        make_algorithm(ReinforceConfig(), LONGEST_ANSWER),
        temperature=1.0,
        pad_token_id=0,
        device=device,
        seed=0,
    )
    steps = make_steps(PASSES * packed_tokens, model.config.vocab_size)
    batch = TrainBatch(steps=steps, whole_episodes=False, min_version=0, max_version=0)
    tokens = sum(len(step.prompt_token_ids) + len(step.token_ids) for step in steps)

    def update() -> None:
        learner.update(batch)
        if device == "cuda":
            torch.cuda.synchronize()

    update(), update()  # kernels are chosen and compiled
    times = [seconds(update) for _ in range(repeats)]
    result: dict[str, Any] = {
        "shape": name,
        "rank": rank,
        "dtype": str(dtype).removeprefix("torch."),
        "packed_tokens": packed_tokens,
        "turns": len(steps),
        "tokens": tokens,
        "operations": operations(model, steps),
        "tokens_per_second": spread([tokens / took for took in times], "per_s"),
    }
    print(f"{name}: {shown(result['tokens_per_second'], 'per_s', digits=0)} tokens/s")
    if device == "cuda":
        card = torch.cuda.get_device_name()
        peak = peak_of(card)
        result |= {"card": card, "peak_memory_bytes": torch.cuda.max_memory_allocated()}
        if peak is None:
            print(f"no MFU: the peak of {card} is not in PEAKS of benchmarks/shapes.py")
        else:
            shares = [result["operations"] / took / peak for took in times]
            result |= {"peak_per_s": peak, "mfu": spread(shares, "share")}
            print(f"MFU {shown(result['mfu'], 'share', scale=100)} % of {peak / 1e12:.0f} TFLOP/s")
        record(f"learner_{name}", result, script="learner")
    return result
