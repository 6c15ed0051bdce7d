import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.config.plugins import EXTRACTIONS
from rlforge.errors import ConfigError
from rlforge.games.actions import Extractor, extract
from rlforge.games.registry import make_game
from rlforge.types import EnvSpec

BRACKETED = ("[0]", "[1]")


@pytest.mark.parametrize(
    ("name", "text", "action"),
    [
        ("boxed", r"so \boxed{[4]}", "[4]"),
        ("boxed", r"so \boxed{4}", "[4]"),
        ("boxed", r"first \boxed{1}, no: \boxed{ 2 }.", "[2]"),
        ("boxed", r"\boxed{\text{[4]}}", "[4]"),
        ("boxed", r"\boxed{Bid: 3, 4}", "[Bid: 3, 4]"),
        ("boxed", r"\boxed{say {hello} [1]}", "say {hello} [1]"),
        ("boxed", r"\boxed{[1]} and then \boxed{[2", "[1]"),
        ("boxed", r"\boxed{[1]}. My answer is in \boxed{}.", "[1]"),
        ("boxed", r"\boxed{1} or {\boxed{2}, \boxed{ {", "[2]"),
        ("boxed", r"\boxed{3 \boxed{\text{4}}", "[4]"),
        ("bracket", "not [1] but [2], yes", "[2]"),
        ("json", 'First {"action": "[1]"}, no, {"action": "2"} {see above}', "[2]"),
        ("json", 'I wait. ```json\n{"type": "NO_OP"}\n```', '{"type": "NO_OP"}'),
        ("json", '{"action": "[1]", "sure": true}', '{"action": "[1]", "sure": true}'),
        ("bracket", " [check]", "[check]"),
        ("bracket", "[col 3] []", "[col 3]"),
        ("last_line", "I think.\n\n[7]\n  \n", "[7]"),
        ("last_line", "I think.\ncheck", "[check]"),
        ("number", "Not 3: square 7.", "[7]"),
        ("number", "[col 5]", "[5]"),
        ("raw", "  [7]\n", "[7]"),
        ("raw", "hello", "hello"),
    ],
)
def test_the_final_action_is_found(name, text, action):
    extraction = extract(name, text, BRACKETED)
    assert extraction.action == action
    assert extraction.well_formed
    assert extraction.feedback == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("boxed", text) for text in ("[4]", r"\boxed{[4]", r"\boxed{ }", "")),
        *(("bracket", text) for text in ("4", "[4", "[ ]")),
        *(("json", text) for text in ("[4]", '{"action": " "}', '{"action": "[4]"')),
        *(("last_line", " \n "), ("number", "the centre"), ("raw", " ")),
    ],
)
def test_a_text_without_the_format_gives_no_action_and_says_what_is_missing(name, text):
    extraction = extract(name, text, BRACKETED)
    assert extraction.action == ""
    assert not extraction.well_formed
    assert extraction.feedback.startswith("Your last answer")


def test_brackets_are_added_unless_the_game_writes_actions_without():
    assert extract("boxed", r"\boxed{north}").action == "[north]"
    assert extract("boxed", r"\boxed{north}", ("north", "south")).action == "north"
    assert extract("last_line", "north", ("north", "south")).action == "north"
    plain = Extractor(read=str.strip, request="Answer.", feedback="Your last answer was empty.")
    assert plain.write("[4]") == "[4]"


@pytest.mark.parametrize("name", [name for name in EXTRACTIONS.names() if name != "number"])
@pytest.mark.parametrize(
    ("source", "env_id"),
    [
        ("textarena", "TicTacToe-v0-train"),
        ("textarena", "KuhnPoker-v0-train"),
        ("textarena", "Nim-v0-train"),
        ("textarena", "Othello-v0-train"),
        ("openspiel", "leduc_poker"),
        ("openspiel", "breakthrough"),
        ("market", "market-small"),
    ],
)
def test_an_action_is_written_as_it_is_read(name, source, env_id):
    legal = make_game(EnvSpec(id=env_id, source=source), 1).view().legal_actions
    extractor = EXTRACTIONS.find(name)
    assert legal
    assert [extractor.read(extractor.write(action)) for action in legal] == list(legal)
    assert [extract(name, extractor.write(a), legal).action for a in legal] == list(legal)


@pytest.mark.parametrize("env_id", ["TicTacToe-v0-train", "SimpleTak-v0-train"])
def test_a_number_stands_for_the_action_with_that_number(env_id):
    legal = make_game(EnvSpec(id=env_id), 1).view().legal_actions
    write = EXTRACTIONS.find("number").write
    assert [write(action) for action in legal] == [str(cell) for cell in range(len(legal))]
    assert [extract("number", write(a), legal).action for a in legal] == list(legal)


@given(st.lists(st.sampled_from(["\\boxed{", "{", "}", "[4]", " ", "\\text{"]), max_size=30))
def test_the_box_that_counts_is_the_last_one_that_closes_and_holds_something(parts):
    text = "".join(parts)
    assert (EXTRACTIONS.find("boxed").read(text) or "") == next(filter(None, boxes(text)), "")


def boxes(text):
    """The contents of the boxes in ``text`` that close, last one first; braces are counted."""
    for start in reversed([found.end() for found in re.finditer(r"\\boxed\{", text)]):
        depth = 1
        for end in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                content = text[start:end].strip()
                if content.startswith(r"\text{") and content.endswith("}"):
                    content = content[len(r"\text{") : -1].strip()
                yield content
                break


def test_a_long_answer_of_open_boxes_is_read_at_once():
    start = time.perf_counter()
    assert not extract("boxed", r"\boxed{" * 50_000).well_formed
    assert time.perf_counter() - start < 2


@given(st.text(), st.sampled_from(EXTRACTIONS.names()))
def test_any_text_is_read_without_failing(text, name):
    extraction = extract(name, text)
    assert extraction.well_formed == bool(extraction.action)
    assert extraction.well_formed != bool(extraction.feedback)


def test_an_unknown_extraction_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean boxed"):
        EXTRACTIONS.find("box")
    with pytest.raises(ConfigError, match="there are boxed, bracket, json, last_line, number, raw"):
        extract("xyz", "")
