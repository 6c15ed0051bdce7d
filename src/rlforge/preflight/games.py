"""Everything that can be known to be wrong before a directory or a process exists."""

from __future__ import annotations

from rlforge.config.compose import Composed
from rlforge.config.schema import GamesConfig, GrpoConfig, RunConfig
from rlforge.engines.openai import check_api
from rlforge.errors import ConfigError
from rlforge.games.actions import check_extraction
from rlforge.games.players import check_player
from rlforge.games.prompts import check_template
from rlforge.games.registry import SOURCES, check_env, make_game
from rlforge.league.names import parse_opponent
from rlforge.preflight.policy import check_policy
from rlforge.rewards.pipeline import RewardPipeline
from rlforge.rollout.lineup import env_spec, eval_envs, eval_opponents, train_envs
from rlforge.tracking.sinks import check_sinks

MODES_WITH_PAST = ("lagged",)


def validate(composed: Composed[RunConfig], *, keys: bool = True) -> None:
    """Raise ConfigError for the first contradiction, unknown name or impossible value.

    keys: also ask for the API keys and packages that a run would need; looking at a preset needs
    none.
    """
    check_policy(composed, keys=keys)
    check_lineup(composed, keys=keys)
    _check_algorithm(composed)
    _check_batches(composed)
    RewardPipeline(composed.config.rewards)
    check_sinks(composed.config.tracker)


def check_lineup(composed: Composed[GamesConfig], *, keys: bool = True) -> None:
    """The part of ``validate`` about environments, opponents and evaluations."""
    for check in (_check_envs, _check_pool, _check_evaluations):
        check(composed)
    if keys:
        _check_keys(composed)


def _check_envs(composed: Composed[GamesConfig]) -> None:
    config = composed.config
    if not config.env.train:
        raise composed.error("env.train", "names no environment; add at least one")
    for group, entries in (("train", config.env.train), ("eval", config.env.eval)):
        for index, entry in enumerate(entries):
            key = f"env.{group}.{index}"
            if entry.weight <= 0:
                raise composed.error(f"{key}.weight", "must be above 0")
            for name in ("max_turns", "timeout_s"):
                if getattr(entry, name) <= 0:
                    raise composed.error(f"{key}.{name}", "must be above 0")
            if entry.error_allowance < 0:
                raise composed.error(f"{key}.error_allowance", "must not be negative")
            if entry.source not in SOURCES:
                raise composed.error(f"{key}.source", f"no such source: {', '.join(SOURCES)}")
            spec = env_spec(entry, config.model)
            for part, check in (
                ("id", check_env),
                ("prompt_template", lambda spec: check_template(spec.prompt_template)),
                ("action_extraction", lambda spec: check_extraction(spec.action_extraction)),
            ):
                try:
                    check(spec)
                except ConfigError as error:
                    raise composed.error(f"{key}.{part}", str(error)) from None
            if spec.prompt_template == "board" and make_game(spec, seed=0).view().board is None:
                raise composed.error(
                    f"{key}.id",
                    "has no compact board for prompt_template=board (the tiny model's); choose "
                    "another game, or another model and template",
                )


def _check_pool(composed: Composed[GamesConfig]) -> None:
    config = composed.config
    pool = config.pool
    if pool.mode == "fixed" and not pool.fixed_opponents:
        raise composed.error(
            "pool.mode", "needs opponents; add pool.fixed_opponents=[random_legal], for example"
        )
    if len(pool.lag_range) != 2 or not 0 <= pool.lag_range[0] <= pool.lag_range[1]:
        raise composed.error("pool.lag_range", "must be [low, high] with 0 <= low <= high")
    if pool.mode in MODES_WITH_PAST and pool.lag_range[1] >= pool.max_active_lora:
        raise composed.error(
            "pool.lag_range",
            f"reaches {pool.lag_range[1]} versions back, outside the active window of "
            f"pool.max_active_lora={pool.max_active_lora} (current one included); "
            "lower the one or raise the other",
        )
    for key, names in (
        ("pool.fixed_opponents", pool.fixed_opponents),
        ("eval.opponents", config.eval.opponents),
    ):
        specs = train_envs(config) if key.startswith("pool") else eval_envs(config)
        for name in names:
            try:
                policy = parse_opponent(name)
                for spec in specs if policy.kind == "scripted" else ():
                    check_player(policy.path_or_name or name, spec)
            except ConfigError as error:
                raise composed.error(key, str(error)) from None


def _check_keys(composed: Composed[GamesConfig]) -> None:
    pool = composed.config.pool
    names = {"pool.fixed_opponents": pool.fixed_opponents}
    names["eval.opponents"] = composed.config.eval.opponents
    for key, opponents in names.items():
        for name in opponents:
            if parse_opponent(name).kind == "api":
                try:
                    check_api(name, pool.api)
                except ConfigError as error:
                    raise composed.error(key, str(error)) from None


def _check_batches(composed: Composed[RunConfig]) -> None:
    config = composed.config
    learner, buffer = config.learner, config.buffer
    rows = learner.mini_batch_size
    if config.buffer.kind == "step" and rows is not None and learner.batch_size % rows:
        raise composed.error(
            "learner.mini_batch_size", f"does not divide learner.batch_size={learner.batch_size}"
        )
    if learner.batch_size % learner.optimizer_steps:
        raise composed.error(
            "learner.optimizer_steps", f"does not divide learner.batch_size={learner.batch_size}"
        )
    needed = learner.batch_size * learner.batch_delay_buffer
    if learner.batch_delay_buffer < 1:
        raise composed.error("learner.batch_delay_buffer", "must be 1 or more")
    if needed > buffer.max_size:
        raise composed.error(
            "buffer.max_size",
            f"never holds the {needed:g} samples that an update waits for "
            f"(learner.batch_size={learner.batch_size} x batch_delay_buffer); raise it",
        )
    if learner.save_every > buffer.max_staleness + 1:
        raise composed.error(
            "learner.save_every",
            f"games would wait for a version that is never published: at most "
            f"{buffer.max_staleness + 1} with buffer.max_staleness={buffer.max_staleness}",
        )
    if learner.shard_weights and learner.num_learners == 1:
        raise composed.error(
            "learner.shard_weights",
            "divides the weights over several ranks; raise learner.num_learners, or switch it off",
        )


def _check_evaluations(composed: Composed[GamesConfig]) -> None:
    config = composed.config
    cap, opponents = config.eval.max_games_per_checkpoint, eval_opponents(config)
    for spec in eval_envs(config) if cap is not None else ():
        if cap is not None and cap < spec.num_players * len(opponents):
            raise composed.error(
                "eval.max_games_per_checkpoint",
                f"leaves some of the {len(opponents)} opponents without a game in {spec.id}",
            )
    if config.eval.games % 2 and any(spec.num_players == 2 for spec in eval_envs(config)):
        raise composed.error("eval.games", "must be even: every game is played from both seats")


def _check_algorithm(composed: Composed[RunConfig]) -> None:
    config = composed.config
    algorithm = config.algorithm
    if isinstance(algorithm, GrpoConfig):
        if algorithm.group_size < 2:
            raise composed.error("algorithm.group_size", "must be 2 or more to compare games")
        if config.buffer.kind != "episode":
            raise composed.error("algorithm.name", "compares whole games; use buffer=episode")
        seats = max(env.num_players for env in config.env.train)
        share = algorithm.group_size * (seats if config.pool.mode == "mirror" else 1)
        if config.learner.batch_size % share:
            raise composed.error(
                "learner.batch_size",
                f"must be a multiple of {share}: groups of {algorithm.group_size} games are "
                "learned from whole, with every trained seat",
            )
    if algorithm.name in ("a2c", "ppo") and config.buffer.kind != "episode":
        raise composed.error("algorithm.name", "credits turns along a game; use buffer=episode")
