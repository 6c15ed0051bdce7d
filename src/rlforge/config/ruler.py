"""Settings of RULER, which scores the decisions of a window (group ``ruler``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlforge.config.rules import Group

#: What the judge is told to look for, unless ``ruler.judge.rubric`` says something else.
DEFAULT_RUBRIC = (
    "A good decision makes money for its agent at a sensible risk. Prefer decisions that follow "
    "from what the agent could know, that buy below and sell above what a thing is worth, and "
    "whose size and leverage fit the evidence and the balance. Prefer waiting to a trade without "
    "a reason. Noise, invalid actions and bets that could ruin the agent score low."
)


#: What ``ruler.regression.model`` may be.
REGRESSION_MODELS = ("ridge", "gradient_boosting")


@dataclass
class PreferenceConfig(Group):
    """The preference model: Bradley-Terry with strengths that are linear in the features."""

    #: Most pairs that one window gives; drawn by seed where there are more.
    max_pairs: int = 4000
    #: Rewards that differ by this or less are a tie, and give no pair.
    margin: float = 0.05
    #: Weight of the L2 penalty on the learned weights (of standardised features).
    l2: float = 1.0
    #: Let the outcomes of the scored window speak, too, as pairs beside the learned model.
    window_pairs: bool = True
    #: Weight of the learned model beside those pairs: with 1 it counts as much as all pairs that
    #: a decision is in on average.
    model_weight: float = 2.0


@dataclass
class RegressionConfig(Group):
    """The model that predicts a reward from features."""

    #: ``ridge`` (linear) or ``gradient_boosting`` (trees).
    model: str = "ridge"
    #: Weight of the L2 penalty: of ridge's weights, or of the trees' leaves.
    l2: float = 1.0
    #: Trees of ``gradient_boosting``.
    trees: int = 100


@dataclass
class JudgeConfig(Group):
    """The language model that judges groups of decisions.

    Keys come from the environment only: OPENAI_API_KEY, OPENROUTER_API_KEY.
    """

    #: ``openai:MODEL`` or ``openrouter:MODEL`` behind HTTP, or ``engine``: the run's own model.
    model: str = "openai:gpt-5-mini"
    #: Base URL of the endpoint; null is the provider's own.
    base_url: str | None = None
    #: What makes a decision good, in words.
    rubric: str = DEFAULT_RUBRIC
    #: Decisions in one call. They are scored relative to each other.
    group_size: int = 12
    #: ``time``: neighbours in time, of all agents; ``agent``: decisions of one agent.
    group_by: str = "time"
    #: Sampling temperature of the judge; null leaves the endpoint's own.
    sampling_temperature: float | None = 0.0
    #: Form of the answer: ``json_schema``, ``json_object``, ``text``, or ``auto``: the first of
    #: them that the endpoint accepts.
    structured: str = "auto"
    #: Most tokens in one answer.
    max_answer_tokens: int = 2048
    #: Characters kept of a decision's text, and of what all texts of a group begin with.
    max_text_chars: int = 6000
    #: Tries after the first, of a group whose call failed or whose answer is no good.
    retries: int = 2
    #: Seconds before the second try; doubled with each further one, 8 at most.
    backoff_s: float = 0.5
    #: Seconds until a call counts as failed.
    timeout_s: float = 60.0
    #: Calls under way at once.
    max_concurrency: int = 4
    #: Most calls for one window, tries included.
    max_calls: int = 200
    #: Most tokens for one window, of prompts and answers together.
    max_tokens: int = 1_000_000
    #: Keep good answers by content: in ``judge.sqlite`` under ``ruler.model_path``, or in memory.
    cache: bool = True


@dataclass
class RulerConfig(Group):
    """How decisions are scored (group ``ruler``)."""

    #: ``preference``, ``regression`` or ``judge``.
    scoring_method: str = "preference"
    #: How sharply scores tell better from worse: towards 0 they part to 0 and 1, with large
    #: values they close up at 0.5. 1 leaves a judge's own numbers as they are.
    temperature: float = 0.7
    #: What a scorer sees: ``state_action``, what was known when the decision was made, or
    #: ``with_outcome``, also what came of it.
    features: str = "state_action"
    #: Directory in which a scorer keeps what it learned; null keeps it in memory.
    model_path: str | None = None
    #: Agents that must be there for decisions to be compared; 1 also compares the decisions of a
    #: single agent with each other.
    min_agents: int = 2
    #: Windows that a learned scorer remembers; older ones are forgotten first.
    memory_windows: int = 50
    #: Decisions remembered of each window; drawn by seed where there are more.
    memory_rows: int = 1000
    #: Settings of ``scoring_method: preference``.
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)
    #: Settings of ``scoring_method: regression``.
    regression: RegressionConfig = field(default_factory=RegressionConfig)
    #: Settings of ``scoring_method: judge``.
    judge: JudgeConfig = field(default_factory=JudgeConfig)
