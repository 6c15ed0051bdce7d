"""Which games are played, how they are collected, rewarded, kept and evaluated."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, Literal

from rlforge.config.rules import (
    DISTINCT,
    Count,
    Group,
    Length,
    NotNegative,
    Number,
    OneOf,
    Positive,
    Problem,
    Text,
    Whole,
)
from rlforge.types import Actions, Winners

CountOrAuto = Annotated[Count | Literal["auto"], OneOf("a whole number of 1 or more, or auto")]


@dataclass
class EnvEntry(Group):
    """One environment to train or evaluate in."""

    #: TextArena id (``SimpleTak-v0-train``), OpenSpiel name (``kuhn_poker``) or market preset
    #: (``market-small``).
    id: Text = "SimpleTak-v0-train"
    #: Source of the game: ``textarena``, ``openspiel``, ``market`` or one of your own.
    source: str = "textarena"
    #: Number of seats.
    num_players: Count = 2
    #: Share of training games, relative to the other environments.
    weight: Positive = 1.0
    #: Turns after which a game is cut and scored as a draw; null: it is played to its end, for
    #: games that are over at some time whatever is played.
    max_turns: Count | None = 200
    #: Seconds after which a game is cut and scored as a draw; without a turn by then it failed.
    #: null: it is not cut, as games slow down where more of them are under way than engines have
    #: room for.
    timeout_s: Positive | None = 600.0
    #: Invalid moves in a row that a player may take back.
    error_allowance: Whole = 1
    #: Least score that is a win in a game of one player or one team, in rewards
    #: (``win_draw_loss``), metrics and evaluations. TextArena pays 1 for a solution and less for a
    #: part of it.
    win_score: Number = 1.0
    #: Which of several players win: ``one``, the highest reward, and a shared one is a draw;
    #: ``team``, those who share it; ``all``, as one team, by ``win_score``. Null takes what is
    #: known of the games of TextArena and OpenSpiel, and ``one`` for any other.
    winners: Winners | None = None
    #: How the actions of OpenSpiel games are written: in ``words``, or as OpenSpiel's ``numbers``,
    #: ``[0]``, ``[1]`` …, which a model without ``[raise]`` among its tokens learns sooner.
    #: connect_four has its columns either way.
    actions: Actions = "words"
    #: Prompt template; null takes ``model.prompt_template``.
    prompt_template: str | None = None
    #: Action extraction; null takes ``model.action_extraction``.
    action_extraction: str | None = None


@dataclass
class EvalEnvEntry(EnvEntry):
    """One environment to evaluate in."""

    #: Opponents in this environment; null or empty takes ``eval.opponents``, or those of ``env``.
    opponents: list[Text] | None = None


@dataclass
class EnvConfig(Group):
    """Which games are played (group ``env``)."""

    #: Environments that training games are drawn from, by weight.
    train: Annotated[list[EnvEntry], Length(1, inf)] = field(default_factory=lambda: [EnvEntry()])
    #: Environments of the evaluations; empty means those of ``env.train``.
    eval: list[EvalEnvEntry] = field(default_factory=list)
    #: Opponents of evaluations, each in the games that it can play, unless ``eval.opponents`` names
    #: others.
    opponents: list[Text] = field(default_factory=list)
    #: What a prompt holds: the current observation (``turn``), or all turns of the player in the
    #: game, with its own answers (``conversation``).
    context: Literal["turn", "conversation"] = "turn"
    #: Where a conversation outgrows ``engine.max_model_len`` or the model's positions: ``end`` the
    #: game (reason ``context_limit``), or ``drop_oldest`` turns but the first, which has the rules,
    #: as soon as less than ``engine.max_tokens`` are left for an answer.
    overflow: Literal["end", "drop_oldest"] = "end"


@dataclass
class RewardsConfig(Group):
    """Reward transforms in order of application (group ``rewards``).

    Each entry is a mapping with ``name`` and that transform's parameters.
    """

    #: On the vector of final rewards of a game.
    final: list[dict[str, Any]] = field(default_factory=list)
    #: On each turn of an episode.
    step: list[dict[str, Any]] = field(default_factory=list)
    #: On each batch drawn from the buffer.
    sampling: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class BufferConfig(Group):
    """Samples between collector and learner (group ``buffer``)."""

    #: Samples of the buffer: single turns (``step``) or whole episodes (``episode``).
    kind: Literal["step", "episode"] = "step"
    #: Most samples kept; beyond it, random ones are evicted.
    max_size: Count = 768
    #: Eviction: ``random``, uniformly among the samples in the buffer, old and new.
    strategy: Literal["random"] = "random"
    #: Most updates between the version that played the newest turn of a game (or group) and the
    #: version that is trained; all of a game or none is dropped beyond. 0 is strictly on-policy: an
    #: update waits for the games in progress, and no turn is older.
    max_staleness: Whole = 2
    #: The same bound for the oldest turn of a game, whose first turns are as much older as it
    #: lasts. ``auto``: half as much again as games last that are as long as all but 2 % of the
    #: samples' (games in progress, times samples of the game, by ``learner.batch_size``).
    max_age: CountOrAuto = "auto"
    #: Write each batch under the run directory.
    save_batches: bool = True
    #: Formats of those files: ``parquet``, which keeps all types, and ``csv``, where lists are JSON
    #: text.
    save_batches_as: Annotated[list[Literal["parquet", "csv"]], Length(1, inf), DISTINCT] = field(
        default_factory=lambda: ["parquet"]
    )


@dataclass
class CollectorConfig(Group):
    """The collectors that play the games (group ``collector``)."""

    #: Most training games in progress in each collector; as many are, unless fewer keep the learner
    #: busy. W games of l samples each give turns a mean age of W · l / (2 · ``learner.batch_size``)
    #: updates. ``auto``: as many as give an age of one update, at most the sequences that the
    #: engines generate at once.
    num_train_workers: CountOrAuto = "auto"
    #: Evaluation games under way at once.
    num_eval_workers: Count = 16
    #: Collector processes.
    num_collectors: Count = 1
    #: Collectors without which a run does not start, with `hardware.elastic=true`.
    min_collectors: Count = 1
    #: Trained seats of a game that are learned from: ``all``, or ``one``, drawn at random. Where
    #: only one is trained, as against opponents, both are the same; in self-play ``one`` leaves
    #: half of the samples, of which no two groups are of one game.
    learned_seats: Literal["all", "one"] = "all"
    #: Of a game that a player ended by an invalid move, learn from that player's turns only: in
    #: self-play the other seats' are dropped, and the whole game where an opponent forfeited.
    filter_opponent_invalid: bool = False
    #: How often a dead collector is restarted before the run ends; the loss of its node counts too.
    max_restarts: Whole = 3
    #: Write finished games as parquet under the run directory.
    save_games: bool = True

    @property
    def most_games(self) -> int:
        """Most training games that one collector plays at once."""
        return sys.maxsize if self.num_train_workers == "auto" else self.num_train_workers

    def clashes(self) -> Iterator[Problem]:
        if self.min_collectors > self.num_collectors:
            yield (
                "min_collectors",
                f"must be collector.num_collectors={self.num_collectors} or less",
            )


@dataclass
class EvalConfig(Group):
    """Evaluation games (group ``eval``)."""

    #: Updates between evaluations, each of the newest saved version; 0: only at the start and the
    #: end.
    every: Whole = 20
    #: Instead of every ``eval.every`` updates, evaluate all the time:
    #: ``collector.num_eval_workers`` games of the newest version are under way, against the
    #: opponents in turn, up to ``eval.max_games_per_checkpoint``.
    continuous: bool = False
    #: Opponents, of which the untrained model (``base``) is one, see ``base``. null takes
    #: ``env.opponents``, which belong to the games. An entry of ``env.eval`` may have its own.
    opponents: list[Text] | None = None
    #: Meet the untrained model (``base``) beside the opponents that are named.
    base: bool = True
    #: Games per environment and opponent, seats swapped; even for two players. With
    #: ``eval.continuous`` only at the start and the end.
    games: Count = 128
    #: Games at the start and the end of training; null takes ``games``.
    final_games: Count | None = None
    #: Cap of evaluation games per version and environment; null: none, with ``eval.continuous`` 32,
    #: or more where one game per seat against each opponent needs them.
    max_games_per_checkpoint: Count | None = None
    #: Sampling temperature; null takes ``engine.temperature``.
    temperature: NotNegative | None = None
    #: At each evaluation also measure, exactly, how far the version is from an equilibrium of the
    #: evaluation environments: games of OpenSpiel with few states (``rlforge exploit``).
    exploitability: bool = False

    def clashes(self) -> Iterator[Problem]:
        if self.exploitability and self.continuous:
            yield (
                "exploitability",
                "is measured every eval.every updates; set eval.continuous=false",
            )
        if self.exploitability and self.temperature is not None:
            yield (
                "exploitability",
                "is measured at engine.temperature, by the learner; leave eval.temperature null",
            )
