"""Continuous training on episodes of a function of one's own."""

from __future__ import annotations

import asyncio

import pytest
from tests import factories

from rlforge.continuous.decisions.records import WindowGrid
from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.continuous.loop.episodes import EpisodesDriver, Session, SessionModel
from rlforge.continuous.loop.run import ContinuousRun
from rlforge.engines.grammars import json_grammar
from rlforge.errors import ConfigError, EngineDeadError, RunError
from rlforge.record.files import read_jsonl
from rlforge.types import Completion

EPISODES = (
    "continuous.source=episodes",
    "continuous.compare_episodes=0",
    "continuous.select_by=all",
    "continuous.control_agents=2",
    "window.min_actions=0",
    "window.min_trajectories_per_agent=1",
    "episodes.per_agent=6",
)


def rows(run_dir):
    return read_jsonl(run_dir / "windows.jsonl")


def noted(context):
    RUNS.append(ContinuousRun(context))
    return RUNS[-1]


#: What the functions below saw, and the runs that called them.
PLAYED: list[tuple[str, int, int]] = []
RUNS: list[ContinuousRun] = []


async def twice(session):
    PLAYED.append((session.agent, session.number, session.seed))
    answers = [await session.complete("market bet p5") for _ in range(2)]
    return sum(1.0 if sum(answer.encode()) % 2 else -1.0 for answer in answers) / 2


async def often_fails(session):
    if session.number % 4:
        raise LookupError("no such task")
    return await twice(session)


async def always_fails(session):
    raise LookupError("no such task")


async def says_nothing(session):
    await session.complete("market bet p5")


@pytest.fixture(autouse=True)
def nothing_played():
    PLAYED.clear()


def test_a_model_learns_from_episodes_of_a_function(make_config, execute):
    config = make_config(
        *EPISODES,
        f"episodes.function={__name__}:twice",
        "continuous.windows=3",
        "continuous.agents=8",
        "learner.epochs=4",
        "learner.learning_rate=1e-2",
        "algorithm.kl.coef=0",
    )
    run_dir = execute(config)
    found = rows(run_dir)
    assert [row["version"] for row in found] == ["step-1", "step-2", "step-3"]
    assert [row["trajectories"] for row in found] == [(8 + 2) * 6 * 2] * 3
    assert found[-1]["policy_reward"] > found[0]["policy_reward"] + 0.3
    assert found[-1]["reward_difference"] > 0.3
    numbers = sorted(number for _, number, _ in PLAYED)
    assert numbers == list(range(3 * 10 * 6))
    assert len({seed for _, _, seed in PLAYED}) == len(PLAYED)
    with TrajectoryStore(run_dir / "store") as store:
        decisions = store.decisions()
    own = [d for d in decisions if d.agent_id == "agent-1"]
    assert [d.id for d in own] == sorted(d.id for d in own)
    assert own[0].state == {"prompt": "market bet p5"}
    assert {d.metadata.provider for d in decisions if d.agent_id == "control-1"} == {"control"}


def test_episodes_that_fail_are_named_and_the_others_are_learned_from(make_config, execute):
    name = f"episodes.function={__name__}:often_fails"
    run_dir = execute(make_config(*EPISODES, name, "continuous.windows=1"))
    (row,) = rows(run_dir)
    assert row["trajectories"] == 2 * len(PLAYED) == 2 * 9
    logged = (run_dir / "logs" / "run.log").read_text()
    assert logged.count(f"ends without a result: episode function '{__name__}:often_fails'") == 27
    assert f"LookupError: no such task ({__file__}, line" in logged


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("always_fails", "LookupError: no such task"),
        ("says_nothing", "answer 1 of 1 has no reward"),
    ],
)
def test_a_window_in_which_every_episode_fails_ends_the_run(
    make_config, execute, function, problem
):
    with pytest.raises(RunError, match=f"no episode of 2024-11-13-10:00 came to its .*{problem}"):
        execute(make_config(*EPISODES, f"episodes.function={__name__}:{function}"))


@pytest.mark.parametrize(
    ("ask_fails", "record_fails", "problem"),
    [
        (EngineDeadError("engine 0 ended"), None, "the engine is gone: engine 0 ended"),
        (None, RunError("no space left"), "no space left"),
    ],
)
async def test_a_dead_engine_or_a_store_that_takes_nothing_ends_the_run_at_once(
    make_config, tmp_path, ask_fails, record_fails, problem
):
    says, asked = Says(*["hi"] * 100), 0

    async def ask(agent, prompt, draw, grammar=None):
        nonlocal asked
        asked += 1
        if ask_fails is not None and asked > 3:
            raise ask_fails
        return await says(agent, prompt, draw)

    async def record(decisions):
        if record_fails is not None:
            raise record_fails

    config = make_config(*EPISODES, f"episodes.function={__name__}:twice")
    begin, end = WindowGrid(config.window.minutes).span(config.continuous.start)
    with TrajectoryStore(tmp_path / "store") as store:
        driver = EpisodesDriver(config, store, TOKENIZER, ask, begin, asyncio.Event(), record)
        with pytest.raises(ExceptionGroup) as raised:
            await driver.advance_to(end)
    assert raised.group_contains(RunError, match=problem)
    assert asked < 20, "the agents' first episodes of 6, two answers each"


async def ends_the_run(session):
    if len(PLAYED) == 20:
        RUNS[-1].stop()
    return await twice(session)


def test_a_resumed_run_plays_the_episodes_that_are_missing(make_config, execute):
    name = f"episodes.function={__name__}:ends_the_run"
    config = make_config(*EPISODES, name, "continuous.windows=2")
    run_dir = execute(config, controller=noted)
    assert 20 < len(PLAYED) < 30
    execute(config, controller=noted)
    assert [row["trajectories"] for row in rows(run_dir)] == [6 * 6 * 2] * 2
    # Those under way are cancelled and played again, and none that was recorded.
    assert {number for _, number, _ in PLAYED} == set(range(2 * 6 * 6))
    assert len(PLAYED) <= 2 * 6 * 6 + 6
    with TrajectoryStore(run_dir / "store") as store:
        ids = [decision.id for decision in store.decisions()]
    assert len(ids) == len(set(ids)) == 2 * 6 * 6 * 2


# ---------------------------------------------------------------- sessions


TOKENIZER = factories.byte_tokenizer(
    chat_template="{% for tool in tools or [] %}[{{ tool.function.name }}] {% endfor %}"
    "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}assistant"
)


class Says:
    def __init__(self, *texts):
        self.texts = texts
        self.asked = []
        self.grammars = []

    async def __call__(self, agent_id, prompt, draw, grammar=None):
        text = self.texts[len(self.asked)]
        self.asked.append((TOKENIZER.decode(prompt), draw))
        self.grammars.append(grammar)
        ids = tuple(TOKENIZER.encode(text))
        logprobs = (-0.1,) * len(ids)
        return Completion(text=text, prompt_token_ids=prompt, token_ids=ids, logprobs=logprobs)


@pytest.fixture
def make_session(make_config):
    """The session of episode ``number`` with a model that ``says`` something."""

    def make(says, number=0):
        return Session("agent-1", number, 7, SessionModel(make_config(), TOKENIZER, says))

    return make


ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


async def test_tools_are_called_and_their_results_are_in_the_next_prompt(make_session):
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>'
    says = Says(f"hi {call}", "4")
    session = make_session(says)
    messages = [{"role": "user", "content": "2 + 2"}]
    answer = await session.chat(messages, tools=[ADD])
    (called,) = answer.tool_calls
    assert called["function"] == {"name": "add", "arguments": {"a": 2, "b": 2}}
    assert answer.message["content"] == "hi"
    messages += [answer.message, {"role": "tool", "content": "4", "tool_call_id": called["id"]}]
    assert (await session.chat(messages, tools=[ADD])).text == "4"
    (first, first_draw), (second, second_draw) = says.asked
    assert first == "[add] user 2 + 2 assistant"
    assert second.endswith(" tool 4 assistant")
    assert first_draw != second_draw
    (begun, _, _, _), (ended, _, _, reward) = session.rewarded(0.5)
    assert begun == messages[:1]
    assert ended == messages
    assert reward == 0.5


async def test_an_answer_may_be_held_to_a_json_schema(make_session):
    says = Says("yes", '"yes"')
    session = make_session(says)
    await session.chat([{"role": "user", "content": "?"}])
    await session.chat([{"role": "user", "content": "?"}], schema={"enum": ["yes", "no"]})
    assert says.grammars == [None, json_grammar({"enum": ["yes", "no"]})]


async def test_each_answer_may_have_a_reward_of_its_own(make_session):
    says = Says("a", "b", "c")
    session = make_session(says)
    with pytest.raises(ValueError, match="no answer yet"):
        session.reward(1.0)
    await session.complete("hi")
    session.reward(1.0)
    await session.complete("hi")
    await session.complete("hi")
    session.reward(-1)
    assert [one[3] for one in session.rewarded(0.25)] == [1.0, 0.25, -1.0]
    with pytest.raises(ValueError, match="answer 2 of 3 has no reward"):
        session.rewarded(None)


async def test_a_game_against_itself_gives_each_seat_its_reward(make_session):
    says = Says("[0]", "[3]", "[1]", "[4]", "[2]")
    session = make_session(says, number=3)
    assert await session.play("tictactoe") == 1.0
    found = session.rewarded(None)
    assert [reward for _, _, _, reward in found] == [1.0, -1.0, 1.0, -1.0, 1.0]
    assert tuple(text for _, text, _, _ in found) == says.texts
    assert len({draw for _, draw in says.asked}) == 5


async def test_a_game_against_a_player_is_learned_from_at_the_models_seat_only(make_session):
    session = make_session(Says("[9]", "[9]"), number=1)
    assert await session.play("tictactoe", "minimax") == -1.0
    assert [reward for _, _, _, reward in session.rewarded(None)] == [-1.0, -1.0]
    with pytest.raises(ConfigError, match="base: an episode is played with scripted players"):
        await session.play("tictactoe", "base")
    with pytest.raises(ConfigError, match="tictac"):
        await session.play("tictac", "minimax")
