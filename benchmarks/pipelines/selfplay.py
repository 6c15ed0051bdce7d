"""Many games of a model against itself in lockstep: all seats to move are asked in one batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlforge.config.prompts import PromptConfig
from rlforge.games.actions import extract
from rlforge.games.base import Game, View
from rlforge.games.prompts import Prompter
from rlforge.games.registry import make_game
from rlforge.types import EnvSpec, Form

from .work import Work

Ids = Sequence[int]
Generate = Callable[[list[Ids]], list[list[int]]]
"""Answers to prompts, in order, each ending with its stop token or at the longest length."""


@dataclass(frozen=True)
class Turn:
    """One turn of one seat; ``reward`` is the seat's at the end of the game."""

    prompt_ids: Ids
    answer_ids: list[int]
    reward: float


class SelfPlay:
    """``work.games`` games under way, a new one in the place of each that ends.

    So the batches are full, and a game goes on over updates, played by the newest policy. Turns
    that are left over when an update has its number wait for the next.
    """

    def __init__(self, work: Work, tokenizer: Any) -> None:
        self._work, self._tokenizer = work, tokenizer
        self._env = EnvSpec(id=work.env_id, max_turns=work.max_turns)
        self._form = Form(template=work.prompt_template, extraction=work.action_extraction)
        prompts = {name: PromptConfig(**texts) for name, texts in work.prompts.items()}
        self._prompter = Prompter(tokenizer, prompts)
        self._random = random.Random(work.seed)
        self._playing = [self._begin() for _ in range(work.games)]
        self._waiting: list[Turn] = []
        #: Of the games that ended: how many, their turns, and the tokens of the answers.
        self.games = self.turns = self.answer_tokens = 0

    def play(self, number: int, generate: Generate) -> list[Turn]:
        """The next ``number`` turns of games that ended."""
        while len(self._waiting) < number:
            self._play_round(generate)
        turns, self._waiting = self._waiting[:number], self._waiting[number:]
        return turns

    def _play_round(self, generate: Generate) -> None:
        views = [playing.game.view() for playing in self._playing]
        prompts = [self._prompt(view) for view in views]
        answers = generate(prompts)
        texts = self._tokenizer.batch_decode(answers, skip_special_tokens=True)
        for index, view in enumerate(views):
            playing = self._playing[index]
            action = extract(self._form.extraction, texts[index], view.legal_actions).action
            playing.said.append((view.player_id, prompts[index], answers[index]))
            playing.game.step(action)
            if playing.game.done:
                self._end(playing)
                self._playing[index] = self._begin()

    def _prompt(self, view: View) -> Ids:
        return self._prompter.encode(self._form, view)[1]

    def _begin(self) -> _Playing:
        return _Playing(make_game(self._env, self._random.getrandbits(32)), [])

    def _end(self, playing: _Playing) -> None:
        rewards = playing.game.result().rewards
        self.games += 1
        self.turns += len(playing.said)
        self.answer_tokens += sum(len(answer) for _, _, answer in playing.said)
        self._waiting += (Turn(ids, answer, rewards[who]) for who, ids, answer in playing.said)


@dataclass(frozen=True)
class _Playing:
    game: Game
    said: list[tuple[int, Ids, list[int]]]
    """Player, prompt and answer of each turn."""
