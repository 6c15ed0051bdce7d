"""Who gives the answers that a supervised run learns; found by ``SftConfig.teachers``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlforge.config.compose import Composed
from rlforge.config.schema import RunConfig
from rlforge.config.sft import SftConfig
from rlforge.kinds import Say
from rlforge.league.names import parse_opponent
from rlforge.preflight.policy import Problems
from rlforge.rollout.datasets import AnswerEncoder
from rlforge.samples import Sample
from rlforge.types import PolicyRef


class Players:
    """Players of the games in ``env.train``; those who act elsewhere derive from them."""

    #: The command that trains on from what they teach.
    command = RunConfig.command

    def problems(self, composed: Composed[SftConfig], *, keys: bool) -> Problems:
        """Problems of the players, and of where they act. keys: as of ``RunKind.check``."""
        from rlforge.preflight.sft import game_problems

        return game_problems(composed, keys=keys)

    def check_prompts(self, config: SftConfig) -> None:
        """Raise ConfigError where prompts leave no room for an action."""
        from rlforge.preflight.games import check_room

        if config.data.players:
            check_room(config)

    def opponents(self, config: SftConfig) -> Mapping[str, Sequence[PolicyRef]]:
        """The policies among them, by the key that names them."""
        return {"data.players": [*map(parse_opponent, config.data.players)]}

    async def answers(
        self, config: SftConfig, run_dir: Path, encoder: AnswerEncoder, out: Counter[str], say: Say
    ) -> list[Sample]:
        """All answers as samples. out: counts those that are none, by reason."""
        from rlforge.rollout.demonstrations import answers_in_games

        return await answers_in_games(config, run_dir, encoder, out, say)


PLAYERS = Players()
