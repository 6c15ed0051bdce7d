"""The tree of legal answers, with a tokenizer whose tokens are bytes."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy
from tests.factories import byte_tokenizer, model_files, seat

from rlforge.algorithms.losses import legal_entropy
from rlforge.config.model import ModelConfig
from rlforge.games.base import View
from rlforge.models.load import load_tokenizer
from rlforge.rollout.legal import LegalTokens
from rlforge.types import Completion, Form

RAW = seat(form=Form(extraction="raw"))
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    bytes_alone = byte_tokenizer("[1]", [END], 257, eos_token=END)
    folder = model_files(bytes_alone, tmp_path_factory.mktemp("models") / "bytes")
    return ModelConfig(kind="hf", name=str(folder))


@pytest.fixture(scope="module")
def tokenizer(model: ModelConfig) -> Any:
    return load_tokenizer(model)


@pytest.fixture(scope="module")
def legal(model: ModelConfig, tokenizer: Any) -> LegalTokens:
    return LegalTokens(model, tokenizer)


def view(*actions: str) -> View:
    return View(player_id=0, observation="", legal_actions=actions)


def answered(tokenizer: Any, text: str) -> Completion:
    ids = tuple(tokenizer.encode(text, add_special_tokens=False))
    return Completion(text=text, token_ids=ids, logprobs=(-1.0,) * len(ids))


def branches(legal, tokenizer, text, *actions, extraction="raw", accepted=True):
    """At each token of ``text`` the tokens with which a legal answer goes on, as text."""
    asked = seat(form=Form(extraction=extraction))
    found = legal(asked, view(*actions), answered(tokenizer, text), accepted)
    assert all(list(tokens) == sorted(set(tokens)) for tokens in found)
    return [{tokenizer.decode([token]) for token in tokens} for tokens in found]


def test_each_token_has_the_ways_in_which_a_legal_answer_goes_on(legal, tokenizer):
    assert branches(legal, tokenizer, f"[12]{END}", "[1]", "[12]", "[3]") == [
        {"[", " "},  # with or without a space in front
        {"1", "3"},
        {"2", "]"},
        {"]"},
        {END},
    ]
    assert branches(legal, tokenizer, f"[12]{END}", "[12]", "[4]")[1:3] == [{"1", "4"}, {"2"}]


def test_an_answer_may_begin_with_a_space(legal, tokenizer):
    assert branches(legal, tokenizer, f" [3]{END}", "[1]", "[12]", "[3]") == [
        {"[", " "},
        {"["},
        {"1", "3"},
        {"]"},
        {END},
    ]
    assert branches(legal, tokenizer, f"bet{END}", "bet", "bet 2")[3] == {" ", END}


def test_actions_are_in_the_form_that_the_seat_writes(legal, tokenizer):
    boxed = branches(legal, tokenizer, rf"\boxed{{[1]}}{END}", "[1]", "[2]", extraction="boxed")
    assert boxed[0] == {"\\", " "}
    assert [len(tokens) for tokens in boxed[1:]] == [1] * 7 + [2, 1, 1, 1]
    assert branches(legal, tokenizer, f"[1]{END}", "[1]", "[2]", extraction="boxed") == []


@pytest.mark.parametrize(
    "text",
    [
        f"I take [1]{END}",
        f"[1] it is{END}",
        f"  [1]{END}",  # two spaces
        "[1]",  # cut before its end
        f"[1]{END}{END}",
    ],
)
def test_an_answer_that_is_more_or_less_than_a_legal_action_has_no_branches(legal, tokenizer, text):
    assert branches(legal, tokenizer, text, "[1]", "[2]") == []


@pytest.mark.parametrize(
    ("text", "followed"),
    [
        (f"[9]{END}", [{"[", " "}, {"1", "2"}, set(), set()]),
        (f"no{END}", [{"[", " "}, set(), set()]),
        (f"[1]2{END}", [{"[", " "}, {"1", "2"}, {"]"}, {END}, set()]),
        (f"[1]{END}{END}", [{"[", " "}, {"1", "2"}, {"]"}, {END}, set()]),
    ],
)
def test_an_illegal_answer_has_branches_up_to_where_it_becomes_illegal(
    legal, tokenizer, text, followed
):
    assert branches(legal, tokenizer, text, "[1]", "[2]", accepted=False) == followed


@pytest.mark.parametrize("actions", [None, ()])
def test_games_that_list_no_legal_actions_have_no_branches(legal, tokenizer, actions):
    seen = View(player_id=0, observation="", legal_actions=actions)
    assert legal(RAW, seen, answered(tokenizer, f"[1]{END}"), False) == ()
    assert legal(RAW, view("[1]"), Completion(text="[1]"), True) == ()


ACTIONS = ("[1]", "[10]", "[12]", "[123]", "[2]", "bet", "bet 2", "check", "é")


@given(
    weights=st.dictionaries(
        st.sampled_from(ACTIONS), st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), min_size=1
    ),
    legal_share=st.floats(0.05, 1),
)
def test_the_entropies_along_answers_average_to_that_of_the_distribution_over_answers(
    legal, tokenizer, weights, legal_share
):
    """The chain rule of entropy, at whatever share of each next token is left to legal ones."""
    answers = {
        tuple(tokenizer.encode(f"{space}{action}{END}", add_special_tokens=False)): weight
        for action, both in weights.items()
        for space, weight in zip(("", " "), both, strict=True)
    }
    total = sum(answers.values())
    probabilities = {answer: weight / total for answer, weight in answers.items()}

    def mass(start: tuple[int, ...]) -> float:
        """The probability of the answers that begin with ``start``."""
        return sum(p for answer, p in probabilities.items() if answer[: len(start)] == start)

    found = 0.0
    for answer, probability in probabilities.items():
        completion = Completion(text="", token_ids=answer, logprobs=(-1.0,) * len(answer))
        along = legal(RAW, view(*weights), completion, True)
        assert len(along) == len(answer)
        for at, tokens in enumerate(along):
            assert answer[at] in tokens
            start = answer[:at]
            logs = [math.log(legal_share * mass((*start, token)) / mass(start)) for token in tokens]
            here, known = legal_entropy(torch.tensor(logs, dtype=torch.float64))
            assert bool(known)
            found += probability * float(here)
    assert found == pytest.approx(entropy(list(probabilities.values())), abs=1e-9)
