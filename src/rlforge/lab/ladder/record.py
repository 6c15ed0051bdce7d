"""The card of a ladder as it is recorded, ``ladder.json``, and where two cards differ."""

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

#: Difference of two numbers that a sum in another order may make, relative or absolute.
ROUNDING = 1e-6

#: Why a pairing ended: its interval excludes 1/2 or is narrow enough, or all games were played.
Ending = Literal["separated", "precise", "maximum", "open"]


@value
class FileHash:
    name: str
    sha256: str  #: hexadecimal


@value
class LadderMember:
    uid: str
    kind: PolicyKind
    source: str | None  #: a folder, or the name of a scripted player or API model
    about: str  #: its base model, or the version of its package
    files: tuple[FileHash, ...]  #: what decides how it plays


@value
class LadderRules:
    env_id: str
    seed: int
    games: int  #: most of a pairing
    precision: float  #: width of an interval that ends a pairing


@value
class LadderPairing:
    """Two members. Counts and score are the first one's, of whole pairs."""

    first: str
    second: str
    pairs: int
    wins: int
    draws: int
    losses: int
    score: float | None  #: None without a pair
    low: float  #: 95 % confidence sequence of its expectation
    high: float
    ended: Ending
    failed: int  #: games without a result
    cyclic: float  #: log-odds that no rating explains, positive for the first


@value
class LadderRating:
    """A member in order of strength."""

    uid: str
    elo: float  #: Bradley-Terry strength in Elo points, around the mean of the members
    low: float  #: 95 % interval
    high: float
    mu: float  #: TrueSkill
    sigma: float
    nash: float  #: its share of the equilibrium nearest to uniform play
    nash_score: float  #: its expected score against that mixture, at most 1/2
    wins: int  #: by play
    forfeits_won: int  #: by an invalid move of the loser
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
    stronger: str
    weaker: str
    score: float  #: the stronger one's, drawn towards 1/2 by the prior
    games: int | None  #: that separate them at 5 % error and 80 % power; None: above a million


@value
class LadderCard:
    rules: LadderRules
    members: tuple[LadderMember, ...]
    pairings: tuple[LadderPairing, ...]
    ratings: tuple[LadderRating, ...]
    #: of the variance of the log-odds, without noise; None: not measurable
    cyclic_share: Estimate | None
    cyclic_p: float | None  #: of a χ² test that a rating explains all log-odds
    first_move: Estimate | None  #: mean reward of seat 0 minus that of seat 1
    neighbours: tuple[Neighbours, ...]
    games: int  #: finished ones
    unpaired: int  #: games without their mirror game, which count nowhere
    versions: Mapping[str, Any]  #: of Python and the packages


def write_card(folder: Path, card: LadderCard) -> Path:
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
    """The first place where two cards differ, with both values."""
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
        # Sums in another order differ by rounding.
        near = numbers and math.isclose(one, other, rel_tol=ROUNDING, abs_tol=ROUNDING)
        return None if near or one == other else f"{where}: {one} on the page, {other} by its games"
    return next((found for pair in pairs if (found := _difference(*pair)) is not None), None)
