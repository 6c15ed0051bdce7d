"""The market as a game: seats and scripted traders trade for one episode.

In every tick each seat decides once, then the scripted traders act and time advances. An answer is
an action as JSON, or a word about the market in focus (``rlforge.continuous.market.compact``).
"""

from __future__ import annotations

import functools
import json
import math
import random
from functools import partial

from rlforge.config import rules
from rlforge.config.complaints import InvalidValuesError
from rlforge.config.keys import conf_dir
from rlforge.continuous.config.market import COMPACT_LEVERAGE, STARTING_BALANCE, MarketConfig
from rlforge.continuous.market.actions import ActionError, Json
from rlforge.continuous.market.compact import Compact, is_compact
from rlforge.continuous.market.text import prompt, read
from rlforge.continuous.market.traders import Crowd, make_trader
from rlforge.continuous.market.world import World
from rlforge.errors import ConfigError, nearest
from rlforge.games.base import TurnGame, View
from rlforge.types import EndReason, EnvSpec


class MarketGame(TurnGame):
    """One episode. A seat's reward is tanh(profit / starting balance).

    A player that ended it by too many invalid answers gets -1. Raises ``ConfigError`` for an
    unknown preset.
    """

    def __init__(self, env: EnvSpec, seed: int) -> None:
        super().__init__(env, seed)
        self._config = load_market(env.id)
        self._world = World(self._config, seed)
        self._names = [f"player-{number}" for number in range(env.num_players)]
        for name in self._names:
            self._world.join(name)
        self._crowd = Crowd(self._world, seed)
        self._compact = Compact(self._config)
        self._decided = self._errors = 0
        self._feedback = ""

    @property
    def accepted(self) -> bool:
        return not self._feedback

    def step(self, action: str) -> None:
        player, state = self._player, self.view().state
        assert state is not None
        self._view = None
        # Refused answers count as turns, so that max_turns ends every game.
        self._turn += 1
        self._feedback = self._carry_out(player, action, state)
        if self._feedback:
            self._errors += 1
            if self._errors > self._spec.error_allowance:
                self._end("invalid_move", player)
                return
        else:
            self._errors = 0
            self._decided += 1
            if self._decided % len(self._names) == 0:
                self._crowd.act()
                self._world.tick()
        if self._world.ticks == self._config.episode_ticks:
            self._end("finished", None)
        elif self._out_of_turns:
            self._end("turn_limit", None)

    def reseed(self, seed: int) -> None:
        self._world.reseed(seed)

    def _look(self) -> View:
        state = self._world.state(self._names[self._player])
        focus = self._compact.focus(state)
        legal = self._compact.actions(state, focus)
        rounds = self._config.episode_ticks - self._world.ticks
        lines = [
            f"You are {self._names[self._player]}.",
            prompt(state, self._config.prompt_chars),
            f"{rounds} rounds are left.",
            f"Instead of JSON you may answer with one of these words about {focus}: "
            f"{', '.join(legal)}. yes, no, long and short stake "
            f"{', '.join(f'{100 * share:g} %' for share in self._config.stakes)} of the starting "
            f"balance with 1, 2 and 3, long and short with leverage {COMPACT_LEVERAGE:g}.",
            self._feedback,
        ]
        return View(
            player_id=self._player,
            observation="\n\n".join(line for line in lines if line),
            legal_actions=legal,
            board=self._compact.text(state, focus),
            retry=bool(self._feedback),
            state=state,
        )

    @property
    def _player(self) -> int:
        tick, place = divmod(self._decided, len(self._names))
        # The first seat rotates: it sees the market before the others move it.
        return (tick + place) % len(self._names)

    def _carry_out(self, player: int, answer: str, state: Json) -> str:
        """The reason why the answer was rejected; empty when it was accepted."""
        try:
            if is_compact(answer):
                action = self._compact.action(answer, state, self._compact.focus(state))
            else:
                given = read(answer)
                if given.action is None:
                    return given.feedback
                action = given.action
            problem = self._world.decide(self._names[player], action).problem
        except ActionError as error:
            problem = str(error)
        return problem and f"Your last action was not accepted: {problem}. Try another action."

    def _end(self, reason: EndReason, invalid_by: int | None) -> None:
        rewards = {}
        for player, name in enumerate(self._names):
            if reason == "finished":
                # The next episode has begun, and balances are reset.
                profit = self._world.episode_profits(name)[-1]
            else:
                # In a game that is cut off, holdings count at current prices.
                profit = self._world.worth(name) - STARTING_BALANCE
            rewards[player] = -1.0 if player == invalid_by else math.tanh(profit / STARTING_BALANCE)
        self._finish(rewards, reason, invalid_by)


#: Tiny models know words of games, or those of the market.
subject = "market"
make = MarketGame


def env_ids() -> list[str]:
    """``market`` for ``conf/market/default.yaml``, ``market-NAME`` for the others; sorted."""
    names = [path.stem for path in (conf_dir() / "market").glob("*.yaml")]
    return sorted("market" if name == "default" else f"market-{name}" for name in names)


@functools.cache
def load_market(env_id: str) -> MarketConfig:
    """The preset behind an id of ``env_ids``; ``ConfigError`` where none is."""
    if env_id not in env_ids():
        raise ConfigError(
            f"market {env_id!r} is unknown{nearest(env_id, env_ids())}; there are "
            f"{', '.join(env_ids())}"
        )
    # Imported late: a learner process loads no preset.
    from yaml import YAMLError, safe_load

    path = conf_dir() / "market" / f"{env_id.removeprefix('market').lstrip('-') or 'default'}.yaml"
    try:
        return rules.validated(MarketConfig, safe_load(path.read_text(encoding="utf-8")) or {})
    except (InvalidValuesError, YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None


def check(env: EnvSpec) -> None:
    """Raise ``ConfigError`` for an unknown preset or a market without seats."""
    if env.num_players < 1:
        raise ConfigError(f"env {env.id!r}: num_players must be 1 or more, got {env.num_players}")
    MarketGame(env, seed=0).view()


class MarketTrader:
    """A scripted trader at a seat of a market."""

    def __init__(self, kind: str, env: EnvSpec, rng: random.Random) -> None:
        if env.source != "market":
            raise ConfigError(f"a {kind} trader cannot play {env.id}: it trades on markets only")
        self._trader = make_trader(kind, load_market(env.id), rng)

    def act(self, view: View) -> str:
        assert view.state is not None
        return json.dumps(self._trader.decide(view.state))


# Insiders trade in the background only: they know what no seat observes.
noise_trader = partial(MarketTrader, "noise")
momentum_trader = partial(MarketTrader, "momentum")
value_trader = partial(MarketTrader, "value")
