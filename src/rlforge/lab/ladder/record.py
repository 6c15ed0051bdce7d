"""The card of a ladder as it is recorded: ``ladder.json``, and where two cards differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rlforge.errors import ConfigError, RlforgeError
from rlforge.record.files import read_json, write_json
from rlforge.system.values import from_json, to_json
from rlforge.types import PolicyKind, value

#: Files of a ladder's folder, beside ``games/``.
CARD, PAGE = "ladder.json", "ladder.html"

#: Relative and absolute difference of two numbers that a sum in another order may make.
ROUNDING = 1e-6

Ending = Literal["separated", "precise", "maximum", "open"]


@value
class FileHash:
    """A file of a member, by its name, and its SHA-256 in hexadecimal."""

    name: str
    sha256: str


@value
class LadderMember:
    """A policy of a ladder. source: its folder, or the name of a scripted player or API model.

    about: its base model, or the version of its package. files: what decides how it plays.
    """

    uid: str
    kind: PolicyKind
    source: str | None
    about: str
    files: tuple[FileHash, ...]


@value
class LadderRules:
    """Settings of play. games: most per pairing. precision: width of an interval that ends one."""

    env_id: str
    seed: int
    games: int
    precision: float


@value
class LadderPairing:
    """Two members. Counts and score (a win 1, a draw 1/2) are the first one's, of whole pairs.

    score: None without a pair. low, high: 95 % confidence sequence of its expectation.
    ended: ``separated`` (the interval excludes 1/2), ``precise`` (it is narrow enough), ``maximum``
    (all games were played) or ``open`` (interrupted). failed: games without a result.
    cyclic: the part of the log-odds that no rating explains, positive for the first.
    """

    first: str
    second: str
    pairs: int
    wins: int
    draws: int
    losses: int
    score: float | None
    low: float
    high: float
    ended: Ending
    failed: int
    cyclic: float


@value
class LadderRating:
    """A member in order of strength.

    elo, low, high: Bradley-Terry strength and its 95 % interval in Elo points, relative to the mean
    of the members. mu, sigma: TrueSkill. nash: its share of the equilibrium nearest to uniform
    play; nash_score: its expected score against that mixture, at most 1/2.
    wins, losses: by play; forfeits_won, forfeits_lost: by an invalid move of the loser.
    """

    uid: str
    elo: float
    low: float
    high: float
    mu: float
    sigma: float
    nash: float
    nash_score: float
    wins: int
    forfeits_won: int
    draws: int
    losses: int
    forfeits_lost: int


@value
class Estimate:
    """A figure and its 95 % interval."""

    mean: float
    low: float
    high: float


@value
class Neighbours:
    """Two members next to each other by strength.

    score: the stronger one's, of their pairing, drawn towards 1/2 by the prior. games: as many as
    separate them at 5 % error and 80 % power if that is its expectation; None: above a million.
    """

    stronger: str
    weaker: str
    score: float
    games: int | None


@value
class LadderCard:
    """All that a ladder has measured.

    cyclic_share: of the variance of the log-odds, with the noise taken out; None below three
    members or where nothing but noise was measured. cyclic_p: of a χ² test that a rating explains
    all log-odds; small: it does not. first_move: mean reward of seat 0 minus that of seat 1.
    games: finished ones; unpaired: those whose mirror game is missing, which count nowhere.
    versions: of Python and the packages.
    """

    rules: LadderRules
    members: tuple[LadderMember, ...]
    pairings: tuple[LadderPairing, ...]
    ratings: tuple[LadderRating, ...]
    cyclic_share: Estimate | None
    cyclic_p: float | None
    first_move: Estimate | None
    neighbours: tuple[Neighbours, ...]
    games: int
    unpaired: int
    versions: Mapping[str, Any]


def write_card(folder: Path, card: LadderCard) -> Path:
    """Write ``ladder.json`` and return its path."""
    write_json(folder / CARD, to_json(card))
    return folder / CARD


def read_card(file: Path) -> LadderCard:
    """The card in ``file``; RlforgeError where it is damaged, ConfigError where there is none."""
    if not file.is_file():
        raise ConfigError(f"no card {file}; name the {CARD} that rlforge ladder has written")
    try:
        return from_json(LadderCard, read_json(file))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RlforgeError(
            f"{file} is no card of a ladder ({type(error).__name__}: {error}); name a {CARD}"
        ) from error


def first_difference(recorded: LadderCard, computed: LadderCard) -> str | None:
    """Where two cards differ first, and both values in one line; None where they agree."""
    return _difference("", to_json(recorded), to_json(computed))


def _difference(where: str, one: Any, other: Any) -> str | None:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = {key: (one.get(key), other.get(key)) for key in (*one, *other)}
        pairs = [(f"{where}.{key}".lstrip("."), *both) for key, both in keys.items()]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return f"{where}: {len(one)} entries on the page, {len(other)} by its games"
        pairs = [
            (f"{where}.{index}", *both) for index, both in enumerate(zip(one, other, strict=True))
        ]
    else:
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        near = numbers and math.isclose(one, other, rel_tol=ROUNDING, abs_tol=ROUNDING)
        return None if near or one == other else f"{where}: {one} on the page, {other} by its games"
    return next((found for pair in pairs if (found := _difference(*pair)) is not None), None)
