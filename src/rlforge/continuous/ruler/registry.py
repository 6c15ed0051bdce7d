"""The scorer of a configuration."""

from __future__ import annotations

from rlforge.config.plugins import SCORERS
from rlforge.continuous.config.ruler import RulerConfig
from rlforge.continuous.ruler.base import DecisionScorer
from rlforge.continuous.ruler.judge_backends import ENGINE, LocalModel, check_endpoint


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
