"""Prompts that every new version must answer: positions of the games it plays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from rlforge.config.schema import RunConfig
from rlforge.games.actions import extract
from rlforge.games.base import View, make_game
from rlforge.games.prompts import Prompter
from rlforge.rollout.lineup import eval_envs
from rlforge.types import EnvSpec, SamplingParams, value


@value
class Probe:
    """A prompt and how its answer is read."""

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    extraction: str
    legal_actions: tuple[str, ...] | None = None

    def well_formed(self, text: str) -> bool:
        """Whether an action can be read from the answer; it need not be a legal one."""
        return extract(self.extraction, text, self.legal_actions).well_formed


def game_probes(
    config: RunConfig,
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
