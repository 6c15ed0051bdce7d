"""What a new version is asked at the games of its run: probes, and held-out games."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from rlforge.config.schema import GamesConfig
from rlforge.config.serving import ServingConfig
from rlforge.engines.base import Engine
from rlforge.errors import DeploymentError
from rlforge.games.base import View
from rlforge.games.prompts import Prompter
from rlforge.games.registry import make_game
from rlforge.league.names import parse_opponent
from rlforge.rollout.episode import play_game
from rlforge.rollout.evaluation import plan_evaluation
from rlforge.rollout.lineup import eval_envs
from rlforge.rollout.policies import SeatPolicies
from rlforge.serving.records import PairedOutcomes, Probe
from rlforge.types import EnvSpec, GameRecord, PolicyRef, SamplingParams

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
        settings = self._config.deployment
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


def game_probes(
    config: GamesConfig,
    tokenizer: Any,
    stop_token_ids: Sequence[int],
    *,
    number: int,
    max_tokens: int,
) -> tuple[Probe, ...]:
    """``number`` positions of random play in the environments of evaluation, answered greedily."""
    prompter, draw = Prompter(tokenizer), random.Random(config.seed)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=min(max_tokens, config.engine.max_tokens),
        stop_token_ids=tuple(stop_token_ids),
    )
    envs = eval_envs(config)
    probes = []
    for index in range(number):
        env = envs[index % len(envs)]
        view = _position(env, draw)
        _, ids = prompter.encode(env.prompt_template, view, env.action_extraction)
        probes.append(
            Probe(
                prompt_token_ids=ids,
                params=params,
                extraction=env.action_extraction,
                legal_actions=view.legal_actions,
            )
        )
    return tuple(probes)


def _position(env: EnvSpec, draw: random.Random) -> View:
    """What the player to move sees, a few random moves into a game that lists its moves."""
    game = make_game(env, draw.getrandbits(32))
    view = game.view()
    for _ in range(draw.randrange(6)):
        if not view.legal_actions:
            break
        game.step(draw.choice(view.legal_actions))
        if game.done:
            break
        view = game.view()
    return view
