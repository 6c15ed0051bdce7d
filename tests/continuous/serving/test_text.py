"""Pieces of a text add up to it and end before a stop string, as do the bytes of its tokens."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import byte_tokenizer
from tests.harness.control_tokens import TOKENIZERS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlforge.continuous.serving.text import TextStream, token_bytes
from rlforge.engines.base import decoder
from rlforge.models.tiny.vocabulary import build_tokenizer

TOKENIZER: Any = build_tokenizer([" yes", " no", "go"])
DECODE = decoder(TOKENIZER)


def _stream(pieces, stops=()):
    text = TextStream(TOKENIZER, stops)
    out = [text.add(piece) for piece in pieces]
    out.append(text.finish([token for piece in pieces for token in piece]))
    return out, text


@given(st.lists(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=4), max_size=12))
def test_the_concatenated_pieces_are_the_whole_text(pieces):
    out, _ = _stream(pieces)
    assert "".join(out) == DECODE([token for piece in pieces for token in piece])


WRITTEN = "the market's don't, . ! a  quick  héllo 日本 🙂"


def _tokenizer(of):
    """A tokenizer whose tokens are joined as those of GPT-2, Llama or BERT."""
    letters = sorted({character for character in WRITTEN if character.isascii()} - {" "})
    special = {"eos_token": "</s>", "unk_token": "<unk>"}
    if of == "GPT-2":
        return byte_tokenizer(special=["<unk>", "</s>"], **special)
    if of == "Llama":
        tokens = ["▁", *letters, *(f"<0x{byte:02X}>" for byte in range(256))]
    else:
        tokens = [*letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {token: number for number, token in enumerate(["<unk>", "</s>", *tokens])}
    if of == "BERT":
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
    else:
        tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        space, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
        steps = [space, decoders.ByteFallback(), decoders.Fuse(), strip]
        tokenizer.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


@pytest.mark.parametrize("of", ["GPT-2", "Llama", "BERT"])
def test_the_pieces_of_any_kind_of_tokenizer_are_its_text_without_special_tokens(of):
    tokenizer, draw = _tokenizer(of), random.Random(0)
    for written in (WRITTEN, *("".join(draw.sample(WRITTEN, 20)) for _ in range(300))):
        ids = tokenizer.encode(written, add_special_tokens=False)
        ids.insert(draw.randrange(len(ids)), tokenizer.eos_token_id)
        text, whole = TextStream(tokenizer), decoder(tokenizer)(ids)
        pieces = [text.add([token]) for token in ids]
        assert "".join(pieces) + text.finish(ids) == text.text == whole
        assert not any("�" in piece for piece in pieces)
        assert of == "BERT" or whole.strip() == written.strip()


@given(
    written=st.text(alphabet="ab c", max_size=40),
    stops=st.lists(st.text(alphabet="ab c", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_the_text_ends_before_the_first_complete_stop_string(written, stops):
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


def test_text_that_may_begin_a_stop_string_is_held_back():
    text = TextStream(TOKENIZER, ("yes!",))
    (yes,) = TOKENIZER.encode(" yes", add_special_tokens=False)
    assert text.add([yes]) == " "
    assert text.finish([yes]) == "yes"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_bytes_of_tokens_are_those_of_the_text_of_any_kind_of_tokenizer(name):
    tokenizer, draw = TOKENIZERS[name], random.Random(0)
    whole = 0
    for count in range(400):
        if count % 2:
            ids = [draw.randrange(len(tokenizer)) for _ in range(draw.randrange(12))]
        else:
            written = "".join(draw.choices("You play [4] the é日🙂  board!", k=12))
            ids = tokenizer.encode(written, add_special_tokens=False)
            ids.insert(draw.randrange(len(ids) + 1), draw.choice([0, 1, 2]))
        found, text = token_bytes(tokenizer, ids), decoder(tokenizer)(ids)
        assert len(found) == len(ids)
        if "�" not in text:
            whole += 1
            assert b"".join(found).decode() == text
    assert whole > 100


@pytest.mark.parametrize("of", ["GPT-2", "Llama"])
def test_a_token_of_a_part_of_a_character_has_that_part(of):
    tokenizer = _tokenizer(of)
    ids = tokenizer.encode("a é日", add_special_tokens=False)
    found = token_bytes(tokenizer, [*ids, tokenizer.eos_token_id])
    parts = [bytes([byte]) for byte in "é日".encode()]
    assert [each for each in found if each] == [b"a", b" ", *parts]
    assert b"".join(found) == "a é日".encode()
    assert token_bytes(tokenizer, ids[-2:]) == parts[-2:]


def test_words_keep_the_space_in_front_of_them_but_for_the_first():
    tokenizer = _tokenizer("Llama")
    ids = tokenizer.encode("a market", add_special_tokens=False)
    assert ids[0] == ids[2]
    assert token_bytes(tokenizer, ids)[:4] == [b"", b"a", b" ", b"m"]
