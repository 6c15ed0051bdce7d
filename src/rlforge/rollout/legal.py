"""The tokens with which a legal answer goes on, at each token of an answer."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rlforge.config.model import ModelConfig
from rlforge.config.sft import ACTION
from rlforge.games.base import View
from rlforge.rollout.datasets import AnswerEncoder, written
from rlforge.types import Completion, Seat

Tokens = tuple[int, ...]


class LegalTokens:
    """The answers that are a legal action and nothing else, as a tree of tokens.

    Its branches at a token are the ways in which a legal answer goes on. An answer that holds more,
    as reasoning, is not in the tree; an illegal one leaves it.
    """

    def __init__(self, model: ModelConfig, tokenizer: Any) -> None:
        """Make the tree; ConfigError where no token ends an answer of the model."""
        self._encoder = AnswerEncoder(model, tokenizer)
        self.answers = lru_cache(maxsize=65536)(self._answers)
        self._branches = lru_cache(maxsize=65536)(self._find_branches)

    def __call__(
        self, seat: Seat, view: View, completion: Completion, accepted: bool
    ) -> tuple[Tokens, ...]:
        """One entry per token of the answer, empty ones behind where it leaves the tree.

        accepted: whether the game took it as legal.
        """
        if not view.legal_actions or not completion.token_ids:
            return ()
        legal, answer = tuple(view.legal_actions), completion.token_ids
        return self._branches(seat.form.extraction, legal, answer, accepted)

    def _answers(self, extraction: str, action: str) -> tuple[Tokens, ...]:
        said = written(ACTION, extraction, action)
        # A model may begin its answer with a space or without: other tokens, but both are legal.
        return tuple({self._encoder.answer(said, after=before): None for before in ("", ".")})

    def _find_branches(
        self, extraction: str, legal: tuple[str, ...], answer: Tokens, accepted: bool
    ) -> tuple[Tokens, ...]:
        known = {tokens for action in legal for tokens in self.answers(extraction, action)}
        # Entropies along an answer add up, in the mean over answers, to that of the distribution
        # over answers. An accepted answer outside the tree, as with reasoning, has other choices,
        # which would count as entropy 0.
        if accepted and answer not in known:
            return ()
        return tuple(
            tuple(sorted({one[at] for one in known if one[:at] == answer[:at] and at < len(one)}))
            for at in range(len(answer))
        )
