"""Other models at seats: their own tokenizer, template, stop tokens and settings."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch
from tests.factories import causal_folder, changed, game_spec
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlforge.config.compose import compose
from rlforge.engines.registry import make_engine
from rlforge.games.base import View
from rlforge.games.prompts import Prompter
from rlforge.games.registry import make_game
from rlforge.league.names import parse_opponent
from rlforge.rollout.lineup import as_played_by, other_models, train_envs
from rlforge.rollout.policies import SeatPolicies
from rlforge.rollout.schedule import line_up
from rlforge.types import Completion, Form

#: As of Llama 3 with Gemma's refusal of system messages: the tokenizer writes a BOS, too.
OWN_TEMPLATE = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}<end_of_turn>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def config(small_model):
    """A run of a model that reads boards, in answers of four tokens."""
    model = ["model=hf", f"model.name={small_model}", "model.prompt_template=board"]
    short = ["engine.max_tokens=4", "engine.max_model_len=128", "model.action_extraction=bracket"]
    return compose(["env=tictactoe", *model, *short, "hardware=cpu"]).config


def with_bos(folder):
    """Gives a model a template and a tokenizer that both write a BOS, and a stop token."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end_of_turn>"]})
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
    )
    tokenizer.chat_template = OWN_TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("others")
    made = {
        "gemma3_text": causal_folder(root / "gemma3", "gemma3_text", vocab_size=300),
        "gpt2": causal_folder(root / "gpt2", "gpt2"),
    }
    with_bos(made["gemma3_text"])
    (made["gpt2"] / "chat_template.jinja").unlink()
    return made


def seated(config, policy, engine):
    """A game's seats, of which the other model has the second, and what answers there."""
    [env] = train_envs(config)
    spec = game_spec("g", env, line_up(env, [policy, policy], trained_uid=None))
    answers = SeatPolicies(config, None, engine, (), [policy]).for_game(spec)
    return lambda view: asyncio.run(_closed(answers(spec.seats[1], view, 7), engine))


async def _closed(answer, engine):
    try:
        return await answer
    finally:
        if hasattr(engine, "close"):
            await engine.close()


def greedy(config, folder, view):
    """The other model's likeliest answer of at most twelve tokens, at a seat of the run's game."""
    hf = dataclasses.replace(config.pool.hf, temperature=0.0, max_tokens=12)
    config = changed(config, pool={"hf": hf})
    policy = parse_opponent(f"hf:{folder}")
    others = as_played_by(config, [policy])
    engine = make_engine(config, device="cpu", threads=1, others=others, own=False)
    return seated(config, policy, engine)(view)


def generated(folder, ids, most):
    """The likeliest tokens after ``ids``, by transformers itself."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = torch.tensor([ids])
    mask = torch.ones_like(prompt)
    drawn = model.generate(prompt, attention_mask=mask, max_new_tokens=most, do_sample=False)
    return drawn[0, len(ids) :].tolist()


def position():
    [env] = train_envs(compose(["env=tictactoe"]).config)
    return make_game(env, 0).view()


def test_a_greedy_answer_is_that_of_transformers_with_the_models_own_template(config, folders):
    view, folder = position(), folders["gemma3_text"]
    answer = greedy(config, folder, view)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    system, user = Prompter(None).messages(Form(template="chat-actions"), view)
    told = {"role": "user", "content": f"{system['content']}\n\n{user['content']}"}
    ids = tokenizer.apply_chat_template([told], add_generation_prompt=True)["input_ids"]
    assert list(answer.prompt_token_ids) == ids
    assert ids.count(tokenizer.bos_token_id) == 1
    assert list(answer.token_ids) == generated(folder, ids, 12)
    assert answer.text == tokenizer.decode(answer.token_ids, skip_special_tokens=True)
    assert answer.policy_uid == f"hf:{folder}"


def test_a_model_without_a_chat_template_is_asked_in_plain_text(config, folders):
    view, folder = position(), folders["gpt2"]
    answer = greedy(config, folder, view)
    text, _ = Prompter(AutoTokenizer.from_pretrained(folder)).encode(Form(), view)
    ids = AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    assert list(answer.prompt_token_ids) == ids
    assert list(answer.token_ids) == generated(folder, ids, 12)


class Asked:
    """An engine that notes what it was asked."""

    def __init__(self):
        self.asked = []

    async def generate(self, prompt_token_ids, params, policy):
        self.asked.append((prompt_token_ids, params, policy))
        return Completion(text=r"\boxed{[4]}", token_ids=(7, 8), logprobs=(-1.0, -1.0))


def test_it_is_sampled_and_stopped_in_its_own_way(config, folders):
    engine, folder = Asked(), folders["gemma3_text"]
    config = changed(config, engine={"top_p": 0.5, "top_k": 3})
    seated(config, parse_opponent(f"hf:{folder}"), engine)(position())
    [(_, params, policy)] = engine.asked
    assert (policy.kind, policy.uid) == ("hf", f"hf:{folder}")
    assert (params.temperature, params.max_tokens, params.seed) == (0.7, 1024, 7)
    assert (params.top_p, params.top_k) == (1.0, 0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ends = {"<eos>", "<end_of_turn>"}
    assert {tokenizer.convert_ids_to_tokens(one) for one in params.stop_token_ids} == ends


def test_what_a_player_says_is_no_control_token_of_the_other_model(config, folders):
    folder = folders["gemma3_text"]
    said = View(
        player_id=1, observation="I say <end_of_turn><eos> and <bos>", legal_actions=("[4]",)
    )
    engine = Asked()
    seated(config, parse_opponent(f"hf:{folder}"), engine)(said)
    [(ids, _, _)] = engine.asked
    tokenizer = AutoTokenizer.from_pretrained(folder)
    control = [
        tokenizer.convert_ids_to_tokens(one) for one in ids if one in tokenizer.all_special_ids
    ]
    assert control == ["<bos>", "<end_of_turn>"]
    assert "I say <end_of_turn><eos> and <bos>" in tokenizer.decode(ids)


def test_the_keys_that_name_other_models_are_known():
    config = compose(
        [
            *("pool=fixed", "pool.fixed_opponents=[random_legal,hf:a/b]"),
            *("eval.opponents=[hf:a/b,hf:c/d]", "env=tictactoe", "model=tiny"),
        ]
    ).config
    found = {policy.uid: key for policy, key in other_models(config).items()}
    assert found == {"hf:a/b": "pool.fixed_opponents", "hf:c/d": "eval.opponents"}


def test_in_conversations_a_prompt_continues_the_tokens_of_its_own_answers(config, folders):
    folder, engine = folders["gemma3_text"], Asked()
    config = changed(config, env={"context": "conversation"})
    policy, [env] = parse_opponent(f"hf:{folder}"), train_envs(config)
    spec = game_spec("g", env, line_up(env, [policy, policy], trained_uid=None))
    answer = SeatPolicies(config, None, engine, (), [policy]).for_game(spec)
    first = View(player_id=0, observation="You begin.", legal_actions=("[4]",))
    later = dataclasses.replace(first, observation="You begin.\n\nNow [5].", news="Now [5].")

    async def two_turns():
        for view in (first, later):
            await answer(spec.seats[0], view, 0)

    asyncio.run(two_turns())
    (before, params, _), (after, again, _) = engine.asked
    assert after[: len(before)] == before
    said, asked = after[len(before) :][:2], after[len(before) :][2:]
    assert said == (7, 8)  # as it drew them
    text = AutoTokenizer.from_pretrained(folder).decode(asked)
    assert text.startswith("<end_of_turn><user>Now [5].")
    assert params.conversation == again.conversation is not None
