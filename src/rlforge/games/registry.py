"""Games of any source."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, Protocol

from rlforge.config.plugins import SOURCES
from rlforge.errors import ConfigError
from rlforge.games.base import Game, guarded
from rlforge.games.trial import Trial, trial
from rlforge.types import EnvSpec


class Source(Protocol):
    """A source of games: a module, or an object."""

    def make(self, env: EnvSpec, seed: int) -> Game:
        """A fresh game."""

    def check(self, env: EnvSpec) -> None:
        """Start the game once; ConfigError where that fails."""

    def env_ids(self) -> list[str]:
        """All ids, sorted."""


def make_game(env: EnvSpec, seed: int) -> Game:
    """A new game whose chance events follow from ``seed``.

    Example:
        >>> game = make_game(EnvSpec(id="kuhn_poker", source="openspiel"), seed=0)
        >>> view = game.view()
        >>> view.player_id, view.legal_actions
        (0, ('[check]', '[bet]'))
        >>> game.step("[check]")
        >>> game.done
        False
    """
    source, limit_s = env.source, env.timeout_s
    made: Game = guarded(SOURCES, source, limit_s, lambda: _source(source).make(env, seed))
    return made


def check_env(env: EnvSpec) -> None:
    """Play first turns of the game; ConfigError if that fails, or takes too long."""
    limits = [limit for limit in (env.max_turns, env.timeout_s) if limit is not None]
    if any(limit <= 0 for limit in limits) or env.error_allowance < 0:
        raise ConfigError(
            f"env {env.id!r}: max_turns and timeout_s must be positive and error_allowance not "
            f"negative, got {env.max_turns}, {env.timeout_s} and {env.error_allowance}"
        )
    if env.actions == "numbers" and env.source in ("textarena", "market"):
        raise ConfigError(
            f"env {env.id!r}: actions=numbers is for games of OpenSpiel; leave it out for those of "
            f"{env.source}"
        )
    with SOURCES.trial(env.source):
        _source(env.source).check(env)
    if (problem := tried(env).problem) is not None:
        raise ConfigError(f"env {env.id!r} cannot be played: {problem}; choose another one")


def tried(env: EnvSpec) -> Trial:
    """Findings of trial games."""
    # Only these fields change how a game goes, so specs that share them share trial games.
    rules = ("id", "source", "num_players", "max_turns", "timeout_s", "error_allowance", "actions")
    return _tried(EnvSpec(**{name: getattr(env, name) for name in rules}))


@lru_cache(maxsize=256)
def _tried(env: EnvSpec) -> Trial:
    return trial(lambda seed: make_game(env, seed), env.max_turns)


def env_ids(source: str) -> list[str]:
    return _source(source).env_ids()


def subject_of(source: str) -> Literal["games", "market"]:
    """Kind of words in which a source describes its games."""
    # A tiny model knows the words of one subject only.
    found: Literal["games", "market"] = getattr(_source(source), "subject", "games")
    return found


def _source(name: str) -> Source:
    # Imported on first use: a run does not load sources that it does not need.
    found = SOURCES.find(name)
    with SOURCES.trial(name):
        source: Source = found() if isinstance(found, type) else found
    return source
