"""The configuration of the pool of opponents (group ``pool``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rlforge.config.prompts import template_args_problem
from rlforge.config.rules import (
    Count,
    Group,
    Length,
    NotNegative,
    Positive,
    Problem,
    Text,
    Url,
    Whole,
)


@dataclass
class ApiSettings(Group):
    """Models ``openai:MODEL``, ``openrouter:MODEL`` and, with ``rlforge[litellm]``,
    ``litellm:PROVIDER/MODEL``.

    Keys come from the environment: OPENAI_API_KEY, OPENROUTER_API_KEY, or the provider's.
    """

    #: Base URL for ``openai:MODEL``; null is the library's default.
    openai_base_url: Url | None = None
    #: Base URL for ``litellm:PROVIDER/MODEL``; null is the provider's.
    litellm_base_url: Url | None = None
    #: Seconds until a request counts as failed.
    timeout_s: Positive = 60.0
    #: Requests under way at once.
    max_concurrency: Count = 32
    #: Most tokens in one answer; null: the endpoint's own limit.
    max_tokens: Count | None = 1024
    #: Sampling temperature; null, and for models that take no other, the endpoint's own.
    temperature: NotNegative | None = 0.7
    #: Prompt template that asks them, whatever the trained model's is.
    prompt_template: str = "chat-actions"
    #: Dollars after which no further game with API players begins, or no trader is asked.
    max_cost: Positive | None = None
    #: [prompt, answer]: dollars for a million tokens, where the provider does not say what an
    #: answer cost, as OpenRouter, and LiteLLM for models that it knows, do. null: not known.
    prices: Annotated[list[NotNegative], Length(2)] | None = None


@dataclass
class ApiConfig(ApiSettings):
    """API models as opponents."""

    #: How their actions are read.
    action_extraction: str = "boxed"
    #: Most games with API players that begin in a run; null: any number. Beyond it the pool draws
    #: other opponents, and evaluations leave these out. A group of games that has begun is played
    #: to its end.
    max_games: Count | None = None


@dataclass
class HfSettings(Group):
    """Other local models, ``hf:ORG/MODEL`` or ``hf:FOLDER``.

    Every engine holds each of them, beside the trained model.
    """

    #: Prompt template that asks them, whatever the trained model's is. A model without a chat
    #: template gets ``default`` where it needs one.
    prompt_template: str = "chat-actions"
    #: Arguments of their chat templates, as ``{enable_thinking: false}``.
    chat_template_args: dict[str, Any] = field(default_factory=dict)
    #: Data type of their weights; ``auto``: bfloat16 where the hardware computes in it.
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    #: Sampling temperature, in training and in evaluations; 0 takes the likeliest tokens.
    temperature: NotNegative = 0.7
    #: Most tokens in one answer.
    max_tokens: Count = 1024
    #: Most tokens of prompt and answer together, at most what the model has positions for.
    max_model_len: Count = 4096
    #: Answers of each model that are generated at the same time in one engine.
    max_parallel_seq: Count = 32

    def clashes(self) -> Iterator[Problem]:
        if problem := template_args_problem(self.chat_template_args):
            yield "chat_template_args", problem


@dataclass
class HfConfig(HfSettings):
    """Other local models as opponents."""

    #: How their actions are read.
    action_extraction: str = "boxed"


@dataclass
class PoolConfig(Group):
    """The learner's opponents (group ``pool``)."""

    #: How opponents are drawn: ``fixed``, ``mirror``, ``lagged``, ``random``, ``match_quality``,
    #: ``ts_dist``, ``exploration``, ``prioritized``, ``fictitious``, ``nash``, ``alpha_rank`` or
    #: one of your own.
    mode: str = "mirror"
    #: Versions kept active as opponents, the current one included.
    max_active_lora: Count = 5
    #: Versions that stay: the ``newest``; the first, the current one, and others ``spaced`` evenly
    #: between them; the ``strongest`` by mean rating; or the most ``diverse`` by their results. One
    #: that has left does not come back.
    history: Literal["newest", "spaced", "strongest", "diverse"] = "newest"
    #: Least updates from one version that stays to the next; those between are active only while
    #: they are current.
    keep_every: Count = 1
    #: [low, high] versions behind the current one, for mode ``lagged``; 1 is the previous one.
    #: null: all that are active.
    lag_range: Annotated[list[Whole], Length(2)] | None = None
    #: Names: a scripted player, ``base``, ``checkpoint:DIR``, ``hf:ORG/MODEL``, ``hf:FOLDER``,
    #: ``openai:M``, ``openrouter:M`` or ``litellm:P/M``.
    fixed_opponents: list[Text] = field(default_factory=list)
    #: Beta of the TrueSkill ratings: difference of skill that wins about 76 % of games. null: 4.17,
    #: half of the deviation of a newcomer.
    rating_beta: Positive | None = None
    #: Whether random, match_quality, ts_dist, exploration, prioritized, nash and alpha_rank may
    #: draw the current version, too, and not only where there is no other.
    include_current: bool = False
    #: Softmax temperature, in the unit of the mode's score; for alpha_rank 1 / alpha. null: 0.2 for
    #: match_quality and exploration, 4.17 rating points for ts_dist, else 1.
    temperature: Positive | None = None
    #: For mode ``prioritized``, with the learner's probability p to win: (1 - p)^power (``hard``)
    #: or p (1 - p) (``even``).
    weighting: Literal["hard", "even"] = "hard"
    #: The exponent of ``hard``; a larger one prefers opponents that beat the learner more.
    power: Positive = 2.0
    #: API opponents, in pool and evaluation.
    api: ApiConfig = field(default_factory=ApiConfig)
    #: Other local models, in pool and evaluation.
    hf: HfConfig = field(default_factory=HfConfig)

    @property
    def lags(self) -> tuple[int, int]:
        """``lag_range``; without it, all active versions but the current one."""
        # The current version is 0 versions back, and is one of the active ones.
        low, high = self.lag_range or (1, self.max_active_lora - 1)
        return low, high

    def clashes(self) -> Iterator[Problem]:
        low, high = self.lags
        if self.lag_range is not None and low > high:
            yield "lag_range", "must be [low, high] with 0 <= low <= high"
        if self.mode == "fixed" and not self.fixed_opponents:
            yield "mode", "needs opponents; add pool.fixed_opponents=[random_legal], for example"
        if self.mode == "lagged" and self.max_active_lora < 2:
            yield "max_active_lora", "leaves pool.mode=lagged no former version; raise it to 2"
        elif self.mode == "lagged" and high >= self.max_active_lora:
            yield (
                "lag_range",
                f"reaches {high} versions back, outside the active window of "
                f"pool.max_active_lora={self.max_active_lora} (current one included); "
                "lower the one or raise the other",
            )
        if self.mode == "lagged" and self.history != "newest" and self.lag_range is not None:
            yield (
                "lag_range",
                f"cannot be counted where pool.history={self.history} leaves out versions; set it "
                "to null, which draws any of those that stay, or pool.history=newest",
            )
        least = {"newest": 1, "spaced": 3}.get(self.history, 2)
        if self.max_active_lora < least:
            yield (
                "history",
                f"chooses among former versions; raise pool.max_active_lora to {least} or more, "
                "current version included",
            )
