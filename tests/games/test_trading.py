"""Prompts for agents in a market: as long as the context allows, and answers in every form."""

import copy
import json

import pytest
from tests.factories import byte_tokenizer, changed

from rlforge.config.compose import compose
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.market.text import describe
from rlforge.continuous.market.traders import Crowd
from rlforge.continuous.market.trading import AgentPrompter
from rlforge.continuous.market.world import World
from rlforge.errors import ConfigError


@pytest.fixture(scope="module")
def config():
    given = ["model=hf", "model.prompt_template=default", "model.action_extraction=json"]
    return compose(given, root=ContinuousConfig).config


@pytest.fixture
def make(config, tokenizer):
    """A prompter; changes of groups of the configuration by name."""

    def made(**groups):
        other = changed(config, **groups)
        return AgentPrompter(other, other.market, tokenizer)

    return made


@pytest.fixture(scope="module")
def state():
    """What a noise trader sees after eight ticks: positions, news, posts."""
    world = World(ContinuousConfig().market, 0)
    crowd = Crowd(world, 0)
    for _ in range(8):
        crowd.act()
        world.tick()
    return world.state("noise-1")


@pytest.fixture(scope="module")
def tokenizer(state):
    """Byte-level, with a few hundred merges of the market's own words."""
    return byte_tokenizer(describe(state), vocab_size=600)


def test_a_prompt_shows_as_much_of_the_state_as_the_context_has_room_for(make, state):
    whole = make(engine={"max_model_len": 8192}, learner={"max_train_len": None}).ask(state)
    assert describe(state) in whole.text
    for share in (0.99, 0.7, 0.6):
        tokens = int(share * len(whole.token_ids))
        cut = make(engine={"max_tokens": 100, "max_model_len": tokens + 100}).ask(state)
        assert len(cut.token_ids) <= tokens
        # Room for another line is left only where lines became brief and all of them fit.
        assert len(cut.token_ids) > tokens - 120 or "(Not shown: " not in cut.text
    assert "(Not shown: " in cut.text
    limits = {"engine": {"max_tokens": 100}, "learner": {"max_train_len": tokens}}
    learned = make(**limits).ask(state)
    assert len(learned.token_ids) <= tokens - 100


def test_a_context_without_room_for_a_state_is_refused_at_once(make):
    with pytest.raises(ConfigError, match=r"max_model_len=600: .* room for 500, .*max_tokens=100"):
        make(engine={"max_tokens": 100, "max_model_len": 600})


@pytest.mark.parametrize("extraction", ["json", "boxed", "raw", "last_line", "number"])
def test_prose_asks_for_json_alone_and_reads_it_wherever_it_stands(make, state, extraction):
    prompter = make(model={"action_extraction": extraction})
    question = prompter.ask(state)
    assert "boxed" not in question.text
    assert question.text.count("End with one action as a JSON object.") == 1
    assert "game" not in question.text.partition("Minute")[0]
    action = {"type": "FOLLOW_USER", "userId": "wire"}
    text = json.dumps(action)
    escaped = text.replace("{", r"\{").replace("}", r"\}")
    for answer in (
        text,
        f"They know more.\n{text}",
        f"```json\n{text}\n```",
        rf"\boxed{{{text}}}",
        rf"\boxed{{{escaped}}}",
        f'<think>{{"type": "NO_OP"}}</think>{text}',
    ):
        assert prompter.read(question, answer).action == action, answer
    assert "no JSON action" in prompter.read(question, "let me think about that").feedback


@pytest.mark.parametrize("model", ["qwen2p5_0p5b", "smollm2_135m", "hf"])
def test_every_language_model_is_asked_about_a_market_in_one_form(tokenizer, state, model):
    chat = copy.deepcopy(tokenizer)
    chat.chat_template = (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    )
    config = compose([f"model={model}"], root=ContinuousConfig).config
    prompter = AgentPrompter(config, config.market, chat)
    system = prompter.ask(state).text.partition("\nuser:")[0]
    assert system == (
        "system: You trade in a market. Choose the action that earns you most. "
        "End with one action as a JSON object."
    )
    assert prompter.extraction == "json"


def test_compact_words_are_asked_for_and_read_by_the_models_extraction(make, state):
    prompter = make(model={"prompt_template": "board", "action_extraction": "bracket"})
    question = prompter.ask(state)
    assert prompter.extraction == "bracket"
    assert prompter.read(question, "[hold]").action == {"type": "NO_OP"}
    assert "square brackets" in prompter.read(question, "hold").feedback
    follow = {"type": "FOLLOW_USER", "userId": "wire"}
    assert prompter.read(question, json.dumps(follow)).action == follow


def test_a_room_for_the_least_state_is_room_for_every_state(make, state):
    """With rules and forms the shortest prompt of the first state takes all of the room."""
    small, learner = {"predictions": 1, "tickers": []}, {"max_train_len": None}
    most = make(market={**small, "prompt_chars": 200}, learner=learner).ask(state)
    assert describe(state, 200) in most.text
    room = len(most.token_ids)
    engine = {"max_tokens": 9, "max_model_len": room + 9}
    tight = make(market=small, learner=learner, engine=engine)
    assert len(tight.ask(state).token_ids) <= room
