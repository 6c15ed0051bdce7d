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
    #: Turns after which a game is cut and scored as a draw; null: none.
    max_turns: Count | None = 200
    #: Seconds after which a game is cut and scored as a draw, or failed without a turn by then;
    #: null: none, where engines have less room than games are under way.
    timeout_s: Positive | None = 600.0
    #: Invalid moves in a row that a player may take back.
    error_allowance: Whole = 1
    #: Least score that is a win in a game of one player or one team. TextArena pays 1 for a
    #: solution and less for a part of it.
    win_score: Number = 1.0
    #: Winners among several players: ``one``, the highest reward, and a shared one is a draw;
    #: ``team``, all who share it; ``all``, as one team, by ``win_score``. null: as known of the
    #: games of TextArena and OpenSpiel, else ``one``.
    winners: Winners | None = None
    #: Actions of OpenSpiel games: in ``words``, or as OpenSpiel's ``numbers``, ``[0]``, ``[1]`` …,
    #: which a model without ``[raise]`` among its tokens learns sooner.
    actions: Actions = "words"
    #: Prompt template; null takes ``model.prompt_template``.
    prompt_template: str | None = None
    #: Action extraction; null takes ``model.action_extraction``.
    action_extraction: str | None = None


@dataclass
class EvalEnvEntry(EnvEntry):
    """One environment to evaluate in."""

    #: Opponents here; null or empty takes ``eval.opponents``, or ``env.opponents``.
    opponents: list[Text] | None = None


@dataclass
class EnvConfig(Group):
    """Which games are played (group ``env``)."""

    #: Environments of training games, drawn by weight.
    train: Annotated[list[EnvEntry], Length(1, inf)] = field(default_factory=lambda: [EnvEntry()])
    #: Environments of evaluations; empty: those of ``env.train``.
    eval: list[EvalEnvEntry] = field(default_factory=list)
    #: Opponents of evaluations in the games that they can play, unless ``eval.opponents`` names
    #: others.
    opponents: list[Text] = field(default_factory=list)
    #: A prompt holds the current observation (``turn``), or all turns of the player with its
    #: answers (``conversation``).
    context: Literal["turn", "conversation"] = "turn"
    #: Where a conversation outgrows ``engine.max_model_len`` or the model's positions: ``end`` the
    #: game (reason ``context_limit``), or ``drop_oldest`` turns but the first, which has the rules,
    #: once less than ``engine.max_tokens`` are left for an answer.
    overflow: Literal["end", "drop_oldest"] = "end"
    #: Show the run's model grids of squares in one of the orientations that the symmetries of the
    #: board make equal, and turn its answers back: there are fewer positions to learn.
    canonical: bool = False

    def clashes(self) -> Iterator[Problem]:
        if self.canonical and self.context == "conversation":
            yield "canonical", "turns each position by itself; use env.context=turn"


@dataclass
class RewardsConfig(Group):
    """Reward transforms in order (group ``rewards``): mappings with ``name`` and parameters."""

    #: On the final rewards of a game.
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
    #: Eviction: ``random``, uniformly among all samples.
    strategy: Literal["random"] = "random"
    #: Most updates between the version that played the newest turn of a game (or group) and the
    #: version that is trained; older games are dropped whole. 0 is strictly on-policy: an update
    #: waits for the games in progress.
    max_staleness: Whole = 2
    #: The same bound for the oldest turn of a game. ``auto``: 1.5 times the duration, in updates,
    #: of a game that is longer than those of 98 % of the samples.
    max_age: CountOrAuto = "auto"
    #: Write each batch under the run directory.
    save_batches: bool = True
    #: Formats of batches: ``parquet``, and ``csv``, where lists are JSON text.
    save_batches_as: Annotated[list[Literal["parquet", "csv"]], Length(1, inf), DISTINCT] = field(
        default_factory=lambda: ["parquet"]
    )


@dataclass
class CollectorConfig(Group):
    """The collectors that play the games (group ``collector``)."""

    #: Most training games in progress in each collector; fewer are where they keep the learner
    #: busy. W games of l samples give turns a mean age of W · l / (2 · ``learner.batch_size``)
    #: updates. ``auto``: an age of one update, at most the sequences that engines generate at once.
    num_train_workers: CountOrAuto = "auto"
    #: Evaluation games under way at once.
    num_eval_workers: Count = 16
    #: Collector processes.
    num_collectors: Count = 1
    #: Collectors without which a run does not start, with `hardware.elastic=true`.
    min_collectors: Count = 1
    #: Trained seats of a game that are learned from: ``all``, or ``one``, drawn at random, which
    #: leaves half of the samples of self-play.
    learned_seats: Literal["all", "one"] = "all"
    #: Of a game that ended by an invalid move, learn only from the player that made it.
    filter_opponent_invalid: bool = False
    #: How often a dead collector is restarted, also after the loss of its node.
    max_restarts: Whole = 3
    #: Write finished games as parquet under the run directory.
    save_games: bool = True

    @property
    def most_games(self) -> int:
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

    #: Updates between evaluations of the newest saved version; 0: only at the start and the end.
    every: Whole = 20
    #: Evaluate the newest version all the time instead, in ``collector.num_eval_workers`` games
    #: against the opponents in turn, up to ``eval.max_games_per_checkpoint``.
    continuous: bool = False
    #: Opponents beside the untrained model; null takes ``env.opponents``. An entry of ``env.eval``
    #: may have its own.
    opponents: list[Text] | None = None
    #: Meet the untrained model (``base``), too.
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
    #: Measure at each evaluation how far the version is from an equilibrium, exactly, in games of
    #: OpenSpiel with few states (``rlforge exploit``).
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
