"""Why a run learned or did not: verdict, signals with curves, telling games, what to change."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlforge.config.overrides import assignments
from rlforge.config.plugins import RUN_KINDS
from rlforge.errors import RlforgeError
from rlforge.record.game_files import GameIndex, read_games
from rlforge.record.results import by_pairing
from rlforge.record.signals import Signal, causes, condition_of, with_times
from rlforge.show.formatting import number, percent
from rlforge.show.report.charts import Series, thin
from rlforge.show.report.data import RunData, load_run
from rlforge.show.report.games import marks
from rlforge.show.report.tables import tiles
from rlforge.statistics import significant
from rlforge.types import EvalResult, GameRecord, Purpose, Turn, value

#: Games that are shown, and points of a curve.
MOST_GAMES, POINTS = 3, 24
#: Newest games whose turns are searched for what a signal is about.
_SEARCHED = 128
#: Figures of a run without signals.
_USUAL = ("reward_mean", "entropy", "moved", "kl", "grad_norm", "*/win_rate")


@value
class Curve:
    """A figure over updates, thinned. shares: of 0..1."""

    name: str
    first: float
    last: float
    least: float
    most: float
    points: tuple[float | None, ...]
    shares: bool = False


@value
class Telling:
    """A game that shows what was wrong. why: in words. turns: places of the turns that show it."""

    why: str
    record: GameRecord
    turns: tuple[int, ...]


@value
class Why:
    """An explanation of what a run learned, from its records.

    Attributes:
        verdict: A sentence on the whole run.
        about: Status, updates and time.
        signals: Signals, as ``with_times``, each with the curves that show it.
        results: Win rates over evaluations, by opponent.
        usual: Curves that say how a run without signals goes; empty where no update is recorded.
        no_games: Why there are no games to show; empty where there are.
        change: Values to try, by key of the configuration; empty where a person must mend the
            first cause.
        again: The command that tries them; empty where none is known.
        causes: Names of signals that bring about another one, by the name of that one.
        damage: Sentences on what cannot be read.
    """

    verdict: str
    about: str
    signals: tuple[tuple[Signal, str, tuple[Curve, ...]], ...]
    results: tuple[Curve, ...]
    usual: tuple[Curve, ...]
    games: tuple[Telling, ...]
    no_games: str
    change: Mapping[str, Any]
    again: str
    causes: Mapping[str, Sequence[str]]
    damage: tuple[str, ...]


def explain(run_dir: Path) -> Why:
    """Read a run, which may go on. Raises RlforgeError for damaged JSON files."""
    run = load_run(run_dir)
    timed = with_times(run.signals)
    signals = [one for one, _ in timed]
    of = causes(signals)
    roots = [one for one in signals if one.until is None and one.name not in of]
    change: dict[str, Any] = {}
    # Where a person must mend the first cause, other values would be tried in vain.
    for one in reversed(roots if roots and roots[0].change else []):
        change = {**change, **one.change}
    try:
        games, no_games = _games(run, signals)
    except RlforgeError as error:  # a damaged file of games hides no curves
        games, no_games = [], str(error)
    return Why(
        verdict=_verdict(run, signals),
        about=_about(run),
        signals=tuple((one, when, tuple(_curves(run, _figures(one)))) for one, when in timed),
        results=tuple(_results(run)),
        usual=() if signals else tuple(_curves(run, _USUAL)),
        games=tuple(games),
        no_games=no_games,
        change=change,
        again=_again(run.command, change),
        causes=of,
        damage=tuple(run.warnings),
    )


def to_values(why: Why) -> dict[str, Any]:
    """The explanation for other programs, with ids and answers of games."""
    curves = [{"signal": one, "when": when, "curves": curves} for one, when, curves in why.signals]
    games = [
        {
            "game_id": game.record.spec.game_id,
            "why": game.why,
            "turns": [
                {"turn": place, "answer": game.record.turns[place - 1].completion.text}
                for place in game.turns
            ],
        }
        for game in why.games
    ]
    whole = {name: getattr(why, name) for name in ("verdict", "about", "results", "usual")}
    rest = {
        name: getattr(why, name) for name in ("no_games", "change", "again", "causes", "damage")
    }
    return {**whole, "signals": curves, "games": games, **rest}


# ---------------------------------------------------------------- verdict


def _about(run: RunData) -> str:
    reached = tiles(run)
    return f"{run.paths.root}: {run.status}, {reached['updates']} updates, {reached['wall time']}"


def _verdict(run: RunData, signals: Sequence[Signal]) -> str:
    goes_on = run.status == "running"
    barren = [one for one in signals if one.until is None and one.weight != "slow"]
    changed, sure = _changed(run)
    if barren:
        names, since = ", ".join(one.name for one in barren), min(one.step for one in barren)
        what = f"nothing {'is' if goes_on else 'was'} learned since update {since}: {names}"
        return f"{what}; before that, {changed}" if sure == 1 and since > 1 else what
    if not run.metrics and not run.summary.get("updates"):
        return "no update is made yet" if goes_on else "the run ended before its first update"
    if sure:
        return f"{'learned' if sure > 0 else 'worse than at its start'}: {changed}"
    open_ones = [one.name for one in signals if one.until is None]
    less = f", and less than it could: {', '.join(open_ones)}" if open_ones else ""
    return f"{'not known' if sure is None else 'no change beyond chance'}{less}: {changed}"


def _changed(run: RunData) -> tuple[str, int | None]:
    """The largest change of a win rate in words, and its sign: 0 may be chance, None: unknown."""
    pairs = [(rows[0], rows[-1]) for rows in by_pairing(run.evals).values() if len(rows) > 1]
    if not pairs:
        return _reward(run), None
    several = len({first.env_id for first, _ in pairs}) > 1

    def size(pair: tuple[EvalResult, EvalResult]) -> tuple[bool, float]:
        before, after = pair
        return significant(before.ci95, after.ci95), abs(after.win_rate - before.win_rate)

    first, last = max(pairs, key=size)
    where = f" in {first.env_id}" if several else ""
    text = (
        f"{percent(first.win_rate)} of the games against {first.opponent}{where} were won after "
        f"{first.step} updates, {percent(last.win_rate)} after {last.step}"
    )
    rose = 1 if last.win_rate > first.win_rate else -1
    return text, rose if size((first, last))[0] else 0


def _reward(run: RunData) -> str:
    curve = next(iter(_curves(run, ("reward_mean",))), None)
    was = (
        ""
        if curve is None
        else f"; the mean reward was {number(curve.first, 3)}, then {number(curve.last, 3)}"
    )
    return f"no policy was evaluated twice{was}"


def _again(command: str, change: Mapping[str, Any]) -> str:
    """The run's first command with other values, in a folder of its own."""
    try:
        words = shlex.split(command.partition("\n")[0])
    except ValueError:  # a hand has changed the file
        return ""
    if not change or len(words) < 2:
        return ""
    replaced = {"run_dir", *change}
    kept = [word for word in words if word.lstrip("+").partition("=")[0] not in replaced]
    return f"{shlex.join(kept)} {assignments(change)}"


# ---------------------------------------------------------------- curves


def _figures(signal: Signal) -> Sequence[str]:
    condition, of = condition_of(signal), f"policies/{signal.policy}/" if signal.policy else ""
    return [f"{of}{name}" for name in condition.figures] if condition is not None else []


def _curves(run: RunData, figures: Sequence[str]) -> Iterator[Curve]:
    names = dict.fromkeys(name for row in run.metrics for name in row)
    envs = {name.partition("/")[0] for name in names if name.startswith("collection-")}
    for figure in figures:
        of_games, _, end = figure.partition("*/")
        wanted = [f"{env}/{end}" for env in sorted(envs)] if end else [of_games]
        for key in wanted:
            env = key.partition("/")[0].removeprefix("collection-") if end else ""
            label = f"{end} in {env}" if len(envs) > 1 and end else end or key
            yield from _curve(label, [row.get(key) for row in run.metrics])


def _results(run: RunData) -> Iterator[Curve]:
    pairs = by_pairing(run.evals)
    several = len({env for env, _ in pairs}) > 1
    for (env, opponent), rows in pairs.items():
        name = f"wins against {opponent}{f' in {env}' if several else ''}"
        yield from _curve(name, [row.win_rate for row in rows], shares=True)


def _curve(name: str, figures: Sequence[Any], *, shares: bool = False) -> Iterator[Curve]:
    """Yield the curve of a figure, unless no record has it."""
    ys = [float(y) if isinstance(y, int | float) and math.isfinite(y) else None for y in figures]
    if not (known := [y for y in ys if y is not None]):
        return
    series = Series(name=name, xs=range(len(ys)), ys=ys)
    ends = ("_rate", "_share", "_success", "_fraction", "_share_max", "_waits")
    yield Curve(
        name=name,
        first=known[0],
        last=known[-1],
        least=min(known),
        most=max(known),
        points=tuple(thin(series, POINTS).ys),
        shares=shares
        or (name.partition(" ")[0].endswith(ends) and 0 <= min(known) <= max(known) <= 1),
    )


# ---------------------------------------------------------------- games


def _games(run: RunData, signals: Sequence[Signal]) -> tuple[list[Telling], str]:
    """The most telling games, the most telling signal's first; why there are none, else ''."""
    if run.games_error is not None:
        return [], run.games_error
    if not run.games:
        return [], _why_none(run)
    newest, found = [*reversed(run.games)], dict[str, Telling]()
    of_signals = _in_turn([_of_signal(run, newest, one) for one in signals])
    for source in (of_signals, _usual(run, newest)):
        for game in source:
            found.setdefault(game.record.spec.game_id, game)
            if len(found) == MOST_GAMES:
                break
        if found:  # games that show no signal would only lead away from it
            break
    return [*found.values()], ""


def _why_none(run: RunData) -> str:
    if RUN_KINDS.find(run.kind).supervised:
        return "a supervised run plays none"
    if "save_games: false" in run.config:
        return "the run has no games on disk (collector.save_games=false)"
    return "no game is finished yet"


def _in_turn(sources: list[Iterator[Telling]]) -> Iterator[Telling]:
    """Yield a game of each source, then a second one of each, and so on."""
    while sources:
        for source in [*sources]:
            if (game := next(source, None)) is None:
                sources.remove(source)
            else:
                yield game


def _of_signal(run: RunData, newest: Sequence[GameIndex], signal: Signal) -> Iterator[Telling]:
    """Yield games that show a signal, the newest first."""
    if (condition := condition_of(signal)) is None:
        return
    during = [game for game in newest if _during(game, signal)]
    if condition.turns is not None:
        yield from _with_turns(run, during, signal.name, condition.turns)
    elif condition.games == "alike":
        group, alike = _alike(during)
        yield from _whole(run, group, signal.name, alike)
    elif condition.games == "any":
        yield from _whole(run, during, signal.name, "one of the games meanwhile")
    elif condition.games == "lost":
        for rival, env in _below(run):
            lost = [one for one in _ended(newest, "eval", "loss", rival) if one.spec.env_id == env]
            yield from _whole(run, lost, signal.name, f"lost against {rival}")
    elif condition.games is not None:
        shown = [game for game in during if condition.games(game)][:MOST_GAMES]
        for record in _read(run, shown):
            said = record.error or f"{record.ending} at turn {len(record.turns)}"
            yield Telling(why=f"{signal.name}: {said}", record=record, turns=(len(record.turns),))


def _with_turns(
    run: RunData, games: Sequence[GameIndex], name: str, wrong: Callable[[Turn], bool]
) -> Iterator[Telling]:
    """Yield games with turns of a trained player that are wrong."""
    for record in _read(run, games[:_SEARCHED]):
        turns = [
            (at, turn)
            for at, turn in enumerate(record.turns, 1)
            if turn.player_id in record.spec.trained and wrong(turn)
        ]
        if turns:
            said = ", ".join(marks(turns[0][1]))
            why = f"{name}: {said}" if said else name
            yield Telling(why=why, record=record, turns=tuple(at for at, _ in turns))


def _usual(run: RunData, newest: Sequence[GameIndex]) -> Iterator[Telling]:
    kinds: tuple[tuple[Purpose, str], ...] = (("eval", "loss"), ("train", "loss"), ("eval", "draw"))
    for purpose, result in kinds:
        games = _ended(newest, purpose, result)[:1]
        what = "evaluation game" if purpose == "eval" else "training game"
        yield from _whole(run, games, "", f"the newest {what} that is a {result}")
    yield from _whole(run, newest[:MOST_GAMES], "", "one of the newest games")


def _during(game: GameIndex, signal: Signal) -> bool:
    """Whether a training game was played while the signal went on."""
    played = [
        seat.policy.version for seat in game.spec.seats if seat.player_id in game.spec.trained
    ]
    last = signal.until if signal.until is not None else math.inf
    return game.spec.purpose == "train" and any(signal.step - 1 <= one <= last for one in played)


def _alike(games: Sequence[GameIndex]) -> tuple[Sequence[GameIndex], str]:
    """Games of the newest group whose rewards are the same, else the newest games."""
    groups: dict[str, list[GameIndex]] = {}
    for game in games:
        groups.setdefault(game.spec.group_id or "", []).append(game)
    for name, group in groups.items():
        rewards = {game.rewards.get(game.spec.viewpoint) for game in group}
        if name and len(group) > 1 and len(rewards) == 1:
            return group, f"one of {len(group)} games of a group, all of reward {rewards.pop():+zg}"
    return games[:MOST_GAMES], "its reward is that of all others"


def _below(run: RunData) -> Iterator[tuple[str, str]]:
    """Yield opponent and environment of win rates that fell, the largest fall first."""
    fell = {
        pair: rows[-1].win_rate - rows[0].win_rate for pair, rows in by_pairing(run.evals).items()
    }
    for env, opponent in sorted(fell, key=fell.__getitem__):
        if fell[env, opponent] < 0:
            yield opponent, env


def _ended(
    games: Sequence[GameIndex], purpose: Purpose, result: str, rival: str | None = None
) -> list[GameIndex]:
    """Games that the viewed player ended so, against ``rival`` if it is given."""
    return [
        game
        for game in games
        if game.spec.purpose == purpose
        and game.error is None
        and game.num_turns
        and game.spec.env.outcome(game.rewards, game.spec.viewpoint) == result
        and (rival is None or rival in _rivals(game))
    ]


def _rivals(game: GameIndex) -> set[str]:
    seats = game.spec.seats
    return {seat.policy.uid for seat in seats if seat.player_id != game.spec.viewpoint}


def _whole(run: RunData, games: Sequence[GameIndex], name: str, why: str) -> Iterator[Telling]:
    """Yield games of which the viewed player's last turn is shown."""
    for record in _read(run, games[:MOST_GAMES]):
        player = record.spec.viewpoint
        own = [at for at, turn in enumerate(record.turns, 1) if turn.player_id == player]
        said = f"{name}: {why}" if name else why
        yield Telling(why=said, record=record, turns=tuple(own[-1:]))


def _read(run: RunData, games: Sequence[GameIndex]) -> Iterator[GameRecord]:
    """Yield games with their turns, in order."""
    ids = [game.spec.game_id for game in games]
    found = {record.spec.game_id: record for record in read_games(run.paths.root, ids)}
    yield from (found[one] for one in ids if one in found)
