"""Prompt templates: instruction, observation and request in a model family's turn markup."""

from __future__ import annotations

from typing import Any, Protocol

from rlforge.errors import ConfigError, nearest
from rlforge.games.actions import check_extraction
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

_ASK = {
    "boxed": r"Think it through step by step, then give your final action inside \boxed{}.",
    "bracket": (
        "Think it through step by step, then end with your final action in square brackets, "
        "written as the game asks for it."
    ),
    "last_line": (
        "Think it through step by step, then write your final action, and nothing else, "
        "on the last line."
    ),
    "raw": "Answer with your action and nothing else.",
}


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
    """A model family's turn markup: ``open``, instruction, observation, request, ``close``."""

    instruction: str
    open: str
    close: str


_TEMPLATES = {
    "default": Template(instruction=_ANY_GAME, open="", close="\n\nAnswer:"),
    "qwen3-zs": Template(
        instruction=_ZERO_SUM,
        open="<|im_start|>user\n",
        close="<|im_end|>\n<|im_start|>assistant\n",
    ),
    "qwen3-sp": Template(
        instruction=_SINGLE_PLAYER,
        open="<|im_start|>user\n",
        close="<|im_end|>\n<|im_start|>assistant\n",
    ),
    # Begins the block in which Qwen3 models reason before they answer.
    "qwen3-reasoning": Template(
        instruction=_ZERO_SUM,
        open="<|im_start|>user\n",
        close="<|im_end|>\n<|im_start|>assistant\n<think>\n",
    ),
    "gemma3-zs": Template(
        instruction=_ZERO_SUM,
        open="<bos><start_of_turn>user\n",
        close="<end_of_turn>\n<start_of_turn>model\n",
    ),
    "llama-instruct-zs": Template(
        instruction=_ZERO_SUM,
        open="<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n",
        close="<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
}
_CHAT = "chat"
_BOARD = "board"


def template_names() -> list[str]:
    """All templates, sorted."""
    return sorted([*_TEMPLATES, _CHAT, _BOARD])


def check_template(name: str) -> None:
    """Raises ``ConfigError`` for an unknown name."""
    if name not in template_names():
        raise ConfigError(
            f"prompt template {name!r} is unknown{nearest(name, template_names())}; there are "
            f"{', '.join(template_names())}"
        )


def messages(template: str, view: View, extraction: str = "boxed") -> list[dict[str, str]]:
    """The prompt as system and user messages, for models that are asked in that form.

    ``board`` has no instruction: the compact board is the one message. Raises ``ConfigError``
    for an unknown template and for ``board`` in a game that has no compact board.
    """
    check_template(template)
    if template == _BOARD:
        return [{"role": "user", "content": _board(view)}]
    instruction = _TEMPLATES[template].instruction if template in _TEMPLATES else _ANY_GAME
    return [
        {"role": "system", "content": f"{instruction} {_ask(extraction)}"},
        {"role": "user", "content": view.observation.strip()},
    ]


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
        text = self._text(template, view, extraction)
        ids = self._ids.get(text)
        if ids is None:
            ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
            if len(text) <= _CACHED_LENGTH:
                if len(self._ids) >= _CACHE_SIZE:
                    self._ids.clear()
                self._ids[text] = ids
        return text, ids

    def _text(self, template: str, view: View, extraction: str) -> str:
        check_template(template)
        if template == _BOARD:
            return _board(view)
        if template == _CHAT:
            return self._chat(messages(template, view, extraction))
        form = _TEMPLATES[template]
        return (
            f"{form.open}{form.instruction}\n\n{view.observation.strip()}\n\n"
            f"{_ask(extraction)}{form.close}"
        )

    def _chat(self, conversation: list[dict[str, str]]) -> str:
        if not self._tokenizer.chat_template:
            raise ConfigError(
                "prompt template 'chat' needs a chat template, which this tokenizer does not "
                "have; use 'default' or the template of the model's family"
            )
        text = self._tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True
        )
        return str(text)


def _ask(extraction: str) -> str:
    check_extraction(extraction)
    return _ASK[extraction]


def _board(view: View) -> str:
    if view.board is None:
        raise ConfigError(
            "prompt template 'board' needs a game with a compact board (TicTacToe, SimpleTak, "
            "ConnectFour, KuhnPoker; OpenSpiel's tic_tac_toe, connect_four, kuhn_poker and "
            "leduc_poker; markets); use another template"
        )
    return view.board
