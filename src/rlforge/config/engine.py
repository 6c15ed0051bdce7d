"""The engines that generate, and how answers are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rlforge.config.rules import Beta, Count, Group, Part, Positive, Problem, Whole
from rlforge.types import SamplingParams


@dataclass
class VllmConfig(Group):
    """Settings of ``engine.name: vllm``, with vLLM's own meanings."""

    #: Share of the GPU's memory for weights and KV cache; null: all that the learner leaves;
    #: without one 0.9 of the engine's share.
    gpu_memory_utilization: Part | None = None
    #: GiB of the KV cache; null: what the GPU's share leaves, 1 on a CPU.
    kv_cache_gb: Positive | None = None
    #: Run without CUDA graphs and compilation: a faster start, slower tokens.
    enforce_eager: bool = False
    #: Reuse the KV cache of prompts for later prompts with the same prefix.
    enable_prefix_caching: bool = True
    #: Most tokens per engine step, over all sequences; null: vLLM's choice.
    max_num_batched_tokens: Count | None = None


@dataclass
class EngineConfig(Group):
    """The engines that generate (group ``engine``)."""

    #: ``transformers``, ``vllm``, or ``auto``: vLLM on GPUs where it is installed, can run the
    #: configuration, and passes a trial at the start; else ``transformers``.
    name: str = "auto"
    #: Number of engines (``num_actors`` of UnstableBaselines).
    num_engines: Count = 1
    #: Engines without which nothing starts. The others join with nodes of a cluster
    #: (`hardware.elastic=true`), or start where a GPU is left for each and
    #: `hardware.learner_gpus` and `hardware.engine_gpus` are 0. null: all, and 1 if elastic.
    min_engines: Count | None = None
    #: Sequences generated at the same time in one engine.
    max_parallel_seq: Count = 128
    #: Most tokens in one answer.
    max_tokens: Count = 4096
    #: Most tokens of prompt and answer together, at most the model's positions. A game ends as a
    #: draw (``context_limit``) where this cuts an answer without a legal action.
    max_model_len: Count = 8192
    #: Policy versions resident at once (current and opponents).
    max_loras: Count = 5
    #: Sampling temperature, also of the learner. 0 (greedy) would leave nothing to learn.
    temperature: Positive = 1.0
    #: Nucleus sampling: smallest set of tokens with this probability mass, of those that ``min_p``
    #: and ``top_k`` leave. The learner's log-probs are over all tokens with any of the three.
    top_p: Part = 1.0
    #: Draw from this many likeliest tokens only; 0: all.
    top_k: Whole = 0
    #: Draw only tokens with at least this share of the likeliest one's probability; 0: all.
    min_p: Beta = 0.0
    #: Most tokens whose keys and values are kept between requests: of conversations, and of common
    #: beginnings of prompts. null: ``max_parallel_seq`` times ``max_model_len`` less the running
    #: sequences, 0: none. Only for ``transformers``; vLLM has ``vllm.enable_prefix_caching``.
    cache_tokens: Whole | None = None
    #: MiB of logits kept between requests: where a version has read the same tokens before, as in
    #: games of few positions, the next one is drawn without a pass. 0: none. Only for
    #: ``transformers``.
    logits_mb: Whole = 0
    #: Compute each answer as if it were alone in its batch, the same to the last bit.
    #: `determinism=strict` sets it. Only for ``transformers``.
    batch_invariant: bool = False
    #: Seconds after which a request without answer counts as failed.
    request_timeout_s: Positive = 600.0
    #: How often a dead engine is restarted, also after the loss of its node.
    max_restarts: Whole = 3
    #: Settings of vLLM.
    vllm: VllmConfig = field(default_factory=VllmConfig)

    def clashes(self) -> Iterator[Problem]:
        if self.min_engines is not None and self.min_engines > self.num_engines:
            yield "min_engines", f"must be engine.num_engines={self.num_engines} or less"
        if self.batch_invariant and self.name not in ("auto", "transformers"):
            yield "batch_invariant", f"{self.name} has no such mode; set engine=transformers"

    @property
    def prompt_room(self) -> int:
        """Most tokens of a prompt that an answer of ``max_tokens`` can follow."""
        return self.max_model_len - self.max_tokens

    def sampling(
        self,
        stop_token_ids: Sequence[int],
        *,
        temperature: float | None = None,
        seed: int | None = None,
        conversation: int | None = None,
    ) -> SamplingParams:
        """How answers are drawn."""
        return SamplingParams(
            # Not ``or``: 0 is a temperature, which evaluations may ask for.
            temperature=self.temperature if temperature is None else temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            max_tokens=self.max_tokens,
            stop_token_ids=tuple(stop_token_ids),
            seed=seed,
            conversation=conversation,
        )
