"""Prompt templates: instruction, observation and request in a model family's turn markup."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from rlforge.config.plugins import EXTRACTIONS, PROMPTS
from rlforge.errors import ConfigError
from rlforge.games.actions import Extractor
from rlforge.games.base import View
from rlforge.types import value

#: Prompts whose token ids are cached, and their longest length in characters. Compact boards
#: recur, and tokenising one takes as long as a tiny model's answer.
_CACHE_SIZE, _CACHED_LENGTH = 1 << 15, 128

_ZERO_SUM = (
    "You play a two-player zero-sum game: whatever you win, your opponent loses. "
    "Choose a valid action that brings you closer to winning."
)
_SINGLE_PLAYER = "You play a game on your own. Choose valid actions until it is solved completely."
_ANY_GAME = "You are a player in a text game. Choose a valid action that helps you to win."


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that prompts need."""

    chat_template: Any

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; markup of special tokens in it becomes those tokens."""
        ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        """The conversation in the model's own turn markup."""
        ...


@value
class Template:
    """A prompt: ``open``, instruction, observation, request, ``close``.

    ``open`` and ``close`` are a model family's markup of a turn. A subclass may write the prompt in
    any other way. The request asks for the form in which the action is read from the answer.

    Example:
        >>> view = View(player_id=0, observation="Your hand: K", legal_actions=("[bet]", "[fold]"))
        >>> Template(instruction="Play poker.", close="\\nAnswer:").render(view, "One word.", None)
        'Play poker.\\n\\nYour hand: K\\n\\nOne word.\\nAnswer:'
    """

    instruction: str = _ANY_GAME
    open: str = ""
    close: str = ""

    def render(self, view: View, request: str, tokenizer: Tokenizer) -> str:
        """The prompt as text. Raises ``ConfigError`` where the game or tokenizer does not fit."""
        return (
            f"{self.open}{self.instruction}\n\n{view.observation.strip()}\n\n{request}{self.close}"
        )

    def messages(self, view: View, request: str) -> list[dict[str, str]]:
        """The prompt as messages, for models behind an API; ``ConfigError`` as in ``render``."""
        return [
            {"role": "system", "content": f"{self.instruction} {request}"},
            {"role": "user", "content": view.observation.strip()},
        ]


class ChatTemplate(Template):
    """System and user message in the markup of the tokenizer's own chat template."""

    def render(self, view: View, request: str, tokenizer: Tokenizer) -> str:
        if not tokenizer.chat_template:
            raise ConfigError(
                "prompt template 'chat' needs a chat template, which this tokenizer does not "
                "have; use 'default' or the template of the model's family"
            )
        text = tokenizer.apply_chat_template(
            self.messages(view, request), tokenize=False, add_generation_prompt=True
        )
        return str(text)


class BoardTemplate(Template):
    """The compact board and nothing else."""

    def render(self, view: View, request: str, tokenizer: Tokenizer) -> str:
        return self._board(view)

    def messages(self, view: View, request: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": self._board(view)}]

    def _board(self, view: View) -> str:
        if view.board is None:
            raise ConfigError(
                "prompt template 'board' needs a game with a compact board (TicTacToe, SimpleTak, "
                "ConnectFour, KuhnPoker; OpenSpiel's tic_tac_toe, connect_four, kuhn_poker and "
                "leduc_poker; markets); use another template"
            )
        return view.board


DEFAULT = Template(close="\n\nAnswer:")
CHAT = ChatTemplate()
BOARD = BoardTemplate()
QWEN3_ZS = Template(
    instruction=_ZERO_SUM,
    open="<|im_start|>user\n",
    close="<|im_end|>\n<|im_start|>assistant\n",
)
QWEN3_SP = dataclasses.replace(QWEN3_ZS, instruction=_SINGLE_PLAYER)
#: Begins the block in which Qwen3 models reason before they answer.
QWEN3_REASONING = dataclasses.replace(QWEN3_ZS, close=f"{QWEN3_ZS.close}<think>\n")
GEMMA3_ZS = Template(
    instruction=_ZERO_SUM,
    open="<bos><start_of_turn>user\n",
    close="<end_of_turn>\n<start_of_turn>model\n",
)
LLAMA_INSTRUCT_ZS = Template(
    instruction=_ZERO_SUM,
    open="<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n",
    close="<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
)


def messages(template: str, view: View, extraction: str = "boxed") -> list[dict[str, str]]:
    """The prompt as system and user messages, for models that are asked in that form.

    ``board`` has no instruction: the compact board is the one message. Raises ``ConfigError``
    for an unknown template and for ``board`` in a game that has no compact board.
    """
    form: Template = PROMPTS.find(template)
    return form.messages(view, _request(extraction))


class Prompter:
    """Turns what a player sees into the token ids that an engine is asked with."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: dict[str, tuple[int, ...]] = {}

    def encode(
        self, template: str, view: View, extraction: str = "boxed"
    ) -> tuple[str, tuple[int, ...]]:
        """The prompt and its token ids; no tokens are added to those of the template.

        extraction: how the answer will be read (``rlforge.games.actions``), which the prompt
        asks for. Raises ``ConfigError`` for an unknown template, for ``board`` in a game that has
        no compact board and for ``chat`` with a tokenizer that has no chat template.
        """
        form: Template = PROMPTS.find(template)
        text = form.render(view, _request(extraction), self._tokenizer)
        ids = self._ids.get(text)
        if ids is None:
            ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
            if len(text) <= _CACHED_LENGTH:
                if len(self._ids) >= _CACHE_SIZE:
                    self._ids.clear()
                self._ids[text] = ids
        return text, ids


def _request(extraction: str) -> str:
    extractor: Extractor = EXTRACTIONS.find(extraction)
    return extractor.request
