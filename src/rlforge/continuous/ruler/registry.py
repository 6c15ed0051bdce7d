"""The scorer of a configuration."""

from __future__ import annotations

from rlforge.config.plugins import SCORERS
from rlforge.continuous.config.ruler import RulerConfig
from rlforge.continuous.ruler.base import DecisionScorer
from rlforge.continuous.ruler.judge_backends import (
    ApiJudge,
    JudgeBackend,
    LocalJudge,
    LocalModel,
    check_endpoint,
)
from rlforge.errors import ConfigError

#: ``ruler.judge.model`` for the run's own model.
ENGINE = "engine"


def make_scorer(
    config: RulerConfig, *, seed: int = 0, local: LocalModel | None = None
) -> DecisionScorer:
    """The scorer ``ruler.scoring_method``, with its memory if it has a model path.

    local: behind ``ruler.judge.model=engine``. Raises ConfigError for an unknown method and a
    missing key, CheckpointError for a damaged state file.
    """
    scorer: DecisionScorer = SCORERS.find(config.scoring_method)(config, seed, local)
    return scorer


def check_judge(config: RulerConfig) -> None:
    """Raises ConfigError where a judge is configured and its address or API key is missing."""
    if config.scoring_method == "judge" and config.judge.model != ENGINE:
        check_endpoint(config.judge)


# Scorers are imported when they are made: every command checks a configuration, and should not wait
# for the import of their statistics libraries.


def preference(config: RulerConfig, seed: int, local: LocalModel | None) -> DecisionScorer:
    """The scorer ``preference``."""
    from rlforge.continuous.ruler.preference import PreferenceScorer

    return PreferenceScorer(config, seed=seed)


def regression(config: RulerConfig, seed: int, local: LocalModel | None) -> DecisionScorer:
    """The scorer ``regression``."""
    from rlforge.continuous.ruler.regression import RegressionScorer

    return RegressionScorer(config, seed=seed)


def judge(config: RulerConfig, seed: int, local: LocalModel | None) -> DecisionScorer:
    """The scorer ``judge``."""
    from rlforge.continuous.ruler.judge import JudgeScorer

    backend: JudgeBackend
    if config.judge.model != ENGINE:
        backend = ApiJudge(config.judge)
    elif local is not None:
        backend = LocalJudge(config.judge, local)
    else:
        raise ConfigError(
            "ruler.judge.model=engine: there is no engine here; name openai:MODEL, "
            "openrouter:MODEL or litellm:PROVIDER/MODEL"
        )
    return JudgeScorer(config, backend, seed=seed)
