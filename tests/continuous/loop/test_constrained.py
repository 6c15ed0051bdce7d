"""Agents whose answers are held to the actions that their state allows."""

import functools
import json
import random

import pytest
from tests.factories import any_answer

from rlforge.config.compose import compose
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.loop.population import AgentModel, Labels, Population, SimulationState
from rlforge.continuous.market.actions import action_schema, check_form
from rlforge.continuous.market.trading import AgentPrompter
from rlforge.continuous.market.world import World
from rlforge.engines.grammars import Grammars, json_grammar
from rlforge.models.tiny.vocabulary import build_tokenizer
from rlforge.types import Completion


@pytest.fixture
def walk():
    tokenizer, draw = build_tokenizer([]), random.Random(0)
    return functools.partial(any_answer, Grammars(tokenizer, len(tokenizer)), tokenizer, draw)


def test_the_market_takes_nearly_every_action_that_the_schema_allows(walk):
    """Positions of futures may cost more than the balance, and prices move between agents."""
    config = MarketConfig(predictions=3, tickers=["ACME", "BOLT"])
    world = World(config, seed=3)
    names = [f"agent-{number}" for number in range(6)]
    for name in names:
        world.join(name)
    kinds, refused = set(), []
    for _ in range(24):
        for name in names:
            action = json.loads(walk(json_grammar(action_schema(world.state(name)))))
            check_form(action)
            receipt = world.decide(name, action)
            kinds.add(action["type"])
            refused += [] if receipt.accepted else [receipt.problem]
        world.tick()
    assert len(refused) <= 0.03 * 24 * len(names), refused
    assert {"BUY_SHARES", "SELL_SHARES", "OPEN_POSITION", "CLOSE_POSITION"} <= kinds
    assert {"CREATE_POST", "CREATE_COMMENT", "FOLLOW_USER", "NO_OP"} <= kinds


def test_an_agent_without_means_may_still_talk():
    world = World(MarketConfig(predictions=1, tickers=["ACME"]))
    world.join("agent")
    state = world.state("agent")
    state = state | {"portfolio": state["portfolio"] | {"balance": 0.4}}
    kinds = [kind["properties"]["type"]["const"] for kind in action_schema(state)["anyOf"]]
    assert kinds[0] == "CREATE_POST"
    assert kinds[-1] == "NO_OP"


async def test_every_answer_of_constrained_agents_is_an_action(walk):
    config = compose(
        [
            "market=prose",
            "model.prompt_template=default",
            "model.action_extraction=json",
            "engine.max_model_len=4096",
            "continuous.constrained=true",
            "continuous.agents=4",
        ],
        root=ContinuousConfig,
    ).config
    prompter = AgentPrompter(config, config.market, build_tokenizer([]), constrained=True)
    decided = []

    async def ask(agent_id, prompt, draw, grammar=None):
        assert grammar is not None
        return Completion(text=walk(grammar), prompt_token_ids=prompt)

    async def record(tick):
        decided.extend(one for one in tick.decisions if one.agent_id.startswith("agent-"))

    population = Population(
        SimulationState(config.market, 4, 0),
        AgentModel(prompter=prompter, ask=ask, name="model", seed=0),
        Labels(
            prefix="test",
            now=lambda state: state.world.minute * 60,
            window_of=lambda moment: "2024-11-13-10:00",
        ),
        lambda settled: 0.0,
        record,
    )
    for _ in range(6):
        await population.tick()
    assert len(decided) == 24
    assert not [one.action for one in decided if "no action" in one.action.get("problem", "")]
