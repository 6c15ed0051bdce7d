"""Prompts for the model's agents in a market, and the actions that its answers name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlforge.config.market import MarketConfig
from rlforge.config.prompts import PromptConfig
from rlforge.games.actions import extract
from rlforge.games.base import View
from rlforge.games.markup import Tokenizer
from rlforge.games.prompts import Prompter
from rlforge.market.actions import ActionError, Json
from rlforge.market.compact import Compact, is_compact
from rlforge.market.text import prompt, read
from rlforge.types import value


@value
class Question:
    """A prompt about ``state``; its compact form is about one market, the ``focus``.

    legal: the compact answers that the market accepts.
    """

    state: Json
    focus: str
    legal: tuple[str, ...]
    text: str
    token_ids: tuple[int, ...]


@value
class Reading:
    """action: the one that an answer names; None, with a ``problem``, where it names none."""

    action: Json | None
    problem: str = ""


class AgentPrompter:
    """Writes prompts in the model's template, and reads answers by its extraction.

    The template ``board`` asks in the compact words of ``rlforge.market.compact``, every other one
    in prose. Both forms of answer are read after both forms of prompt.
    """

    def __init__(
        self,
        market: MarketConfig,
        tokenizer: Tokenizer,
        *,
        template: str,
        extraction: str,
        prompts: Mapping[str, PromptConfig] | None = None,
    ) -> None:
        self._compact = Compact(market)
        self._prompter = Prompter(tokenizer, prompts)
        self._template, self._extraction = template, extraction

    def ask(self, state: Json) -> Question:
        """The prompt of an agent that sees ``state``."""
        focus = self._compact.focus(state)
        prose = "" if self._template == "board" else prompt(state)
        view = View(player_id=0, observation=prose, board=self._compact.text(state, focus))
        text, token_ids = self._prompter.encode(self._template, view, self._extraction)
        legal = self._compact.actions(state, focus)
        return Question(state=state, focus=focus, legal=legal, text=text, token_ids=token_ids)

    def read(self, question: Question, answer: str) -> Reading:
        """The action that ``answer`` names; the market may still refuse it."""
        found = extract(self._extraction, answer, question.legal)
        if not found.well_formed:
            return Reading(action=None, problem=found.feedback)
        if not is_compact(found.action):
            reading = read(found.action)
            return Reading(action=reading.action, problem=reading.feedback)
        try:
            action: Any = self._compact.action(found.action, question.state, question.focus)
        except ActionError as error:
            return Reading(action=None, problem=str(error))
        return Reading(action=action)
