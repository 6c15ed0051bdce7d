"""The configuration of supervised fine-tuning: what is learned from, and how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from rlforge.config.plugins import TEACHERS
from rlforge.config.rules import Beta, Count, Group, Number, Positive, Problem, Text
from rlforge.config.schema import GamesConfig
from rlforge.config.training import AlgorithmConfig, LearnerConfig, SupervisedConfig
from rlforge.types import Outcome

ACTION = "{action}"
"""Stands in ``data.answer`` for the action."""


@dataclass
class DataConfig(Group):
    """The answers that are learned from (group ``data``): of players, of a run, or of a file."""

    #: Players of games in ``env.train``, which take turns at the seats: scripted ones,
    #: ``hf:ORG/MODEL``, ``hf:FOLDER``, ``openai:MODEL``, ``openrouter:MODEL`` or
    #: ``litellm:PROVIDER/MODEL``. In a market: scripted traders.
    players: list[Text] = field(default_factory=list)
    #: Players of ``data.players`` that are learned from; empty: all.
    imitate: list[Text] = field(default_factory=list)
    #: Games that ``data.players`` play; in a market: episodes of eight traders.
    games: Count = 1000
    #: Answer of scripted players; ``{action}`` stands for the action in the form that is read.
    answer: Text = ACTION
    #: Directory of a run, whose model's own answers are learned from, token by token.
    run: Text | None = None
    #: Dataset with columns ``messages``, or ``prompt`` and ``completion``: a jsonl, parquet or csv
    #: file, or a folder as ``datasets`` saves it.
    file: Text | None = None
    #: Games that count, by the outcome for the player that answered; in a market decisions, by
    #: their profit. Files have no outcomes.
    keep: Literal["all", "wins", "wins_and_draws"] = "all"
    #: Least reward of that game, or decision in a market; null: any.
    min_reward: Number | None = None
    #: Learn only this many last turns of each player in a game; null: all.
    last_turns: Count | None = None
    #: Use equal pairs of prompt and answer once.
    unique: bool = False
    #: Most samples to learn from, drawn at random; null: all.
    max_samples: Count | None = None
    #: Share of games, or of rows of a file, that is held out and measured.
    validation: Beta = 0.05
    #: Passes over the samples.
    epochs: Positive = 2.0

    def counts(self, outcome: Outcome, reward: float) -> bool:
        good = {"all": ("win", "draw", "loss"), "wins": ("win",), "wins_and_draws": ("win", "draw")}
        return outcome in good[self.keep] and (self.min_reward is None or reward >= self.min_reward)

    def clashes(self) -> Iterator[Problem]:
        if not (self.players or self.run or self.file):
            yield (
                "players",
                "there is nothing to learn from: add data=random_legal, data.run=RUN or "
                "data.file=FILE",
            )
        if strangers := [name for name in self.imitate if name not in self.players]:
            yield "imitate", f"{strangers[0]} is none of data.players"
        if ACTION not in self.answer:
            yield "answer", f"must hold {ACTION}, as in 'I play {ACTION}'"


@dataclass
class SftLearnerConfig(LearnerConfig):
    """How the policy is updated (group ``learner``) in supervised fine-tuning."""

    #: Samples per update.
    batch_size: Count = 64
    #: Updates between saved versions, from which ``--resume`` can go on, and between measurements
    #: of the held-out samples.
    save_every: Count = 50


@dataclass
class SftConfig(GamesConfig):
    """A run that learns answers by supervised fine-tuning."""

    kind = "sft"
    primary = "sft"
    command = "sft"
    about = "a supervised run"

    data: DataConfig = field(default_factory=DataConfig)
    #: The group ``market`` of a continuous run, where ``data.players`` trade; null: they play.
    market: dict[str, Any] | None = None
    algorithm: AlgorithmConfig = field(default_factory=SupervisedConfig)
    learner: SftLearnerConfig = field(default_factory=SftLearnerConfig)

    @property
    def teachers(self) -> Any:
        return TEACHERS.find("games" if self.market is None else "market")

    @property
    def total_updates(self) -> int | None:
        # How many samples there are is known when the data have been read.
        if self.data.max_samples is None:
            return None
        # Less than a batch makes an update, too.
        return max(1, round(self.data.epochs * self.data.max_samples / self.learner.batch_size))
