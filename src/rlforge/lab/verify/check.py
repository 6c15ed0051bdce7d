"""Checks whether a finished run is what it says: its parts are made again and compared.

    chain        each line of digests.jsonl follows from the one before, none is missing
    checkpoints  the files of saved versions are those of their manifests
    batches      each file has the digest that was noted when it was drawn
    games        played again with the recorded answers, they have the same course and result
    rewards      the samples of a batch are turns of its games, with the rewards that they give
    log-probs    the saved adapters give the recorded answers the recorded probabilities
    updates      from a saved state, a batch gives the weights and the optimizer that were noted

Beside chain and checkpoints the kind of a run says what is checked; these are of games.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from rlforge.buffer.batches import read_batch
from rlforge.config.per_policy import of_policy, policy_names
from rlforge.config.roots import read_any
from rlforge.errors import (
    CheckpointError,
    ConfigError,
    DamagedError,
    PolicyLoadError,
    PromptTooLongError,
    RlforgeError,
    StoreError,
)
from rlforge.games.base import View
from rlforge.kinds import kind_of
from rlforge.lab.verify.recorded import RecordedGames
from rlforge.record.digests import FILE, broken_at, digest_of_batch, digest_of_games
from rlforge.record.game_files import index_games, read_games
from rlforge.record.recorded import Check, Recorded, Say, paced
from rlforge.rewards.pipeline import RewardPipeline
from rlforge.rollout.collector import learned_episodes
from rlforge.rollout.episode import Seats, play_game
from rlforge.samples import Sample, TrainBatch
from rlforge.system.checkpoint import read_manifest
from rlforge.system.hardware import describe, versions
from rlforge.types import Completion, GameRecord, Seat, value

#: What is checked of a run by default: batches, and further games.
_BATCHES, _GAMES = 8, 100


@value
class Verification:
    """All checks of a run in order."""

    checks: tuple[Check, ...]
    differs: tuple[str, ...]  #: what computes here and is not what computed the run

    @property
    def problems(self) -> list[tuple[str, str]]:
        return [(check.name, problem) for check in self.checks for problem in check.problems]


def verify(
    run_dir: Path, *, whole: bool = False, seed: int = 0, say: Say = lambda text: None
) -> Verification:
    """Check a run, or a part drawn by ``seed``; ConfigError where nothing is made again."""
    config = read_any(run_dir)
    kind = kind_of(config)
    if not kind.recorded:
        raise ConfigError(f"{run_dir} is {config.about}, of which nothing can be made again")
    run: Recorded = resolve_name(kind.recorded)(run_dir, whole, seed)
    checks = [_chain(run, kind.unit), _checkpoints(run)]
    try:
        for check in run.checks(say):
            checks.append(check)
    except (CheckpointError, DamagedError, PolicyLoadError, StoreError) as error:
        # What the remaining checks need cannot be read, which does not agree with the run.
        checks.append(Check("files", "files", 0, 0, "", problems=[str(error)]))
    return Verification(checks=tuple(checks), differs=tuple(_differences(run.computed)))


class VerifiedGames(RecordedGames):
    """A run of games, whose parts are made again."""

    def checks(self, say: Say) -> Iterator[Check]:
        yield _batches(self)
        yield _games(self, say)
        yield _rewards(self)
        # Imported late, because it loads torch.
        from rlforge.lab.verify.recompute import check_logprobs, check_updates

        yield check_logprobs(self, say)
        yield check_updates(self, say)


def _differences(computed: Mapping[str, Any]) -> Iterator[str]:
    here = {**versions(), **describe()}
    for name, then in computed.items():
        if name in here and here[name] != then:
            yield f"{name}: {then} then, {here[name]} here"


# ---------------------------------------------------------------- files


def _chain(run: Recorded, unit: str) -> Check:
    problems, notes = list[str](), list[str]()
    if not run.lines:
        notes.append(f"{FILE} is not there: nothing says what the run computed")
    elif (step := broken_at(run.lines)) is not None:
        problems.append(f"{FILE}: the line of {unit} {step} does not follow from the one before")
    made = run.made()
    first = min(run.steps, default=made)
    if run.steps and not run.computed:
        notes.append(f"{FILE} begins at {unit} {first}: what was before had no digests")
    else:
        first = 1
    if missing := [n for n in range(first, made + 1) if run.lines and n not in run.steps]:
        problems.append(f"{FILE}: there is no line of {unit} {missing[0]}")
    count = len(run.lines)
    result = "each follows from the one before"
    return Check("chain", "lines", count, count, result, problems, notes)


def _checkpoints(run: Recorded) -> Check:
    problems = []
    for path in run.folders.values():
        try:
            read_manifest(path)
        except CheckpointError as error:
            problems.append(str(error).removesuffix("; use an older checkpoint"))
    count = len(run.folders)
    result = "their files are as written"
    return Check("checkpoints", "versions", count, count, result, problems)


def _batches(run: RecordedGames) -> Check:
    problems, drawn = [], [n for n, row in run.steps.items() if row.get("batch")]
    if not run.config.buffer.save_batches:
        notes = ["batches were not saved (buffer.save_batches=false)"]
        return Check("batches", "batches", 0, len(drawn), "", notes=notes)
    chosen = run.some(drawn, _BATCHES)
    for number in chosen:
        file = run.batch_file(number)
        try:
            batch = read_batch(file)
        except FileNotFoundError:
            problems.append(f"{file.name} is missing")
            continue
        except DamagedError as error:
            problems.append(str(error))
            continue
        if digest_of_batch(batch) != run.steps[number]["batch"]:
            problems.append(f"{file.name} is not the batch that was drawn: its digest differs")
        run.batches[number] = batch
    return Check("batches", "batches", len(chosen), len(drawn), "as drawn", problems)


# ---------------------------------------------------------------- games


def _games(run: RecordedGames, say: Say) -> Check:
    try:
        ids = [game.spec.game_id for game in index_games(run.dir)]
        of_batches = {sample.origin for batch in run.batches.values() for sample in batch.samples}
        chosen = set(ids) if run.whole else {*run.some(ids, _GAMES), *of_batches}
        run.records = {record.spec.game_id: record for record in read_games(run.dir, chosen)}
    except DamagedError as error:
        return Check("games", "games", 0, 0, "", problems=[str(error)])
    notes = [] if ids else ["no games were saved (collector.save_games=false)"]
    missing = sorted(of_batches - set(ids)) if ids else []
    problems = [f"game {one} of a batch is missing" for one in missing]
    if run.whole and run.config.strict and ids:
        # A digest covers all games of an update, so a part cannot be compared.
        problems += _noted_games(run)
    played = 0
    for record in paced(run.records.values(), len(run.records), "games are played again", say):
        played += 1
        if (problem := asyncio.run(_replayed(record))) is not None:
            problems.append(f"game {record.spec.game_id}: {problem}")
    result = "played again, with the same course and result"
    return Check("games", "games", played, len(ids), result, problems, notes)


def _noted_games(run: RecordedGames) -> Iterator[str]:
    # Digests follow the order in which games were recorded, as these do.
    records = iter(run.records.values())
    for row in run.lines:
        games = list(itertools.islice(records, row.get("played", 0)))
        if "games" in row and digest_of_games(games) != row["games"]:
            yield f"the games recorded by update {row['step']} are not those that were played"
            return


class _OverError(RlforgeError):
    """The record has no further answer."""


class _Recorded:
    def __init__(self, record: GameRecord, seat: Seat) -> None:
        own = (turn.completion for turn in record.turns if turn.player_id == seat.player_id)
        self._answers, self._end_reason = own, record.end_reason

    async def answer(self, view: View, seed: int) -> Completion:
        if (answer := next(self._answers, None)) is not None:
            return answer
        if self._end_reason == "context_limit":
            raise PromptTooLongError("as in the record")
        raise _OverError("the record ends here")

    def remember(self, view: View, answer: Completion) -> None:
        next(self._answers)


async def _replayed(record: GameRecord) -> str | None:
    """The difference of a game that is played again with its recorded answers, if any."""
    if record.error is not None:
        return None
    recorded = Seats({seat.player_id: _Recorded(record, seat) for seat in record.spec.seats})
    again = await play_game(record.spec, recorded, lambda seconds: asyncio.timeout(None))
    for number, (then, now) in enumerate(zip(record.turns, again.turns, strict=False), 1):
        for what in ("player_id", "observation", "action", "legal", "well_formed"):
            if getattr(then, what) != getattr(now, what):
                return f"turn {number}: {what} is {getattr(now, what)!r} in play"
    if record.end_reason == "timeout":
        # Recorded answers come at once, so that no time runs out and the end differs.
        return None
    if again.error is not None:
        return f"it does not end as recorded ({again.error})"
    if len(again.turns) != len(record.turns):
        return f"it ends after {len(again.turns)} turns in play, after {len(record.turns)} recorded"
    for what in ("end_reason", "invalid_by", "rewards"):
        if getattr(again, what) != getattr(record, what):
            return f"{what} is {getattr(again, what)} in play, {getattr(record, what)} recorded"
    return None


# ---------------------------------------------------------------- rewards


def _rewards(run: RecordedGames) -> Check:
    problems, notes, checked = list[str](), list[str](), 0
    pipelines = {
        name: RewardPipeline(of_policy(run.config, name).rewards)
        for name in policy_names(run.config)
    }
    for number, batch in run.batches.items():
        pipeline = pipelines[run.steps[number].get("name", "")]
        games = dict.fromkeys(sample.origin for sample in batch.samples)
        shaped = {
            (sample.origin, sample.player_id, sample.turn_index): sample
            for record in filter(None, map(run.records.get, games))
            for episode in learned_episodes(record, pipeline, run.config.collector)
            for sample in episode
        }
        if any(sample.origin not in run.records for sample in batch.samples):
            # Batches need all their games; the check of games says which are missing.
            continue
        checked += 1
        if pipeline.moves:
            notes = ["rewards.final has a state, so only turns and raw rewards are compared"]
        if (problem := _batch_problem(batch, shaped, pipeline)) is not None:
            problems.append(f"batch {number}: {problem}")
    result = "made again from their games"
    return Check("rewards", "batches", checked, len(run.steps), result, problems, notes)


def _batch_problem(
    batch: TrainBatch, shaped: Mapping[tuple[str, int, int], Sample], pipeline: RewardPipeline
) -> str | None:
    shapes = []
    for sample in batch.samples:
        made = shaped.get((sample.origin, sample.player_id, sample.turn_index))
        where = f"turn {sample.turn_index} of player {sample.player_id} in game {sample.origin}"
        if made is None:
            return f"{where} is no turn to learn from"
        for what in ("observation", "action", "prompt_token_ids", "token_ids", "logprobs"):
            if getattr(sample, what) != getattr(made, what):
                return f"{where}: {what} is not that of the game"
        if sample.raw_reward != made.raw_reward:
            return f"{where}: raw_reward is {sample.raw_reward:g}, in the game {made.raw_reward:g}"
        shapes.append(made)
    if pipeline.moves:
        return None
    for sample, made in zip(batch.samples, pipeline.on_draw(shapes), strict=True):
        if sample.reward != made.reward:
            return (
                f"turn {sample.turn_index} of player {sample.player_id} in game {sample.origin}: "
                f"reward is {sample.reward:g}, and the transforms give {made.reward:g}"
            )
    return None
