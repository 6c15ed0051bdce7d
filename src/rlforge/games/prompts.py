"""Prompt templates: what a player is asked in a conversation, and in which markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

from rlforge.config.plugins import EXTRACTIONS, PROMPTS
from rlforge.config.prompts import PLACEHOLDER, PromptConfig
from rlforge.errors import ConfigError
from rlforge.games.actions import Extractor
from rlforge.games.base import View
from rlforge.games.board import grid_text
from rlforge.games.encoding import Encoder
from rlforge.games.grids import Grid
from rlforge.games.markup import (
    CHATML,
    GEMMA,
    LLAMA,
    MARKUPS,
    PLAIN,
    Markup,
    Message,
    Prompt,
    Tokenizer,
    by_chat_template,
)
from rlforge.types import Form, value

# Compact boards recur, and tokenising one takes as long as a tiny model's answer.
#: Prompts whose token ids are cached, and their longest length in characters.
_CACHE_SIZE, _CACHED_LENGTH = 1 << 15, 128

_ZERO_SUM = (
    "You play a two-player zero-sum game: whatever you win, your opponent loses. "
    "Choose a valid action that brings you closer to winning."
)
_SINGLE_PLAYER = "You play a game on your own. Choose valid actions until it is solved completely."
#: Begins the texts of templates for any game; markets have words of their own in its place.
ANY_GAME = "You are a player in a text game. Choose a valid action that helps you to win."
_ASKED = "{observation}\n\n{request}"


@value
class Template:
    """Texts that ask a player, and the conversation's markup; None: the tokenizer's own.

    Texts hold ``{observation}``, ``{legal_actions}``, ``{request}``, ``{board}`` and ``{grid}``, as
    in YAML (``prompts`` in docs/config.md). A subclass may write messages in another way.

    Attributes:
        later: The user message of later turns; empty takes ``user``.
        assistant: The opening of each answer.
        players: How many the texts speak of; None: any number.
        games: Beginnings of the ids of games that the texts are about; empty: any.

    Example:
        >>> template = Template(user="Play poker.\\n\\n{observation}\\n\\n{request}")
        >>> view = View(player_id=0, observation="Your hand: K", legal_actions=("[bet]", "[fold]"))
        >>> template.messages(view, "One word.")
        [{'role': 'user', 'content': 'Play poker.\\n\\nYour hand: K\\n\\nOne word.'}]
        >>> template.render(template.messages(view, "One word."), None).text[-9:]
        'One word.'
    """

    user: str = f"{ANY_GAME}\n\n{_ASKED}"
    later: str = ""
    system: str = ""
    assistant: str = ""
    markup: Markup | None = PLAIN
    players: int | None = None
    games: tuple[str, ...] = ()

    def lacks(self, view: View) -> str | None:
        """The part that the texts show and the game of ``view`` does not have, if any."""
        texts = f"{self.system}{self.user}{self.later}"
        if "{board}" in texts and view.board is None:
            return "compact board"
        return "grid of squares" if "{grid}" in texts and view.grid is None else None

    @property
    def shows_boards_only(self) -> bool:
        """Whether the texts hold nothing but ``{board}``, for models that know no words."""
        texts = f"{self.system}{self.user}{self.later}{self.assistant}"
        return not texts.replace("{board}", "").strip()

    @property
    def shows_observation(self) -> bool:
        """Whether the texts hold the game's own text; a subclass may."""
        texts = f"{self.system}{self.user}{self.later}"
        return "{observation}" in texts or type(self) is not Template

    def messages(self, view: View, request: str) -> list[Message]:
        """The first messages; ConfigError where the game ``lacks`` what they show."""
        user = {"role": "user", "content": _filled(self.user, view, view.observation, request)}
        if not self.system:
            return [user]
        system = _filled(self.system, view, view.observation, request)
        return [{"role": "system", "content": system}, user]

    def reply(self, view: View, request: str) -> str:
        """The user message of a later turn."""
        news = view.observation if view.news is None else view.news
        return _filled(self.later or self.user, view, news, request)

    def render(self, messages: Sequence[Message], tokenizer: Tokenizer) -> Prompt:
        """A conversation and the opening of the next answer."""
        if self.markup is not None:
            return self.markup.render(messages, self.assistant)
        return by_chat_template(messages, self.assistant, tokenizer)


DEFAULT = Template(later=_ASKED, assistant="\n\nAnswer:")
CHAT = Template(system=f"{ANY_GAME} {{request}}", user="{observation}", markup=None)
#: For models that know no game's notation: the default for API models.
CHAT_ACTIONS = Template(
    system=f"{ANY_GAME} {{request}}",
    user="{observation}\n\nYour legal actions: {legal_actions}",
    markup=None,
)
BOARD = Template(user="{board}")
QWEN3_ZS = Template(user=f"{_ZERO_SUM}\n\n{_ASKED}", later=_ASKED, markup=CHATML, players=2)
QWEN3_SP = Template(user=f"{_SINGLE_PLAYER}\n\n{_ASKED}", later=_ASKED, markup=CHATML, players=1)
#: Begins the block in which Qwen3 models reason before they answer.
QWEN3_REASONING = replace(QWEN3_ZS, assistant="<think>\n")
GEMMA3_ZS = replace(QWEN3_ZS, markup=GEMMA)
LLAMA_INSTRUCT_ZS = replace(QWEN3_ZS, markup=LLAMA)


class Prompter:
    """Writes what the player at a seat is asked, and encodes it for an engine.

    prompts: templates of the configuration, found before all others. tokenizer None: only messages
    are written.

    Example:
        >>> view = View(player_id=0, observation="Your hand: K")
        >>> Prompter(None).messages(Form(extraction="raw"), view)[0]["content"].splitlines()[-1]
        'Answer with your action and nothing else.'
    """

    def __init__(
        self, tokenizer: Tokenizer | None, prompts: Mapping[str, PromptConfig] | None = None
    ) -> None:
        self._tokenizer: Any = tokenizer
        self._templates = {
            name: Template(
                system=one.system,
                user=one.user,
                later=one.later or "",
                assistant=one.assistant,
                markup=Markup(**one.roles) if one.roles else MARKUPS[one.markup],
                games=tuple(one.games),
            )
            for name, one in (prompts or {}).items()
        }
        self._boards: dict[tuple[Form, str | Grid | None], tuple[str, tuple[int, ...]]] = {}

    def template(self, name: str) -> Template:
        """The template called ``name``; ConfigError for an unknown one."""
        found = self._templates.get(name)
        if found is None:
            found = self._templates[name] = PROMPTS.find(name)
        return found

    def messages(self, form: Form, view: View) -> list[Message]:
        """The first messages of a player; ConfigError for unknown names."""
        return self.template(form.template).messages(view, _request(form.extraction))

    def reply(self, form: Form, view: View) -> Message:
        """The user message of a later turn."""
        content = self.template(form.template).reply(view, _request(form.extraction))
        return {"role": "user", "content": content}

    def render(self, form: Form, messages: Sequence[Message]) -> Prompt:
        """The prompt of a conversation; ConfigError where the chat template does not take it."""
        return self.template(form.template).render(messages, self._tokenizer)

    def ids(self, prompt: Prompt, *, begins: bool = True) -> tuple[int, ...]:
        """Token ids of a prompt. begins: False for a later part of one."""
        return self._encoder.encode(prompt, begins=begins)

    def encode(self, form: Form, view: View) -> tuple[str, tuple[int, ...]]:
        """The first prompt of a player and its token ids."""
        key = form, view.board or view.grid
        known = self._boards.get(key)
        if known is not None:
            return known
        prompt = self.render(form, self.messages(form, view))
        encoded = prompt.text, self.ids(prompt)
        template = self.template(form.template)
        shown = f"{template.system}{template.user}"
        more = any(place in shown for place in ("{observation}", "{legal_actions}"))
        # Only texts that follow from the position are kept; a subclass may show anything else.
        if len(prompt.text) <= _CACHED_LENGTH and type(template) is Template and not more:
            if len(self._boards) >= _CACHE_SIZE:
                self._boards.clear()
            self._boards[key] = encoded
        return encoded

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self._tokenizer)


def _request(extraction: str) -> str:
    extractor: Extractor = EXTRACTIONS.find(extraction)
    return extractor.request


# ---------------------------------------------------------------- texts with placeholders


def _filled(text: str, view: View, observation: str, request: str) -> str:
    paragraphs = []
    for names, parts in _paragraphs(text):
        # Where the game lists no legal actions, a paragraph about them would be wrong.
        if view.legal_actions is not None or "legal_actions" not in names:
            words = (
                _shown(part, view, observation, request) if named else part for named, part in parts
            )
            paragraphs.append("".join(words))
    return "\n\n".join(paragraphs)


@lru_cache(maxsize=256)
def _paragraphs(text: str) -> list[tuple[frozenset[str], list[tuple[bool, str]]]]:
    """Each paragraph's placeholders, and its parts with whether they are placeholders."""
    found = []
    for paragraph in text.split("\n\n"):
        parts: list[tuple[bool, str]] = []
        pieces = PLACEHOLDER.split(paragraph)
        for index in range(0, len(pieces), 3):
            literal, escaped, name = (*pieces[index : index + 3], None, None)[:3]
            parts += [(False, f"{literal}{escaped or ''}")]
            parts += [(True, name)] if name else []
        found.append((frozenset(part for named, part in parts if named), parts))
    return found


def _shown(place: str, view: View, observation: str, request: str) -> str:
    if place == "board":
        if view.board is None:
            raise ConfigError(
                "a prompt template with {board}, as 'board', needs a game with a compact board "
                "(TicTacToe, SimpleTak, ConnectFour, KuhnPoker, all of OpenSpiel, markets); use "
                "another template"
            )
        return view.board
    if place == "grid":
        if view.grid is None:
            raise ConfigError(
                "a prompt template with {grid} needs a game on a grid of squares (TicTacToe, "
                "SimpleTak, ConnectFour; OpenSpiel's tic_tac_toe and connect_four); use another "
                "template"
            )
        return grid_text(view.grid)
    if place == "legal_actions":
        return ", ".join(view.legal_actions or ())
    return request if place == "request" else observation.strip()
