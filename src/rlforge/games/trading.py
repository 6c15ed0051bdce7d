"""Prompts for the model's agents in a market, and the actions that its answers name."""

from __future__ import annotations

from typing import Any

from rlforge.config.market import MarketConfig
from rlforge.config.schema import PolicyConfig
from rlforge.errors import ConfigError
from rlforge.games.actions import extract
from rlforge.games.base import View
from rlforge.games.markup import Tokenizer
from rlforge.games.prompts import Prompter
from rlforge.market.actions import ActionError, Json
from rlforge.market.compact import Compact, is_compact
from rlforge.market.text import describe, prompt, read
from rlforge.market.world import World
from rlforge.types import value

#: Characters of a state below which an agent would see no market.
_LEAST_STATE = 200


def longest_prompt(config: PolicyConfig) -> int:
    """Tokens of the longest prompt with which an answer can be given, and learned from whole."""
    longest = config.learner.max_train_len or config.engine.max_model_len
    return min(config.engine.prompt_room, longest - config.engine.max_tokens)


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

    config: model, engine and learner, whose limits say how long a prompt may be; of a state in
    prose as much is shown as fits. Raises ``ConfigError`` where the rules alone are too long.
    """

    def __init__(self, config: PolicyConfig, market: MarketConfig, tokenizer: Tokenizer) -> None:
        self._compact = Compact(market)
        self._prompter = Prompter(tokenizer, config.prompts)
        self._template = config.model.prompt_template
        self._extraction = config.model.action_extraction
        self._room = longest_prompt(config)
        self._most = market.prompt_chars
        world = World(market)
        world.join("agent")
        self.ask(world.state("agent"))  # fails here for a room that is too small

    def ask(self, state: Json) -> Question:
        """The prompt of an agent that sees ``state``.

        Raises ``ConfigError`` where the room is too small for any state.
        """
        focus = self._compact.focus(state)
        board, most = self._compact.text(state, focus), self._most
        while True:
            prose = "" if self._template == "board" else prompt(state, most)
            view = View(player_id=0, observation=prose, board=board)
            text, token_ids = self._prompter.encode(self._template, view, self._extraction)
            over = len(token_ids) - self._room
            if over <= 0:
                break
            # As many characters less as the tokens too many have, one at least.
            most = len(describe(state, most)) - max(1, over * len(text) // len(token_ids))
            if not prose or most < _LEAST_STATE:
                raise ConfigError(
                    f"a prompt about the market has {len(token_ids)} tokens, and there is room for "
                    f"{self._room}: engine.max_model_len, or learner.max_train_len where that is "
                    "less, without engine.max_tokens"
                )
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
