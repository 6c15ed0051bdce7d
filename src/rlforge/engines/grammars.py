"""Answers that keep to a grammar: which tokens may come next.

Grammars are in the Lark dialect of llguidance, in which JSON schemas are terms. Log-probs are of
the distribution over the tokens with which an answer of the grammar continues.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlforge.errors import EngineError

if TYPE_CHECKING:  # imported at the first grammar: most runs have none
    from llguidance import LLMatcher, LLTokenizer

# White space of ``json.dumps``, which models have seen most.
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def json_term(schema: Mapping[str, Any]) -> str:
    """A term of a grammar: JSON of ``schema``."""
    return f"%json {json.dumps({**schema, 'x-guidance': _JSON_STYLE})}"


def json_grammar(schema: Mapping[str, Any]) -> str:
    """The grammar of answers that are JSON of ``schema``.

    Example:
        >>> json_grammar({"type": "boolean"}).partition(" ")[0]
        'start:'
    """
    return f"start: {json_term(schema)}"


def grammar_of(schema: Mapping[str, Any] | None) -> str | None:
    """``json_grammar`` of a schema that may be absent; None: any answer."""
    return None if schema is None else json_grammar(schema)


@lru_cache(maxsize=64)
def check_grammar(grammar: str) -> None:
    """Raise ValueError where llguidance cannot read ``grammar``.

    Example:
        >>> check_grammar(json_grammar({"type": "colour"}))
        Traceback (most recent call last):
        ...
        ValueError: failed to compile JSON schema: Invalid type: colour
    """
    from llguidance import LLMatcher

    if problem := LLMatcher.validate_grammar(grammar):
        raise ValueError(_reason(problem))


class Grammars:
    """The grammars of a Hugging Face tokenizer, compiled at their first use.

    ``vocab_size`` is the number of logits.

    Example:
        >>> from rlforge.models.tiny.vocabulary import build_tokenizer
        >>> tokenizer = build_tokenizer([])  # a token a byte
        >>> grammars = Grammars(tokenizer, len(tokenizer))
        >>> state = grammars.begin(json_grammar({"type": "boolean"}), [tokenizer.eos_token_id])
        >>> [tokenizer.decode([int(token)]) for token in state.allowed().nonzero()[0]]
        ['f', 't']
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._tokens = lru_cache(maxsize=4)(self._with_stops)
        self._compiled = lru_cache(maxsize=64)(self._compile)

    def begin(self, grammar: str, stop_token_ids: Collection[int]) -> GrammarState:
        """The state before the first token of an answer.

        Without stop tokens it ends with the tokenizer's end of text, or where nothing can follow.
        Raises EngineError where llguidance cannot read the grammar or the tokenizer.
        """
        matcher = self._compiled(grammar, tuple(stop_token_ids)).deep_copy()
        return GrammarState(matcher, self._vocab_size)

    def _compile(self, grammar: str, stops: tuple[int, ...]) -> LLMatcher:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokens(stops), grammar, log_level=0)
        if matcher.is_error():
            raise EngineError(
                f"the grammar of an answer is invalid: {_reason(matcher.get_error())}"
            )
        return matcher

    def _with_stops(self, stops: tuple[int, ...]) -> LLTokenizer:
        from llguidance.hf import from_tokenizer

        # Stop tokens with a text of their own may stand within an answer.
        special = [token for token in stops if token in self._tokenizer.all_special_ids]
        try:
            return from_tokenizer(
                self._tokenizer, n_vocab=self._vocab_size, eos_token=special or list(stops) or None
            )
        except ValueError as error:
            kind = type(self._tokenizer).__name__
            raise EngineError(
                f"answers cannot be held to a grammar with {kind}: {error}"
            ) from error


class GrammarState:
    """The place of an unfinished answer in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Whether each token may come next, [V]. Raises EngineError beyond llguidance's limits."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._raise_failure()
        allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
        return allowed.view(np.bool_)

    def take(self, token: int) -> None:
        """Continue with a token that is allowed. Raises EngineError for any other."""
        self._matcher.consume_token(token)
        self._raise_failure()

    @property
    def complete(self) -> bool:
        """Whether nothing but a stop token may follow."""
        return bool(self._matcher.is_stopped())

    def _raise_failure(self) -> None:
        if self._matcher.is_error():
            raise EngineError(
                f"the answer leaves its grammar: {_reason(self._matcher.get_error())}"
            )


def _reason(message: str) -> str:
    """The message of llguidance in one line, without the place in the grammar."""
    text = message.partition("\n   1 |")[0].partition("<state>")[0]
    if text.startswith("at "):
        text = text.partition("): ")[2]
    return " ".join(text.split())[:300]
