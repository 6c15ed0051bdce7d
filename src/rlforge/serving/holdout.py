"""The same games for a new version and the current one: same seeds, same opponent, same draws."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rlforge.config.serving import DeploymentConfig, ServingConfig
from rlforge.engines.base import Engine
from rlforge.errors import DeploymentError
from rlforge.league.names import parse_opponent
from rlforge.rollout.episode import play_game
from rlforge.rollout.evaluation import plan_evaluation
from rlforge.rollout.lineup import eval_envs
from rlforge.rollout.policies import SeatPolicies
from rlforge.serving.records import PairedOutcomes
from rlforge.types import GameRecord, PolicyRef

#: Added to the run's seed: these are not the games of its evaluations.
_SEED_OFFSET = 7919


class GameHoldout:
    """Plays ``deployment.holdout_games`` games with each of two versions, seats swapped.

    A call gives the rewards of both, game by game; games that failed for either are left out, and
    DeploymentError is raised where that is more than one in ten.
    """

    def __init__(
        self,
        config: ServingConfig,
        engine: Engine,
        tokenizer: Any,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._config = config
        self._answers = SeatPolicies(config, tokenizer, engine, stop_token_ids)
        self._slots = asyncio.Semaphore(config.collector.num_eval_workers)

    async def __call__(self, candidate: PolicyRef, current: PolicyRef) -> PairedOutcomes:
        theirs, ours = await asyncio.gather(self._play(candidate), self._play(current))
        pairs = [
            (new.rewards[_focus(new)], old.rewards[_focus(old)])
            for new, old in zip(theirs, ours, strict=True)
            if new.error is None and old.error is None
        ]
        if len(pairs) < 0.9 * len(theirs):
            causes = [record.error for record in (*theirs, *ours) if record.error is not None]
            raise DeploymentError(
                f"{len(theirs) - len(pairs)} of {len(theirs)} held-out games failed; the last one: "
                f"{causes[-1]}"
            )
        return PairedOutcomes(
            candidate=tuple(new for new, _ in pairs), current=tuple(old for _, old in pairs)
        )

    async def _play(self, policy: PolicyRef) -> list[GameRecord]:
        settings: DeploymentConfig = self._config.deployment
        specs = plan_evaluation(
            eval_envs(self._config),
            [parse_opponent(settings.holdout_opponent)],
            policy,
            settings.holdout_games,
            step=0,
            seed=self._config.seed + _SEED_OFFSET,
        )

        async def play(index: int) -> GameRecord:
            async with self._slots:
                return await play_game(specs[index], self._answers.for_game(specs[index]))

        return await asyncio.gather(*(play(index) for index in range(len(specs))))


def _focus(record: GameRecord) -> int:
    """The seat of the measured policy; evaluations always have one."""
    assert record.spec.focus is not None
    return record.spec.focus
