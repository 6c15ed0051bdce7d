"""Everything that can be known to be wrong with a continuous run before it starts."""

from __future__ import annotations

from rlforge.config.compose import Composed
from rlforge.config.continuous import ContinuousConfig
from rlforge.config.market import check_market
from rlforge.errors import RlforgeError, nearest
from rlforge.preflight.policy import check_policy
from rlforge.preflight.serving import check_deployment
from rlforge.ruler.registry import check_ruler
from rlforge.tracking.sinks import check_sinks
from rlforge.trajectories.grid import WindowGrid, window_start


def check_continuous(composed: Composed[ContinuousConfig], *, keys: bool = True) -> None:
    """Raise ConfigError for the first contradiction, unknown name or impossible value.

    keys: also ask for the API keys and packages that a run would need.
    """
    config = composed.config
    check_policy(composed, keys=keys)
    for group in ("store", "window", "decision_reward"):
        for key, problem in getattr(config, group).problems():
            raise composed.error(f"{group}.{key}", problem)
    check_market(config.market)
    check_ruler(config.ruler, keys=keys)
    check_deployment(config.deployment)
    check_sinks(config.tracker)
    _check_settings(composed, config)
    _check_time(composed, config)
    if config.learner.train == "full":
        raise composed.error(
            "learner.train", "what is deployed from window to window is an adapter; use lora"
        )


def _check_settings(composed: Composed[ContinuousConfig], config: ContinuousConfig) -> None:
    settings = config.continuous
    for key, given, choices in (
        ("select_by", settings.select_by, ("score", "reward", "all")),
        ("train_on", settings.train_on, ("reward", "score", "mix")),
    ):
        if given not in choices:
            raise composed.error(
                f"continuous.{key}",
                f"no such choice{nearest(given, choices)} (there are {', '.join(choices)})",
            )
    for key, least in (
        ("windows", 1),
        ("agents", 1),
        ("min_selected", 1),
        ("max_staleness", 0),
        ("compare_episodes", 0),
    ):
        given = getattr(settings, key)
        if given is not None and given < least:
            raise composed.error(f"continuous.{key}", f"must be {least} or more")
    if not 0 <= settings.score_weight <= 1:
        raise composed.error("continuous.score_weight", "must lie in [0, 1]")
    if config.serve.state_dir is not None:
        raise composed.error("serve.state_dir", "a continuous run keeps its versions with itself")
    if config.learner.schedule != "constant" and settings.windows is None:
        raise composed.error(
            "learner.schedule", "runs over continuous.windows, which has no end; use constant"
        )


def _check_time(composed: Composed[ContinuousConfig], config: ContinuousConfig) -> None:
    """Windows in which too few decisions can be made, or settle too late, are never ready."""
    window, market = config.window, config.market
    ticks = window.minutes / market.tick_minutes
    if window.min_trajectories_per_agent > ticks:
        raise composed.error(
            "window.min_trajectories_per_agent",
            f"an agent decides once per tick, and a window has {ticks:g}: window.minutes="
            f"{window.minutes:g}, market.tick_minutes={market.tick_minutes:g}",
        )
    if window.clock != "simulated":
        return
    try:
        start = window_start(config.continuous.start)
    except RlforgeError as error:
        raise composed.error("continuous.start", str(error)) from None
    if WindowGrid(window.minutes).id_of(start) != config.continuous.start:
        raise composed.error(
            "continuous.start", f"no window of {window.minutes:g} minutes begins then"
        )
    episode = market.tick_minutes * market.episode_ticks
    whole = abs(window.minutes / episode - round(window.minutes / episode)) < 1e-9
    if window.completeness == 1 and not whole and window.grace_seconds < episode * 60:
        raise composed.error(
            "window.grace_seconds",
            f"decisions are settled by the end of their episode, {episode:g} minutes at most "
            f"after they were made; wait for that ({episode * 60:g}), let windows last whole "
            "episodes, or lower window.completeness",
        )
