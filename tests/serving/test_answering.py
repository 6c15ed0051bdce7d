"""The pieces of a text stream add up to the whole text and end before a stop string."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.engines.base import decoder
from rlforge.models.tiny.vocabulary import build_tokenizer
from rlforge.serving.answering import TextStream

TOKENIZER: Any = build_tokenizer([" yes", " no", "go"])
DECODE = decoder(TOKENIZER)
SIZE = len(TOKENIZER)


def _stream(pieces: list[list[int]], stops: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    text = TextStream(DECODE, stops)
    out = [text.add(piece) for piece in pieces]
    out.append(text.finish([token for piece in pieces for token in piece]))
    return out, text


@given(st.lists(st.lists(st.integers(0, SIZE - 1), max_size=4), max_size=12))
def test_the_concatenated_pieces_are_the_whole_text(pieces: list[list[int]]) -> None:
    out, _ = _stream(pieces)
    assert "".join(out) == DECODE([token for piece in pieces for token in piece])


@given(st.text(max_size=30))
def test_no_piece_ends_within_a_character(written: str) -> None:
    ids = TOKENIZER.encode(written, add_special_tokens=False)
    out, _ = _stream([[token] for token in ids])
    assert "".join(out) == DECODE(ids)
    if "�" not in written:
        assert not any("�" in piece for piece in out)


@given(
    written=st.text(alphabet="ab c", max_size=40),
    stops=st.lists(st.text(alphabet="ab c", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_the_text_ends_before_the_first_complete_stop_string(
    written: str, stops: list[str]
) -> None:
    ids = TOKENIZER.encode(written, add_special_tokens=False)
    assert len(ids) == len(written)  # one token a character
    out, text = _stream([[token] for token in ids], tuple(stops))
    expected, stopped = written, False
    for end in range(len(written) + 1):
        places = [at for stop in stops if (at := written[:end].find(stop)) >= 0]
        if places:
            expected, stopped = written[: min(places)], True
            break
    assert "".join(out) == expected
    assert text.stopped == stopped


def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    text = TextStream(DECODE, ("yes!",))
    (yes,) = TOKENIZER.encode(" yes", add_special_tokens=False)
    assert text.add([yes]) == " "
    assert text.finish([yes]) == "yes"


@pytest.mark.parametrize("stops", [(), ("zz",)])
def test_an_empty_answer_is_empty(stops: tuple[str, ...]) -> None:
    assert TextStream(DECODE, stops).finish([]) == ""
