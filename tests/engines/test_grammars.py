"""Answers keep to their grammar, and their log-probs are of the tokens that it leaves."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlforge.engines.grammars import Grammars, check_grammar, json_grammar
from rlforge.errors import EngineError
from rlforge.models.tiny.vocabulary import build_tokenizer
from rlforge.types import Completion, SamplingParams

from .answers import BASE_POLICY, completion_of, direct_logprobs, finish
from .conftest import VOCABULARY

TRADE = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "type": {"const": "BUY"},
                "amount": {"type": "integer", "minimum": 1, "maximum": 250},
            },
            "required": ["type", "amount"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"type": {"const": "WAIT"}},
            "required": ["type"],
            "additionalProperties": False,
        },
    ]
}
PROMPT = (40, 41, 42)


def _asked(
    core: Any, tokenizer: Any, number: int, grammar: str | None, **given: Any
) -> list[Completion]:
    params = {"max_tokens": 60, "stop_token_ids": (tokenizer.eos_token_id,)} | given
    requests = [
        core.submit(PROMPT, SamplingParams(seed=seed, grammar=grammar, **params), BASE_POLICY)
        for seed in range(number)
    ]
    answers = finish(core)
    return [completion_of(answers[request]) for request in requests]


def _text(tokenizer: Any, answer: Completion) -> str:
    return str(tokenizer.decode(list(answer.token_ids), skip_special_tokens=True))


def _reference(model: Any, tokenizer: Any, answer: Completion, grammar: str) -> list[float]:
    """The log-prob of each token among those with which an answer of the grammar goes on."""
    state = Grammars(tokenizer, VOCABULARY).begin(grammar, [tokenizer.eos_token_id])
    found = []
    with torch.no_grad():
        ids = torch.tensor([answer.prompt_token_ids + answer.token_ids])
        logits = model(input_ids=ids).logits[0].double()
    for place, token in enumerate(answer.token_ids):
        row = logits[len(PROMPT) - 1 + place]
        allowed = torch.from_numpy(state.allowed())
        found.append(float(row[token] - row[allowed].logsumexp(0)))
        state.take(token)
    return found


def test_every_answer_is_json_of_the_schema(make_core, base, tokenizer):
    grammar = json_grammar(TRADE)
    answers = _asked(make_core(), tokenizer, 40, grammar)
    for answer in answers:
        assert answer.finish_reason == "stop"
        assert answer.token_ids[-1] == tokenizer.eos_token_id
        jsonschema.validate(json.loads(_text(tokenizer, answer)), TRADE)
        assert list(answer.logprobs) == pytest.approx(
            _reference(base, tokenizer, answer, grammar), abs=1e-4
        )
    assert {json.loads(_text(tokenizer, each))["type"] for each in answers} == {"BUY", "WAIT"}


def test_requests_with_equal_prompts_and_different_grammars_leave_each_other_alone(
    make_core, base, tokenizer
):
    grammars = [None, json_grammar(TRADE), json_grammar({"type": "boolean"})]
    core = make_core()
    params = {"max_tokens": 30, "stop_token_ids": (tokenizer.eos_token_id,)}
    requests = [
        core.submit(PROMPT, SamplingParams(seed=seed, grammar=grammar, **params), BASE_POLICY)
        for seed in range(5)
        for grammar in grammars
    ]
    together = finish(core)
    for grammar in grammars:
        alone = _asked(make_core(), tokenizer, 5, grammar, max_tokens=30)
        mixed = [completion_of(together[request]) for request in requests][
            grammars.index(grammar) :: 3
        ]
        assert [each.token_ids for each in mixed] == [each.token_ids for each in alone]
    for answer in (completion_of(together[request]) for request in requests[::3]):
        assert list(answer.logprobs) == pytest.approx(direct_logprobs(base, answer), abs=1e-4)


def test_temperature_and_filters_apply_to_the_tokens_that_the_grammar_leaves(make_core, tokenizer):
    for given_params in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.01}, {"min_p": 0.99}):
        first, *others = _asked(make_core(), tokenizer, 3, json_grammar(TRADE), **given_params)
        jsonschema.validate(json.loads(_text(tokenizer, first)), TRADE)
        assert set(first.logprobs) == {0.0}
        assert all(other.token_ids == first.token_ids for other in others)


def test_a_stop_token_with_a_text_of_its_own_may_stand_within_an_answer(make_core, tokenizer):
    (letter,) = tokenizer.encode("x", add_special_tokens=False)
    stops = (letter, tokenizer.eos_token_id)
    (answer,) = _asked(
        make_core(), tokenizer, 1, json_grammar({"const": "xx"}), stop_token_ids=stops
    )
    assert _text(tokenizer, answer) == '"xx"'
    assert answer.token_ids[-1] == tokenizer.eos_token_id


def test_without_stop_tokens_an_answer_ends_where_nothing_can_follow(make_core, tokenizer):
    (answer,) = _asked(make_core(), tokenizer, 1, json_grammar({"const": "x"}), stop_token_ids=())
    assert _text(tokenizer, answer) == '"x"'
    assert answer.finish_reason == "stop"


def test_an_answer_that_the_limit_cuts_is_the_beginning_of_one(make_core, tokenizer):
    for answer in _asked(make_core(), tokenizer, 5, json_grammar(TRADE), max_tokens=4):
        assert _text(tokenizer, answer) == '{"ty'
        assert answer.finish_reason == "length"


def test_an_invalid_grammar_fails_its_own_request_and_says_why(make_core):
    core = make_core()
    with pytest.raises(EngineError, match='grammar of an answer is invalid: unknown name: "x"'):
        core.submit(PROMPT, SamplingParams(grammar="start: x"), BASE_POLICY)
    number = core.submit(PROMPT, SamplingParams(max_tokens=2), BASE_POLICY)
    assert len(completion_of(finish(core)[number]).token_ids) == 2


def test_a_grammar_beyond_the_library_s_limits_fails_its_own_request(make_core):
    core = make_core()
    wide = [f'word_{n}: "a" "b{n}"' for n in range(3000)]
    grammar = "\n".join(["start: " + " | ".join(f"word_{n}" for n in range(3000)), *wide])
    failing = core.submit(PROMPT, SamplingParams(grammar=grammar, max_tokens=9), BASE_POLICY)
    number = core.submit(PROMPT, SamplingParams(max_tokens=2), BASE_POLICY)
    answers = finish(core)
    assert len(completion_of(answers[number]).token_ids) == 2
    assert "leaves its grammar: Parser Error: Current row has 3000 items" in str(
        answers[failing].error
    )


def test_a_tokenizer_in_python_is_refused():
    python = SimpleNamespace(all_special_ids=[])
    with pytest.raises(EngineError, match="with SimpleNamespace: Only fast tokenizers"):
        Grammars(python, VOCABULARY).begin(json_grammar({}), [1])


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("start: x", 'unknown name: "x"'),
        (json_grammar({"type": "colour"}), "Invalid type: colour"),
        (json_grammar({"type": "string", "pattern": "(?=a)"}), "look-ahead"),
        (json_grammar({"if": {}}), 'Unimplemented keys: \\["if"\\]'),
    ],
)
def test_what_is_wrong_with_a_grammar_is_one_line(grammar, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        check_grammar(grammar)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300


_LEAVES = st.sampled_from(
    [
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["YES", "NO"]},
        {"type": "integer", "minimum": -3, "maximum": 12},
        {"type": "string", "maxLength": 5},
    ]
)
_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner)
        | st.builds(
            lambda fields: {
                "type": "object",
                "properties": fields,
                "required": list(fields),
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        )
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=40)
@given(schema=_SCHEMAS, draws=st.randoms(use_true_random=False))
def test_any_walk_through_a_grammar_ends_with_an_answer_of_it(schema, draws):
    tokenizer = build_tokenizer([" yes", " no", "go"])
    state = Grammars(tokenizer, len(tokenizer)).begin(
        json_grammar(schema), [tokenizer.eos_token_id]
    )
    tokens = []
    while not tokens or tokens[-1] != tokenizer.eos_token_id:
        tokens.append(int(draws.choice(state.allowed().nonzero()[0])))
        state.take(tokens[-1])
    jsonschema.validate(json.loads(tokenizer.decode(tokens[:-1])), schema)


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0.0},
        {"temperature": 0.5},
        {"temperature": 1.5, "top_k": 7, "top_p": 0.9, "min_p": 0.05},
        {"grammar": json_grammar(TRADE)},
        {"grammar": json_grammar(TRADE), "temperature": 0.0},
    ],
)
def test_log_probs_of_the_model_are_those_of_its_own_distribution(make_core, base, tokenizer, how):
    asked = {"number": 4, "max_tokens": 20, "grammar": None} | how
    answers = _asked(make_core(), tokenizer, **asked, model_logprobs=True)
    before = _asked(make_core(), tokenizer, **asked)
    for answer, plain in zip(answers, before, strict=True):
        assert plain.model_logprobs == ()
        assert (answer.token_ids, answer.logprobs) == (plain.token_ids, plain.logprobs)
        grammar = how.get("grammar")
        own = None if grammar is None else _reference(base, tokenizer, answer, grammar)
        expected = direct_logprobs(base, answer) if own is None else own
        assert list(answer.model_logprobs) == pytest.approx(expected, abs=1e-4)
    if how.get("temperature", 1) != 1:
        assert answers[0].model_logprobs != pytest.approx(answers[0].logprobs, abs=0.01)
