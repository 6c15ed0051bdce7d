"""Checks of a new version in the games of its run: probes, and held-out games."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from rlforge.continuous.config.serving import ServingConfig
from rlforge.continuous.serving.records import PROBE_TOKENS, PROBES, PairedOutcomes, Probe
from rlforge.engines.base import Engine
from rlforge.errors import DeploymentError
from rlforge.games.base import View
from rlforge.games.orientation import shown
from rlforge.games.prompts import Prompter
from rlforge.games.registry import make_game
from rlforge.league.names import parse_opponent
from rlforge.rollout.episode import play_game
from rlforge.rollout.evaluation import Pairing, plan_evaluation
from rlforge.rollout.lineup import eval_envs, other_models
from rlforge.rollout.policies import SeatPolicies
from rlforge.types import EnvSpec, GameRecord, GameSpec, PolicyRef, SamplingParams

#: Added to the run's seed, so that held-out games differ from those of its evaluations.
_SEED_OFFSET = 7919


class GameHoldout:
    """Plays ``deployment.holdout_games`` with two versions; a call returns the rewards of both."""

    def __init__(
        self, config: ServingConfig, engine: Engine, tokenizer: Any, stop_token_ids: Sequence[int]
    ) -> None:
        self._config = config
        others = other_models(config)
        self._answers = SeatPolicies(config, tokenizer, engine, stop_token_ids, others)
        self._slots = asyncio.Semaphore(config.collector.num_eval_workers)

    async def __call__(self, candidate: PolicyRef, current: PolicyRef) -> PairedOutcomes:
        theirs, ours = await asyncio.gather(self._play(candidate), self._play(current))
        pairs = [
            (new.rewards[_focus(new)], old.rewards[_focus(old)])
            for new, old in zip(theirs, ours, strict=True)
            if new.error is None and old.error is None
        ]
        # Games that fail for one version may be those that it would lose, so few may be left out.
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
        opponents = (parse_opponent(settings.holdout_opponent),)
        specs = plan_evaluation(
            [Pairing(env=env, opponents=opponents) for env in eval_envs(self._config)],
            policy,
            settings.holdout_games,
            step=0,
            # One seed for both versions, so that their games can be paired.
            seed=self._config.seed + _SEED_OFFSET,
        )

        async def play(spec: GameSpec) -> GameRecord:
            async with self._slots:
                return await play_game(spec, self._answers.for_game(spec))

        return await asyncio.gather(*map(play, specs))


def _focus(record: GameRecord) -> int:
    assert record.spec.focus is not None
    return record.spec.focus


def game_probes(
    config: ServingConfig, tokenizer: Any, stop_token_ids: Sequence[int]
) -> tuple[Probe, ...]:
    """``PROBES`` positions of random play in the environments of evaluation."""
    prompter, draw = Prompter(tokenizer, config.prompts), random.Random(config.seed)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=min(PROBE_TOKENS, config.engine.max_tokens),
        stop_token_ids=tuple(stop_token_ids),
    )
    envs = eval_envs(config)
    probes = []
    for index in range(PROBES):
        env = envs[index % len(envs)]
        view = shown(env, _position(env, draw)).view
        _, ids = prompter.encode(env.form, view)
        probes.append(
            Probe(
                prompt_token_ids=ids,
                params=params,
                extraction=env.form.extraction,
                legal_actions=view.legal_actions,
            )
        )
    return tuple(probes)


def _position(env: EnvSpec, draw: random.Random) -> View:
    """The view of the player to move, after up to five random moves if moves are listed."""
    game = make_game(env, draw.getrandbits(32))
    view = game.view()
    for _ in range(draw.randrange(6)):
        if not view.legal_actions:
            break
        # Openings alone would not show how a version plays.
        game.step(draw.choice(view.legal_actions))
        if game.done:
            break
        view = game.view()
    return view
