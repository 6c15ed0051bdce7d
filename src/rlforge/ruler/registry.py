"""The scorer of a configuration. A new scorer is a class and one line here."""

from __future__ import annotations

from collections.abc import Callable

from rlforge.config.ruler import REGRESSION_MODELS, JudgeConfig, RulerConfig
from rlforge.errors import ConfigError, nearest
from rlforge.ruler.base import DecisionScorer
from rlforge.ruler.features import FEATURES
from rlforge.ruler.judge_backends import (
    FORMS,
    ApiJudge,
    JudgeBackend,
    LocalJudge,
    LocalModel,
    check_endpoint,
)

#: ``ruler.judge.model`` for the run's own model.
ENGINE = "engine"


def make_scorer(
    config: RulerConfig, *, seed: int = 0, local: LocalModel | None = None
) -> DecisionScorer:
    """The scorer ``ruler.scoring_method``, with its memory if it has a model path.

    local: the model behind ``ruler.judge.model=engine``. Raises ConfigError for
    invalid values and a missing key, CheckpointError for a damaged state file.
    """
    check_ruler(config)
    return _SCORERS[config.scoring_method](config, seed, local)


def check_ruler(config: RulerConfig, *, keys: bool = True) -> None:
    """Raises ConfigError for the first value that cannot be.

    keys: also ask for the judge's API key, where a judge is configured.
    """
    judge = config.judge
    for key, given, choices in (
        ("scoring_method", config.scoring_method, tuple(_SCORERS)),
        ("features", config.features, FEATURES),
        ("regression.model", config.regression.model, REGRESSION_MODELS),
        ("judge.structured", judge.structured, ("auto", *FORMS)),
        ("judge.group_by", judge.group_by, ("time", "agent")),
    ):
        if given not in choices:
            raise ConfigError(
                f"ruler.{key}={given}: no such choice{nearest(given, choices)} "
                f"(there are {', '.join(choices)})"
            )
    for key, number, least in (
        ("min_agents", config.min_agents, 1),
        ("memory_windows", config.memory_windows, 1),
        ("memory_rows", config.memory_rows, 2),
        ("preference.max_pairs", config.preference.max_pairs, 1),
        ("preference.margin", config.preference.margin, 0),
        ("regression.trees", config.regression.trees, 1),
        ("judge.group_size", judge.group_size, 2),
        ("judge.max_answer_tokens", judge.max_answer_tokens, 1),
        ("judge.max_text_chars", judge.max_text_chars, 100),
        ("judge.retries", judge.retries, 0),
        ("judge.backoff_s", judge.backoff_s, 0),
        ("judge.max_concurrency", judge.max_concurrency, 1),
        ("judge.max_calls", judge.max_calls, 1),
        ("judge.max_tokens", judge.max_tokens, 1),
        ("judge.sampling_temperature", judge.sampling_temperature or 0.0, 0),
    ):
        if not number >= least:
            raise ConfigError(f"ruler.{key}={number}: must be {least} or more")
    for key, number in (
        ("temperature", config.temperature),
        ("preference.l2", config.preference.l2),
        ("preference.model_weight", config.preference.model_weight),
        ("regression.l2", config.regression.l2),
        ("judge.timeout_s", judge.timeout_s),
    ):
        if not number > 0:
            raise ConfigError(f"ruler.{key}={number}: must be above 0")
    if config.scoring_method == "judge":
        _check_judge(judge, keys)


def _check_judge(judge: JudgeConfig, keys: bool) -> None:
    if not judge.rubric.strip():
        raise ConfigError("ruler.judge.rubric is empty: say what makes a decision good")
    if keys and judge.model != ENGINE:
        check_endpoint(judge)


# Scorers are imported when they are made: every command checks a configuration, and should not wait
# for the import of their statistics libraries.


def _preference(config: RulerConfig, seed: int, local: LocalModel | None) -> DecisionScorer:
    from rlforge.ruler.preference import PreferenceScorer

    return PreferenceScorer(config, seed=seed)


def _regression(config: RulerConfig, seed: int, local: LocalModel | None) -> DecisionScorer:
    from rlforge.ruler.regression import RegressionScorer

    return RegressionScorer(config, seed=seed)


def _judge(config: RulerConfig, seed: int, local: LocalModel | None) -> DecisionScorer:
    from rlforge.ruler.judge import JudgeScorer

    backend: JudgeBackend
    if config.judge.model != ENGINE:
        backend = ApiJudge(config.judge)
    elif local is not None:
        backend = LocalJudge(config.judge, local)
    else:
        raise ConfigError(
            "ruler.judge.model=engine: there is no engine here; name openai:MODEL or "
            "openrouter:MODEL"
        )
    return JudgeScorer(config, backend, seed=seed)


_SCORERS: dict[str, Callable[[RulerConfig, int, LocalModel | None], DecisionScorer]] = {
    "preference": _preference,
    "regression": _regression,
    "judge": _judge,
}
