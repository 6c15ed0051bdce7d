"""Several policies in one run (key ``policies``): what each plays, meets and learns by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from rlforge.config.rules import (
    DISTINCT,
    Count,
    Group,
    Length,
    Probability,
    Problem,
    Text,
    Whole,
    pattern,
)
from rlforge.errors import nearest

START = "start"
"""Stands, as if it were the name of a policy, for the weights with which one began."""

COMMON = (
    "train",
    "initial_adapter",
    "compile",
    "gradient_checkpointing",
    "activation_checkpointing",
    "num_learners",
    "shard_weights",
    "keep_checkpoints",
    "total_updates",
    "save_every",
    "state_every",
)
"""Keys of ``learner`` that are of the model or of the whole run."""


@dataclass
class ResetConfig(Group):
    """When a policy begins anew, as the exploiters of a league do; its last version may stay."""

    #: Updates of its own after which it begins anew; null: any number.
    every: Count | None = None
    #: Score in its last 100 games, a draw being one half, above which it begins anew; null: any.
    score: Probability | None = None
    #: Weights to begin with: of its ``start``, or of the newest version of the policy of this name.
    to: Text = START


@dataclass
class PolicyEntry(Group):
    """One of several policies that a run trains.

    It trains on the games in which it has one of its seats and opponents are drawn for the others,
    at every seat that its newest version has.
    """

    #: Seats that it can take; null: each.
    seats: Annotated[list[Whole], Length(1, 16), DISTINCT] | None = None
    #: Updates of it for each of a policy with 1.
    share: Count = 1
    #: Names of policies whose versions it meets, by ``pool.mode``; null: itself.
    opponents: Annotated[list[Text], Length(1, 64), DISTINCT] | None = None
    #: Prompt template of its seats; null takes the environment's.
    prompt_template: str | None = None
    #: Action extraction of its seats; null takes the environment's.
    action_extraction: str | None = None
    #: When it begins anew.
    reset: ResetConfig = field(default_factory=ResetConfig)
    #: Keys of ``algorithm`` that differ; with another ``name`` the others have that one's defaults.
    algorithm: dict[str, Any] = field(default_factory=dict)
    #: Keys of ``learner`` that differ, such as ``batch_size`` and ``learning_rate``.
    learner: dict[str, Any] = field(default_factory=dict)
    #: Keys of ``pool`` that differ, such as ``mode`` and ``fixed_opponents``.
    pool: dict[str, Any] = field(default_factory=dict)
    #: Keys of ``rewards`` that differ.
    rewards: dict[str, Any] = field(default_factory=dict)

    def clashes(self) -> Iterator[Problem]:
        for key in self.learner:
            if key in COMMON:
                yield f"learner.{key}", f"is the same for all policies; set learner.{key}"

    def meets(self, name: str) -> tuple[str, ...]:
        """The policies that it meets under this name."""
        return tuple(self.opponents) if self.opponents is not None else (name,)

    def takes(self, seat: int) -> bool:
        return self.seats is None or seat in self.seats


Policies = dict[
    Annotated[
        str,
        pattern(
            # Versions are named with these words: a policy so called would be taken for one.
            r"(?!(step|base|start|deploy|latest|best|average|result)$)[a-z][a-z0-9_]*",
            "be lower-case letters, digits and '_', and no word that names versions",
        ),
    ],
    PolicyEntry,
]


def policy_clashes(
    policies: Mapping[str, PolicyEntry], players: Mapping[str, int], fixed: Sequence[str]
) -> Iterator[Problem]:
    """Yield contradictions among ``policies``, and with the games.

    players: of each training game. fixed: ``pool.fixed_opponents``.
    """
    unknown = list(_unknown(policies))
    # A policy that does not exist has no seats to compare.
    yield from unknown or _seat_clashes(policies, players, fixed)


def _unknown(known: Mapping[str, PolicyEntry]) -> Iterator[Problem]:
    for name, entry in known.items():
        named = {"opponents": entry.opponents or [], "reset.to": [entry.reset.to]}
        for key, others in named.items():
            for other in others:
                if other not in known and not (key == "reset.to" and other == START):
                    mend = f"{nearest(other, known)} (there are {', '.join(known)})"
                    yield f"policies.{name}.{key}", f"there is no policy {other}{mend}"


def _seat_clashes(
    policies: Mapping[str, PolicyEntry], players: Mapping[str, int], fixed: Sequence[str]
) -> Iterator[Problem]:
    """Policies that no game has a seat for, and seats that no policy would take."""
    most = max(players.values())
    for name, entry in policies.items():
        if not any(entry.takes(seat) for seat in range(most)):
            yield f"policies.{name}.seats", f"no game has one of them: seats are 0 to {most - 1}"
        met = [policies[other] for other in entry.meets(name)]
        for game, number in players.items():
            own = [seat for seat in range(number) if entry.takes(seat)]
            empty = [
                seat
                for seat in range(number)
                # Without a seat it plays no such game, and its only seat needs no opponent.
                if own not in ([], [seat]) and not any(other.takes(seat) for other in met)
            ]
            if empty and not entry.pool.get("fixed_opponents", fixed):
                yield (
                    f"policies.{name}.opponents",
                    f"none of them sits at seat {empty[0]} of {game}; name a policy that does, "
                    "or add pool.fixed_opponents",
                )
