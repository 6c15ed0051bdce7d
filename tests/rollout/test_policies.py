"""Who answers at a seat."""

import asyncio
import dataclasses

import pytest
import yaml
from tests.factories import changed, checkpoint, game_spec, scripted
from tests.harness.chat_server import ChatHandler, completion, serving

import rlforge
from rlforge.config.compose import compose, from_yaml, to_yaml
from rlforge.errors import ConfigError
from rlforge.games.registry import make_game
from rlforge.models.load import load_tokenizer
from rlforge.preflight.games import validate
from rlforge.rollout.episode import play_game
from rlforge.rollout.lineup import train_envs
from rlforge.rollout.policies import SeatPolicies
from rlforge.rollout.schedule import line_up
from rlforge.types import Completion, EnvSpec, Form, PolicyRef

ENV = EnvSpec(id="TicTacToe-v0-train", form=Form(template="board", extraction="bracket"))


class Asked:
    """An engine that notes which policies it was asked for."""

    def __init__(self):
        self.versions = []

    async def generate(self, prompt_token_ids, params, policy):
        self.versions.append(policy.version)
        return Completion(text="[0]", policy_uid=policy.uid, policy_version=policy.version)


@pytest.fixture(scope="module")
def config(small_model):
    """Of a small model with 2048 positions."""
    return compose(["+experiment=tictactoe_mirror", "model=hf", f"model.name={small_model}"]).config


@pytest.fixture
def answers(config):
    engine = Asked()
    return engine, SeatPolicies(config, load_tokenizer(config.model), engine, [0])


def ask(answers, spec, player):
    view = make_game(spec.env, 0).view()
    return asyncio.run(answers.for_game(spec)(spec.seats[player], view, 0))


def spec_of(policies, trained_uid=None, env=ENV):
    return game_spec("g", env, line_up(env, policies, trained_uid=trained_uid))


def test_a_game_under_way_goes_on_with_the_newer_version_and_says_so(answers):
    engine, seats = answers
    spec = spec_of([checkpoint(3), checkpoint(3)], "step-3")
    ask(seats, spec, 0)
    seats.use_version(checkpoint(4))
    assert ask(seats, spec, 1).policy_version == 4
    assert engine.versions == [3, 4]


def test_a_game_ahead_of_the_news_is_played_with_the_version_it_was_given(answers):
    """Else a game that counts as version 4 would go stale with a first turn of version 3."""
    engine, seats = answers
    seats.use_version(checkpoint(3))
    ask(seats, spec_of([checkpoint(4), checkpoint(4)], "step-4"), 0)
    assert engine.versions == [4]


def test_opponents_and_evaluated_versions_stay_what_they_are(answers):
    engine, seats = answers
    seats.use_version(checkpoint(4))
    ask(seats, spec_of([checkpoint(3), checkpoint(1)], "step-3"), 1)
    ask(seats, spec_of([checkpoint(3), checkpoint(1)], None), 0)
    assert engine.versions == [1, 3]


class Talker(Asked):
    """An engine that answers with ``words`` in front of a free cell, and notes prompts."""

    def __init__(self, tokenizer, words, most=None):
        super().__init__()
        self.tokenizer, self.words, self.most = tokenizer, words, most
        self.prompts = []

    async def generate(self, prompt_token_ids, params, policy):
        self.prompts.append(prompt_token_ids)
        text = self.words + self.tokenizer.decode(prompt_token_ids).rpartition("Available")[2][-4:]
        ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))[: self.most]
        return Completion(
            text=text,
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            finish_reason="length" if self.most else "stop",
        )


def talking(config, words, most=None, **groups):
    """Seats of a model that says ``words``, and their engine."""
    config = changed(config, model={"prompt_template": "default"}, **groups)
    tokenizer = load_tokenizer(config.model)
    engine = Talker(tokenizer, words, most)
    [env] = train_envs(config)
    return engine, SeatPolicies(config, tokenizer, engine, [0]), env


@pytest.mark.parametrize(("most", "reason"), [(7, "context"), (8, "length"), (None, "stop")])
@pytest.mark.parametrize("context", ["turn", "conversation"])
def test_an_answer_cut_before_its_most_tokens_was_cut_by_the_context(config, most, reason, context):
    settings = {"engine": {"max_tokens": 8, "max_model_len": 1024}, "env": {"context": context}}
    _, seats, env = talking(config, "[0] " * 9, most, **settings)
    answer = ask(seats, spec_of([checkpoint(1), checkpoint(1)], env=env), 0)
    assert answer.finish_reason == reason


def test_an_answer_that_takes_most_of_the_context_is_too_long_and_not_cut(config):
    """Otherwise a model that would lose could draw by an answer without an end."""
    engine = {"max_tokens": 4096, "max_model_len": 4096}
    _, seats, env = talking(config, "well, " * 900, 1500, engine=engine)
    answer = ask(seats, spec_of([checkpoint(1), checkpoint(1)], env=env), 0)
    assert len(answer.prompt_token_ids) < len(answer.token_ids) == 1500
    assert answer.finish_reason == "length"


async def test_other_games_go_on_while_a_player_searches(answers):
    _, seats = answers
    policy = scripted("mcts:3000")
    spec = spec_of([policy, policy], env=dataclasses.replace(ENV, id="ConnectFour-v0-train"))
    view = make_game(spec.env, 0).view()
    searching = asyncio.create_task(seats.for_game(spec)(spec.seats[0], view, 0))
    others = 0
    while not searching.done():
        await asyncio.sleep(0.001)
        others += 1
    assert others >= 5
    assert searching.result().text in view.legal_actions


DROPPING = {"context": "conversation", "overflow": "drop_oldest"}


async def test_turns_are_dropped_to_fit_the_positions_of_the_model(config):
    """As its engine counts: of engine.max_model_len=8192 a model of 2048 has no use."""
    room = {"max_model_len": 8192, "max_tokens": 500}
    engine, seats, env = talking(config, "[0] " * 400, env=DROPPING, engine=room)
    spec = spec_of([checkpoint(1), checkpoint(1)], "step-1", env)
    views, answer = make_game(env, 0), seats.for_game(spec)
    for turn in range(8):
        view = dataclasses.replace(views.view(), observation=f"Rules.\n\nTurn {turn}")
        await answer(spec.seats[0], view, turn)
    assert len(engine.prompts) == 8
    assert max(len(prompt) for prompt in engine.prompts) <= 2048 - 500


def test_an_answer_that_leaves_no_room_in_the_model_is_refused(config):
    room = {"max_model_len": 8192, "max_tokens": 2048}
    _, seats, env = talking(config, "", env=DROPPING, engine=room)
    spec = spec_of([checkpoint(1), checkpoint(1)], env=env)
    with pytest.raises(ConfigError, match=r"max_tokens=2048 leaves no room .* 2048 tokens of both"):
        seats.for_game(spec)


class Handler(ChatHandler):
    """A model behind an API that takes the first legal action that it was shown."""

    def respond(self, asked, tries):
        text = asked["messages"][-1]["content"]
        first = text.rpartition("Your legal actions: ")[2].split(",")[0]
        self.send(200, completion(rf"I take \boxed{{{first}}}."))


@pytest.fixture
def server(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with serving(Handler) as server:
        yield server


API = PolicyRef(uid="openai:m", kind="api", path_or_name="openai:m")


async def test_an_api_model_gets_rules_actions_and_form_where_the_model_sees_a_board(
    config, server
):
    api = dataclasses.replace(config.pool.api, openai_base_url=server.url)
    config = changed(config, pool={"api": api}, model={"prompt_template": "board"})
    seats = SeatPolicies(config, load_tokenizer(config.model), Asked(), [0])
    spec = spec_of([API, API], env=train_envs(config)[0])
    record = await play_game(spec, seats.for_game(spec))
    assert record.end_reason == "finished"
    assert all(turn.legal and turn.well_formed for turn in record.turns)
    system, user = server.requests[0]["messages"]
    assert r"\boxed{}" in system["content"]
    assert record.turns[0].observation.strip() in user["content"]
    assert "Tic Tac Toe" in user["content"]
    assert user["content"].endswith(
        "Your legal actions: [0], [1], [2], [3], [4], [5], [6], [7], [8]"
    )


async def test_an_api_seat_is_asked_as_the_pool_says(small_model, server, tmp_path):
    write_experiment(tmp_path, {"prompts": {"short": {"user": "{board}, {request}"}}})
    own = ["pool.api.prompt_template=short", "pool.api.action_extraction=bracket"]
    own += [f"pool.api.openai_base_url={server.url}", "env=tictactoe"]
    config = compose(["+experiment=mine", *own], tmp_path).config
    env = train_envs(config)[0]
    absent = None
    seats = SeatPolicies(config, absent, absent, ())
    spec = spec_of([API, API], env=env)
    view = make_game(env, 0).view()
    await seats.for_game(spec)(spec.seats[0], view, 0)
    [asked] = server.requests[0]["messages"]
    assert asked["content"].startswith(f"{view.board}, ")
    assert "square brackets" in asked["content"]


def test_play_game_asks_an_api_model_in_the_same_way(server, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    record = rlforge.play_game("tictactoe", "openai:m", "random_legal", seed=1)
    assert record.end_reason == "finished"
    seat = record.spec.seats[0]
    assert seat.form == Form(template="chat-actions")
    assert "Your legal actions: [0]" in server.requests[0]["messages"][-1]["content"]


class Reader(Asked):
    """An engine that reads what it is asked, and answers in the form of the template."""

    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer, self.texts = tokenizer, []

    async def generate(self, prompt_token_ids, params, policy):
        text = self.tokenizer.decode(prompt_token_ids, clean_up_tokenization_spaces=False)
        self.texts.append(text)
        first = text.partition("Legal: ")[2].split(",")[0].split("\n")[0]
        return Completion(text=f"{first}!", policy_uid=policy.uid)


def write_experiment(folder, content):
    path = folder / "experiment" / "mine.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# @package _global_\n{yaml.safe_dump(content)}")


async def test_a_template_in_yaml_is_what_the_model_is_asked(small_model, tmp_path):
    own = {
        "system": "You are player one of two.",
        "user": "{observation}\n\nLegal: {legal_actions}\n\nEnd with your action.",
        "assistant": "So: ",
        "roles": {"user": "Q {content}\n", "assistant": "A {content}\n"},
    }
    model = {"kind": "hf", "name": str(small_model), "prompt_template": "mine"}
    write_experiment(tmp_path, {"prompts": {"mine": own}, "model": model})
    overrides = ["+experiment=mine", "env=tictactoe", "model.action_extraction=bracket"]
    composed = compose(overrides, tmp_path)
    validate(composed, keys=False)
    (tmp_path / "config.yaml").write_text(to_yaml(composed.config))
    config = from_yaml(tmp_path / "config.yaml")
    assert config == composed.config
    tokenizer = load_tokenizer(config.model)
    engine = Reader(tokenizer)
    seats = SeatPolicies(config, tokenizer, engine, [0])
    env = train_envs(config)[0]
    spec = spec_of([checkpoint(1), checkpoint(1)], "step-1", env)
    record = await play_game(spec, seats.for_game(spec))
    assert record.end_reason == "finished"
    assert all(turn.legal for turn in record.turns)
    assert engine.texts[0] == (
        f"Q You are player one of two.\n\n{record.turns[0].observation.strip()}\n\n"
        "Legal: [0], [1], [2], [3], [4], [5], [6], [7], [8]\n\nEnd with your action.\nA So: "
    )
