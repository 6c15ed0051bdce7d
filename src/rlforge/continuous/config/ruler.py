"""Settings of RULER, which scores the decisions of a window (group ``ruler``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from rlforge.config.rules import Count, Group, NotNegative, Positive, Range, Share, Text, Url, Whole

#: Default of ``ruler.judge.rubric``.
DEFAULT_RUBRIC = (
    "A good decision makes money for its agent at a sensible risk. Prefer decisions that follow "
    "from what the agent could know, that buy below and sell above what a thing is worth, and "
    "whose size and leverage fit the evidence and the balance. Prefer waiting to a trade without "
    "a reason. Noise, invalid actions and bets that could ruin the agent score low."
)


@dataclass
class PreferenceConfig(Group):
    """The preference model: Bradley-Terry with strengths that are linear in the features."""

    #: Rewards that differ by this or less give no pair.
    margin: NotNegative = 0.05
    #: Add pairs from the outcomes of the scored window to the learned model's scores.
    window_pairs: bool = True


@dataclass
class RegressionConfig(Group):
    """The model that predicts a reward from features."""

    #: ``ridge`` (linear) or ``gradient_boosting`` (trees).
    model: Literal["ridge", "gradient_boosting"] = "ridge"


@dataclass
class JudgeConfig(Group):
    """The language model that judges groups of decisions.

    Keys come from the environment: OPENAI_API_KEY, OPENROUTER_API_KEY, or LiteLLM's.
    """

    #: ``openai:MODEL`` or ``openrouter:MODEL``, ``litellm:PROVIDER/MODEL`` for any provider of
    #: LiteLLM (``rlforge[litellm]``), or ``engine``: the run's own model.
    model: Text = "openai:gpt-5-mini"
    #: Base URL of the endpoint; null: the provider's own.
    base_url: Url | None = None
    #: The criteria of a good decision.
    rubric: Text = DEFAULT_RUBRIC
    #: Decisions in one call, neighbours in time, which are scored relative to each other.
    group_size: Annotated[int, Range(2)] = 12
    #: Sampling temperature; null: the endpoint's own (``engine`` is greedy). A reasoning model that
    #: takes no other keeps its own.
    sampling_temperature: NotNegative | None = None
    #: Most tokens in one answer, thoughts included.
    max_answer_tokens: Count = 2048
    #: Most characters of what is shown of one decision, and of the lines that all of a group share.
    #: What names the market of the action stays; the metric ``judge_cut`` counts decisions that are
    #: cut.
    max_text_chars: Annotated[int, Range(100)] = 12_000
    #: Share of the groups that are asked once more in the reverse order, to see whether the judge
    #: scores by place; the mean of both scores counts.
    both_orders: Share = 0.1
    #: Tries after the first of a failed request, and questions after an unusable answer.
    retries: Whole = 2
    #: Seconds until a call counts as failed.
    timeout_s: Positive = 60.0
    #: Calls under way at once.
    max_concurrency: Count = 4
    #: Most questions for one window.
    max_calls: Count = 200
    #: Most tokens for one window, of prompts and answers together.
    max_tokens: Count = 1_000_000


@dataclass
class RulerConfig(Group):
    """How decisions are scored (group ``ruler``)."""

    #: ``preference``, ``regression``, ``judge`` or one of your own.
    scoring_method: str = "preference"
    #: Temperature of the scores: towards 0 they go to 0 and 1, for large values to 0.5. 1 leaves a
    #: judge's scores unchanged.
    temperature: Positive = 0.7
    #: Input of a scorer: ``state_action``, known when the decision was made, or ``with_outcome``,
    #: which adds its outcome.
    features: Literal["state_action", "with_outcome"] = "state_action"
    #: Folder of a scorer's learned state; null: only in memory.
    model_path: Text | None = None
    #: Fewest agents whose decisions are compared; 1: also those of a single agent.
    min_agents: Count = 2
    #: Windows that a learned scorer remembers.
    memory_windows: Count = 50
    #: Settings of ``scoring_method: preference``.
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)
    #: Settings of ``scoring_method: regression``.
    regression: RegressionConfig = field(default_factory=RegressionConfig)
    #: Settings of ``scoring_method: judge``.
    judge: JudgeConfig = field(default_factory=JudgeConfig)
