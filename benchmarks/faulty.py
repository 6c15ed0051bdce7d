"""A source of games that fail: ``source: faulty:Source`` plays TicTacToe of TextArena."""

from __future__ import annotations

import random
import time

from textarena.envs.registration import ENV_REGISTRY, register
from textarena.envs.TicTacToe.env import TicTacToeEnv

from rlforge import EnvSpec
from rlforge.games import textarena

ID = "TicTacToe-v0-faulty"
#: Share of the moves in which the environment raises, and in which it does not return. One that
#: does not is stopped after ten seconds, in which its collector plays no other game.
RAISES, HANGS = 0.0095, 0.0005


class Faulty(TicTacToeEnv):
    """TicTacToe, but for moves that raise or hang, drawn from the seed of the game."""

    def step(self, action: str) -> tuple[bool, dict[str, object]]:
        drawn = random.random()
        if drawn < RAISES:
            raise RuntimeError("planted")
        while drawn < RAISES + HANGS:
            time.sleep(0.01)
        return super().step(action)


register(
    id=ID, entry_point=Faulty, default_wrappers=ENV_REGISTRY["TicTacToe-v0-train"].default_wrappers
)


class Source:
    """Games of TextArena, with the faulty one among them."""

    def make(self, env: EnvSpec, seed: int) -> textarena.TextArenaGame:
        return textarena.make(env, seed)

    def check(self, env: EnvSpec) -> None:
        textarena.check(env)

    def env_ids(self) -> list[str]:
        return [ID]
