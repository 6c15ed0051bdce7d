"""Prompts for the model's agents in a market, and the actions that its answers name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rlforge.config.model import ModelConfig
from rlforge.config.prompts import PromptConfig
from rlforge.config.schema import PolicyConfig
from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.market.actions import ActionError, Json, action_schema
from rlforge.continuous.market.compact import Compact, is_compact
from rlforge.continuous.market.text import ParsedAction, describe, prompt, read
from rlforge.continuous.market.world import World
from rlforge.errors import ConfigError
from rlforge.games.actions import extract
from rlforge.games.base import View
from rlforge.games.markup import Message, Tokenizer
from rlforge.games.prompts import ANY_GAME, Prompter, Template
from rlforge.types import Form, value

#: Characters of a state below which an agent would see no market.
_LEAST_STATE = 200

#: What a template for any game says in a market, and how an action in prose is asked for.
_TRADER = "You trade in a market. Choose the action that earns you most."
_REQUEST = "End with one action as a JSON object."


def longest_prompt(config: PolicyConfig) -> int:
    """Tokens of the longest prompt that leaves room for an answer, also in training."""
    longest = config.learner.max_train_len or config.engine.max_model_len
    return min(config.engine.prompt_room, longest - config.engine.max_tokens)


def asked_form(model: ModelConfig) -> str:
    """The extraction whose form of answers is asked for: ``json`` in prose."""
    return model.action_extraction if model.prompt_template == "board" else "json"


@value
class Question:
    """A prompt about ``state``, in the compact form about the market ``focus``.

    legal: compact answers. schema: JSON schema of an answer; None: any answer. messages: of a
    ``ChatPrompter``, which writes no token ids.
    """

    state: Json
    text: str
    focus: str = ""
    legal: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    schema: Json | None = None
    messages: tuple[Message, ...] = ()


def _in_market(template: Template) -> Template:
    """``template`` with words on markets where it speaks of any game."""
    texts = {name: getattr(template, name) for name in ("user", "later", "system")}
    return replace(template, **{k: text.replace(ANY_GAME, _TRADER) for k, text in texts.items()})


class ChatPrompter:
    """Writes questions in prose for models behind an API, and reads the actions in answers.

    Args:
        template: Name of the prompt template.
        prompts: Templates of the configuration.
        market: The market that is traded in.
        constrained: Answers are to be one JSON action that the state allows.
    """

    def __init__(
        self,
        template: str,
        prompts: Mapping[str, PromptConfig],
        market: MarketConfig,
        *,
        constrained: bool,
    ) -> None:
        self._template = _in_market(Prompter(None, prompts).template(template))
        self._most, self._constrained = market.prompt_chars, constrained

    def ask(self, state: Json) -> Question:
        """The question to a trader that sees ``state``."""
        view = View(player_id=0, observation=prompt(state, self._most))
        said = self._template.messages(view, _REQUEST)
        return Question(
            state=state,
            text="\n\n".join(message["content"] for message in said),
            schema=action_schema(state) if self._constrained else None,
            messages=tuple(said),
        )

    def read(self, question: Question, answer: str) -> ParsedAction:
        """The action that ``answer`` names; the market may still refuse it."""
        return read(answer)


class AgentPrompter:
    """Writes prompts in the model's template, and reads the actions in answers.

    The template ``board`` asks in the words of ``rlforge.continuous.market.compact``, any other in
    prose for an action as JSON. Raises ``ConfigError`` where the rules alone are too long.

    Args:
        config: Configuration of the market, with limits on the state that is shown.
        market: The market that is traded in.
        tokenizer: The model's.
        constrained: Answers in prose are to be one JSON action that the state allows.
    """

    def __init__(
        self,
        config: PolicyConfig,
        market: MarketConfig,
        tokenizer: Tokenizer,
        *,
        constrained: bool = False,
    ) -> None:
        self._compact = Compact(market)
        self._prompter, self._tokenizer = Prompter(tokenizer, config.prompts), tokenizer
        self._prose: Template | None = None
        self.extraction = asked_form(config.model)
        if config.model.prompt_template != "board":
            self._prose = _in_market(self._prompter.template(config.model.prompt_template))
        self._constrained = constrained and self._prose is not None
        self._config, self._room = config, longest_prompt(config)
        self._most = market.prompt_chars
        world = World(market)
        world.join("agent")
        # Raises at once where the room is too small.
        self.ask(world.state("agent"))

    def ask(self, state: Json) -> Question:
        """The prompt of an agent that sees ``state``."""
        focus = self._compact.focus(state)
        board, most = self._compact.text(state, focus), self._most
        # Only a written prompt shows whether it fits.
        while True:
            prose = prompt(state, most) if self._prose else ""
            view = View(player_id=0, observation=prose, board=board)
            if self._prose is None:
                text, token_ids = self._prompter.encode(
                    Form(template="board", extraction=self.extraction), view
                )
            else:
                said = self._prose.messages(view, _REQUEST)
                asked = self._prose.render(said, self._tokenizer)
                text, token_ids = asked.text, self._prompter.ids(asked)
            over = len(token_ids) - self._room
            if over <= 0:
                break
            shown = len(describe(state, most))
            if self._prose is None or (most is not None and most <= _LEAST_STATE):
                raise self._too_long(len(token_ids))
            # Less by the characters of the tokens too many, and by one at least.
            most = max(_LEAST_STATE, shown - max(1, over * len(text) // len(token_ids)))
        legal = self._compact.actions(state, focus)
        return Question(
            state=state,
            focus=focus,
            legal=legal,
            text=text,
            token_ids=token_ids,
            schema=action_schema(state) if self._constrained else None,
        )

    def read(self, question: Question, answer: str) -> ParsedAction:
        """The action that ``answer`` names; the market may still refuse it."""
        given = read(answer)
        if given.action is not None or self._prose is not None:
            return given
        # The compact form is read with the model's extraction, as in a game.
        found = extract(self.extraction, answer, question.legal)
        if not found.well_formed:
            return ParsedAction(action=None, feedback=found.feedback)
        if not is_compact(found.action):
            return given
        try:
            action = self._compact.action(found.action, question.state, question.focus)
        except ActionError as error:
            return ParsedAction(action=None, feedback=str(error))
        return ParsedAction(action=action)

    def _too_long(self, tokens: int) -> ConfigError:
        engine, key = self._config.engine, "engine.max_model_len"
        have, answer = engine.max_model_len, engine.max_tokens
        if (trained := self._config.learner.max_train_len) is not None and trained < have:
            key, have = "learner.max_train_len", trained
        return ConfigError(
            f"{key}={have}: a prompt about the market has {tokens} tokens, and there is room for "
            f"{self._room}, as an answer may have engine.max_tokens={answer}; raise it to "
            f"{tokens + answer} or more"
        )
