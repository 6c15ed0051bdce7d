"""Sizes that engines and learner keep to and the memory planner counts with."""

from __future__ import annotations

from rlforge.config.schema import PolicyConfig

#: Most logits that the learner holds at once (float32: 128 MiB).
MAX_LOGITS = 2**25

#: Padded prompt tokens of one forward pass of the transformers engine. More of them fall out of the
#: cache of a CPU: a model of 0.1M parameters reads 12,000 prompts of 20 tokens a second in batches
#: of 64, 8,000 in batches of 128.
PROMPT_TOKENS = {"cuda": 8192, "cpu": 1536}

#: Share of a GPU that vLLM takes of what is its own; the rest is room for activations.
VLLM_SHARE = 0.9

#: The same of the whole card, where engines and learner take turns and its context stays.
VLLM_TURN_SHARE = 0.85

#: GiB of vLLM's KV cache on a CPU, where it would take most of the memory by default.
VLLM_CPU_CACHE_GB = 1.0


def vllm_share(config: PolicyConfig, gpus: float) -> float:
    """Share of its GPU that a vLLM engine takes at its start.

    gpus: the engine's share of a GPU, or how many it has.
    """
    given = config.engine.vllm.gpu_memory_utilization
    if given is not None:
        return given
    if config.hardware.alternate:
        return VLLM_TURN_SHARE / config.engine.num_engines
    return VLLM_SHARE * min(gpus, 1.0)


def merging_lora_pays(inputs: int, outputs: int, rank: int) -> bool:
    """Whether W + s B A, made once per pass, costs less than B (A x) per token."""
    return inputs * outputs <= 3 * rank * (inputs + outputs)


def kept_versions(config: PolicyConfig) -> int:
    """How many earlier adapters the learner keeps, which may have drawn the tokens of a batch."""
    # A model that is trained whole keeps none: each would take as much memory as the model.
    return 0 if config.learner.train == "full" else config.max_staleness or 0
