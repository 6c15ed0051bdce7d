"""The tiny model's tokenizer: every word of the compact boards is one token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlforge.errors import RlforgeError

PAD, EOS = "<pad>", "<eos>"

#: A bracketed word or a plain one, each with the space in front of it; a sign; white space.
_WORDS = r" ?\[\w+\]| ?\w+|[^\w\s]|\s+"

#: More than all words and bytes need; training stops when every word is one token.
_MOST_TOKENS = 8000

_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n\n{% endfor %}"


def build_tokenizer(words: Iterable[str]) -> Any:
    """A byte-level BPE tokenizer (Sennrich et al. 2016) in which each of ``words`` is one token.

    words: with the space before them, if any. Raises RlforgeError for one that is divided.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_MOST_TOKENS,
        min_frequency=1,
        show_progress=False,
        special_tokens=[PAD, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    ordered = sorted(set(words))
    bpe.train_from_iterator(ordered, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token=PAD, eos_token=EOS, padding_side="left"
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    for word in ordered:
        token_id(tokenizer, word)
    return tokenizer


def token_id(tokenizer: Any, word: str) -> int:
    """The one token of ``word``; RlforgeError where it has several."""
    ids: list[int] = tokenizer.encode(word, add_special_tokens=False)
    if len(ids) != 1:
        raise RlforgeError(f"the tiny model's tokenizer has {len(ids)} tokens for {word!r}")
    return ids[0]


def closing_ids(tokenizer: Any) -> list[int]:
    """Ids of the tokens that close an action: they hold a ``]``."""
    return sorted(index for token, index in tokenizer.get_vocab().items() if "]" in token)


def spaced_words(text: str) -> list[str]:
    """The words of a board as the tokenizer sees them: all but the first with their space.

    Example:
        >>> spaced_words("board XO. ...")
        ['board', ' XO.', ' ...']
    """
    first, *rest = text.split(" ")
    return [first, *(f" {word}" for word in rest)]
