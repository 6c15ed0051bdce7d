"""Prompts that every new version must answer: states of a market that traders have moved in."""

from __future__ import annotations

import dataclasses
import random

from rlforge.config.continuous import ContinuousConfig
from rlforge.continuous.population import SimulationState
from rlforge.continuous.prompting import AgentPrompter
from rlforge.serving.records import Probe
from rlforge.types import SamplingParams

#: Added to the run's seed: these are not the markets of its training or trials.
_SEED_OFFSET = 15_485_863


def market_probes(
    config: ContinuousConfig, speech: AgentPrompter, params: SamplingParams
) -> tuple[Probe, ...]:
    """``deployment.probes`` of them, answered greedily."""
    greedy = dataclasses.replace(
        params,
        temperature=0.0,
        max_tokens=min(config.deployment.probe_tokens, params.max_tokens),
    )
    draw = random.Random(config.seed + _SEED_OFFSET)
    life = SimulationState(config.market, 1, config.seed + _SEED_OFFSET)
    (agent,) = life.agents
    probes = []
    for _ in range(config.deployment.probes):
        for _ in range(draw.randrange(1, 6)):
            list(life.crowd.act())
            life.world.tick()
        question = speech.ask(life.world.state(agent))
        probes.append(
            Probe(
                prompt_token_ids=question.token_ids,
                params=greedy,
                extraction=config.model.action_extraction,
                legal_actions=question.legal,
            )
        )
    return tuple(probes)
