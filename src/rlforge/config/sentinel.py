"""Settings of the sentinel, which watches a run for a collapse and acts on one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from rlforge.config.rules import DISTINCT, Count, Group, Positive, Probability, Problem, Range

Signal = Literal["score", "exploitability", "past", "entropy", "seat_gap", "no_advantage"]
Action = Literal["opponents", "rollback", "magnet", "smaller_steps"]


@dataclass
class SentinelConfig(Group):
    """Watches training for a collapse (group ``sentinel``); see docs/sentinel.md."""

    #: Signals: ``score`` against each opponent of evaluations; ``exploitability``, with
    #: ``eval.exploitability``; ``past``, the score against own earlier versions; ``entropy`` of
    #: answers; ``seat_gap``, reward of the first seat above that of the others; ``no_advantage``,
    #: the share of turns without one. Empty: none.
    watch: Annotated[list[Signal], DISTINCT] = field(default_factory=lambda: list(get_args(Signal)))
    #: Actions after a collapse, in this order: ``opponents``, draw them from the past as well
    #: (``pool.mode=fictitious``); ``rollback``, train on from the last version before the change;
    #: ``magnet``, take a new snapshot as the reference of the KL penalty; ``smaller_steps``,
    #: multiply the learning rate by ``step_factor``. Empty: it is only reported.
    actions: Annotated[list[Action], DISTINCT] = field(default_factory=list)
    #: Mean number of observations of a signal between two false alarms.
    rarity: Annotated[float, Range(10)] = 100_000.0
    #: Updates at the start, and after each action, by which the course of a signal is learned.
    warmup: Count = 20
    #: Change of ``score`` and ``past`` that matters, in shares of points; a draw is half a win.
    shift: Positive = 0.2
    #: Factor of the learning rate with ``smaller_steps``, each time.
    step_factor: Probability = 0.5

    def clashes(self) -> Iterator[Problem]:
        if self.actions and not self.watch:
            yield "actions", "wait for a signal; name one in sentinel.watch"
