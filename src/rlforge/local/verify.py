"""Whether a finished run is what it says: its games, batches and weights, made again and compared.

    chain        each line of digests.jsonl follows from the one before, none is missing
    checkpoints  the files of saved versions are those of their manifests
    batches      each file has the digest that was noted when it was drawn
    games        played again with the recorded answers, they have the same course and result; in a
                 strict run also the digest that was noted
    rewards      the steps of a batch are turns of its games, with the rewards that the transforms
                 give
    log-probs    the saved adapters give the recorded answers the recorded probabilities
    updates      from a saved state, a batch gives the weights and the optimizer that were noted

Only files of the run are read. By default part of it is checked, drawn by ``seed``.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlforge.buffer.batches import read_batch
from rlforge.config.per_policy import of_policy, policy_names
from rlforge.config.roots import read_run
from rlforge.config.schema import RunConfig
from rlforge.errors import CheckpointError, PromptTooLongError, RlforgeError
from rlforge.games.base import View
from rlforge.rewards.pipeline import RewardPipeline
from rlforge.rollout.collector import learned_players
from rlforge.rollout.episode import play_game
from rlforge.system.checkpoint import (
    list_checkpoints,
    read_manifest,
    step_name,
    step_number,
)
from rlforge.system.hardware import describe, versions
from rlforge.tracking.digests import FILE, broken_at, digest_of_batch, digest_of_games
from rlforge.tracking.files import RunPaths, read_jsonl
from rlforge.tracking.game_files import index_games, read_games
from rlforge.types import Completion, GameRecord, Seat, Step, TrainBatch, value

if TYPE_CHECKING:  # it imports torch
    from rlforge.local.recompute import Made

TOLERANCE = {"float32": 1e-4, "bfloat16": 0.2}
"""Largest difference of a log-prob that rounding explains in a run without strict determinism."""

#: What is checked of a run by default: batches, further games, answers of each version, stretches
#: of updates and the length of each.
_BATCHES, _GAMES, _ANSWERS, _STRETCHES, _LENGTH = 8, 100, 100, 2, 2

_Say = Callable[[str], None]


@value
class Check:
    """One kind of check. checked, total: how many things of a kind, such as games.

    problems: what does not agree, first things first. notes: what was left out, and why.
    """

    name: str
    things: str
    checked: int
    total: int
    result: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@value
class Verification:
    """All checks of a run in order. differs: what computes here is not what computed the run."""

    checks: tuple[Check, ...]
    differs: tuple[str, ...]

    @property
    def problems(self) -> list[tuple[str, str]]:
        """Everything that does not agree: name of the check, and what."""
        return [(check.name, problem) for check in self.checks for problem in check.problems]


class _Run:
    """What the checks read of a run, and how much of it."""

    def __init__(self, run_dir: Path, whole: bool, seed: int) -> None:
        self.dir, self.whole, self.rng = run_dir.absolute(), whole, random.Random(seed)
        self.config = read_run(run_dir, RunConfig)
        self.paths = RunPaths(root=self.dir)
        self.lines = read_jsonl(self.dir / FILE)
        self.updates = {
            row["step"]: row for row in self.lines if row["step"] > 0 and "final" not in row
        }
        self.computed: Mapping[str, Any] = self.lines[0].get("computed", {}) if self.lines else {}
        self.folders = {path.name: path for path in list_checkpoints(self.paths.checkpoints)}
        self.batches: dict[int, TrainBatch] = {}
        self.records: dict[str, GameRecord] = {}

    def some(self, things: Iterable[Any], number: int) -> list[Any]:
        """All of them, or so many by chance, in order."""
        all_of = list(things)
        if self.whole or len(all_of) <= number:
            return all_of
        return [all_of[place] for place in sorted(self.rng.sample(range(len(all_of)), number))]

    def batch_file(self, number: int) -> Path:
        """Where the batch of an update is, in the first format that it is in."""
        stem = self.dir / "batches" / f"batch-{number:06d}"
        return stem.with_suffix(f".{self.config.buffer.save_batches_as[0]}")


def verify(
    run_dir: Path, *, whole: bool = False, seed: int = 0, say: _Say = lambda text: None
) -> Verification:
    """Check the run in ``run_dir``. whole: everything. say: called with progress messages.

    Raises RlforgeError where the run has no configuration of a run that plays games.
    """
    run = _Run(run_dir, whole, seed)
    kinds = (_chain, _checkpoints, _batches, _games, _rewards, _logprobs, _updates)
    checks = tuple(check(run, say) for check in kinds)
    return Verification(checks=checks, differs=tuple(_differences(run.computed)))


def _differences(computed: Mapping[str, Any]) -> Iterator[str]:
    here = {**versions(), **describe()}
    for name, then in computed.items():
        if name in here and here[name] != then:
            yield f"{name}: {then} then, {here[name]} here"


# ---------------------------------------------------------------- files


def _chain(run: _Run, say: _Say) -> Check:
    problems, notes = list[str](), list[str]()
    if not run.lines:
        notes.append(f"{FILE} is not there: an earlier version of rlforge recorded the run")
    elif (step := broken_at(run.lines)) is not None:
        problems.append(f"{FILE}: the line of update {step} does not follow from the one before")
    made = max((row["step"] for row in read_jsonl(run.paths.metrics)), default=0)
    first = min(run.updates, default=made)
    if run.updates and not run.computed:
        notes.append(f"{FILE} begins at update {first}: what was before had no digests")
    else:
        first = 1
    if missing := [n for n in range(first, made + 1) if run.lines and n not in run.updates]:
        problems.append(f"{FILE}: there is no line of update {missing[0]}")
    return Check(
        name="chain",
        things="lines",
        checked=len(run.lines),
        total=len(run.lines),
        result="each follows from the one before",
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _checkpoints(run: _Run, say: _Say) -> Check:
    problems = []
    for path in run.folders.values():
        try:
            read_manifest(path)
        except CheckpointError as error:
            problems.append(str(error).removesuffix("; use an older checkpoint"))
    return Check(
        name="checkpoints",
        things="versions",
        checked=len(run.folders),
        total=len(run.folders),
        result="their files are as written",
        problems=tuple(problems),
    )


def _batches(run: _Run, say: _Say) -> Check:
    problems, drawn = [], [n for n, row in run.updates.items() if row.get("batch")]
    if not run.config.buffer.save_batches:
        return Check(
            name="batches",
            things="batches",
            checked=0,
            total=len(drawn),
            result="",
            notes=("batches were not saved (buffer.save_batches=false)",),
        )
    chosen = run.some(drawn, _BATCHES)
    for number in chosen:
        file = run.batch_file(number)
        try:
            batch = read_batch(file)
        except FileNotFoundError:
            problems.append(f"{file.name} is missing")
            continue
        except Exception as error:  # pyarrow and the decoder raise their own for damaged files
            problems.append(f"{file.name} cannot be read: {str(error).splitlines()[0]}")
            continue
        if digest_of_batch(batch) != run.updates[number]["batch"]:
            problems.append(f"{file.name} is not the batch that was drawn: its digest differs")
        run.batches[number] = batch
    return Check(
        name="batches",
        things="batches",
        checked=len(chosen),
        total=len(drawn),
        result="as drawn",
        problems=tuple(problems),
    )


# ---------------------------------------------------------------- games


def _games(run: _Run, say: _Say) -> Check:
    try:
        ids = [game.spec.game_id for game in index_games(run.dir)]
        of_batches = {step.game_id for batch in run.batches.values() for step in batch.steps}
        chosen = set(ids) if run.whole else {*run.some(ids, _GAMES), *of_batches}
        run.records = {record.spec.game_id: record for record in read_games(run.dir, chosen)}
    except RlforgeError as error:
        return Check(
            name="games", things="games", checked=0, total=0, result="", problems=(str(error),)
        )
    notes = () if ids else ("no games were saved (collector.save_games=false)",)
    missing = sorted(of_batches - set(ids)) if ids else []
    problems = [f"game {one} of a batch is missing" for one in missing]
    if run.whole and run.config.strict and ids:
        problems += _noted_games(run)
    played = 0
    for record in run.records.values():
        played += 1
        if played % 1000 == 0:
            say(f"{played:,} of {len(run.records):,} games are played again")
        if (problem := asyncio.run(_replayed(record))) is not None:
            problems.append(f"game {record.spec.game_id}: {problem}")
    return Check(
        name="games",
        things="games",
        checked=played,
        total=len(ids),
        result="played again, with the same course and result",
        problems=tuple(problems),
        notes=notes,
    )


def _noted_games(run: _Run) -> Iterator[str]:
    """Of a strict run: whether the games up to each update are those whose digest was noted."""
    records = iter(run.records.values())  # in the order in which they were recorded
    for row in run.lines:
        games = list(itertools.islice(records, row.get("played", 0)))
        if "games" in row and digest_of_games(games) != row["games"]:
            yield f"the games recorded by update {row['step']} are not those that were played"
            return


class _OverError(RlforgeError):
    """The record has no further answer."""


async def _replayed(record: GameRecord) -> str | None:
    """What differs when a game is played again with its recorded answers; None: nothing."""
    if record.error is not None:
        return None
    answers = iter(record.turns)

    async def answer(seat: Seat, view: View, seed: int) -> Completion:
        turn = next(answers, None)
        if turn is None and record.end_reason == "context_limit":
            raise PromptTooLongError("as in the record")
        if turn is None:
            raise _OverError("the record ends here")
        return turn.completion

    again = await play_game(record.spec, answer, lambda seconds: asyncio.timeout(None))
    for number, (then, now) in enumerate(zip(record.turns, again.turns, strict=False), 1):
        for what in ("player_id", "observation", "action", "legal", "well_formed"):
            if getattr(then, what) != getattr(now, what):
                return f"turn {number}: {what} is {getattr(now, what)!r} in play"
    if record.end_reason == "timeout":
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


def _rewards(run: _Run, say: _Say) -> Check:
    problems, notes, checked = list[str](), list[str](), 0
    pipelines = {
        name: RewardPipeline(of_policy(run.config, name).rewards)
        for name in policy_names(run.config)
    }
    for number, batch in run.batches.items():
        pipeline = pipelines[run.updates[number].get("name", "")]
        shaped = _shaped(run, batch, pipeline)
        if any(step.game_id not in run.records for step in batch.steps):
            continue  # no games were saved, or some are missing, which is said elsewhere
        checked += 1
        if pipeline.moves:
            notes = ["rewards.final has a state, so only turns and raw rewards are compared"]
        if (problem := _batch_problem(batch, shaped, pipeline)) is not None:
            problems.append(f"batch {number}: {problem}")
    return Check(
        name="rewards",
        things="batches",
        checked=checked,
        total=len(run.updates),
        result="made again from their games",
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _shaped(
    run: _Run, batch: TrainBatch, pipeline: RewardPipeline
) -> dict[tuple[str, int, int], Step]:
    """The steps of the games of ``batch``, by game, player and turn."""
    games = dict.fromkeys(step.game_id for step in batch.steps)
    return {
        (step.game_id, step.player_id, step.turn_index): step
        for record in filter(None, map(run.records.get, games))
        for episode in pipeline.shape(record, learned_players(record, run.config.collector))
        for step in episode.steps
    }


def _batch_problem(
    batch: TrainBatch, shaped: Mapping[tuple[str, int, int], Step], pipeline: RewardPipeline
) -> str | None:
    steps = []
    for step in batch.steps:
        made = shaped.get((step.game_id, step.player_id, step.turn_index))
        where = f"turn {step.turn_index} of player {step.player_id} in game {step.game_id}"
        if made is None:
            return f"{where} is no turn to learn from"
        for what in ("observation", "action", "prompt_token_ids", "token_ids", "logprobs"):
            if getattr(step, what) != getattr(made, what):
                return f"{where}: {what} is not that of the game"
        if step.raw_reward != made.raw_reward:
            return f"{where}: raw_reward is {step.raw_reward:g}, in the game {made.raw_reward:g}"
        steps.append(made)
    if pipeline.moves:
        return None
    for step, made in zip(batch.steps, pipeline.on_draw(steps), strict=True):
        if step.reward != made.reward:
            return (
                f"turn {step.turn_index} of player {step.player_id} in game {step.game_id}: reward "
                f"is {step.reward:g}, and the transforms give {made.reward:g}"
            )
    return None


# ---------------------------------------------------------------- models


def _logprobs(run: _Run, say: _Say) -> Check:
    from rlforge.local.recompute import Answered, Answers

    by_version: dict[str, list[Answered]] = defaultdict(list)
    for record in run.records.values():
        for number, turn in enumerate(record.new_turns, 1):
            if turn.completion.token_ids and record.error is None:
                by_version[turn.completion.policy_uid].append(
                    Answered(
                        game_id=record.spec.game_id,
                        turn=number,
                        purpose=record.spec.purpose,
                        completion=turn.completion,
                    )
                )
    known = dict(_places(run, by_version))
    gone = sorted(set(by_version) - set(known))
    notes = [f"versions that are not saved: {', '.join(gone)}"] if gone else []
    largest, checked, problems = 0.0, 0, list[str]()
    allowed = 0.0 if run.config.batch_invariant else TOLERANCE[_dtype(run)]
    scorer = Answers(run.config) if known else None
    for uid, path in known.items():
        assert scorer is not None
        say(f"log-probs of {uid}")
        for answered, gap in scorer.largest_gaps(path, run.some(by_version[uid], _ANSWERS)):
            checked += 1
            if not gap <= allowed:
                problems.append(
                    f"game {answered.game_id}, turn {answered.turn}: under {uid} the log-probs of "
                    f"the answer differ by {gap:.2g} from the recorded ones"
                )
            largest = max(largest, gap)
    return Check(
        name="log-probs",
        things="answers",
        checked=checked,
        total=sum(map(len, by_version.values())),
        result=f"{len(known)} versions; largest difference {largest:.2g}, allowed {allowed:g}",
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _dtype(run: _Run) -> str:
    from rlforge.models.devices import resolve_device, resolve_dtype

    device = resolve_device(run.config.hardware.device)
    return str(resolve_dtype(run.config.model.dtype, device)).removeprefix("torch.")


def _places(run: _Run, uids: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """The policies whose weights are saved, each with their place; None: the base model."""
    starts = {step_name(0, name) for name in policy_names(run.config)}
    for uid in uids:
        if uid in run.folders:
            yield uid, str(run.folders[uid])
        elif uid == "base" or (uid in starts and run.config.learner.initial_adapter is None):
            yield uid, None


def _updates(run: _Run, say: _Say) -> Check:
    from rlforge.local.recompute import Updates

    problems, notes, checked = list[str](), list[str](), 0
    if run.config.learner.num_learners > 1:
        notes.append("updates of several ranks are not made again")
    if not notes and run.updates and not any("policy" in row for row in run.updates.values()):
        notes.append("weights have no digest (learner.train=full)")
    stretches = [] if notes else list(_stretches(run))
    total = len(run.updates)
    for state, numbers in run.some(stretches, _STRETCHES):
        numbers = numbers if run.whole else numbers[:_LENGTH]
        say(f"updates {numbers[0]} to {numbers[-1]}")
        maker = Updates(run.config, run.dir, run.computed.get("threads"))
        for made in maker.after(state, _drawn(run, numbers)):
            checked += 1
            if (problem := _update_problem(run, made)) is not None:
                problems.append(f"update {made.number}: {problem}")
                break
    return Check(
        name="updates",
        things="updates",
        checked=checked,
        total=total,
        result="made again, with the same weights and optimizer",
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _stretches(run: _Run) -> Iterator[tuple[Path | None, list[int]]]:
    """Consecutive updates that can be made again, with the saved state before them.

    A stretch ends where something else changed the weights: a policy that began anew, or what the
    sentinel did.
    """
    changed = {row["step"] for row in read_jsonl(run.paths.sentinel) if row.get("actions")}
    states = {
        step_number(name): path
        for name, path in run.folders.items()
        if read_manifest(path, verify=False).has_state
    }
    last = max(run.updates, default=0)
    for start, end in itertools.pairwise([0, *sorted(states), last]):
        numbers = []
        for number in range(start + 1, end + 1):
            drawn = run.updates.get(number, {}).get("batch") and run.batch_file(number).exists()
            if not drawn or (number - 1 in changed and number - 1 != start):
                break
            numbers.append(number)
        if numbers:
            yield states.get(start), numbers


def _drawn(run: _Run, numbers: Iterable[int]) -> Iterator[tuple[int, str, TrainBatch]]:
    for number in numbers:
        batch = run.batches.get(number) or read_batch(run.batch_file(number))
        yield number, run.updates[number].get("name", ""), batch


def _update_problem(run: _Run, made: Made) -> str | None:
    row = run.updates[made.number]
    for part, what in (
        ("policy_before", "the weights before it are"),
        ("policy", "it gives weights that are"),
        ("optimizer", "it gives an optimizer that is"),
    ):
        if part in row and made.digests[part] != row[part]:
            return f"{what} not what was noted"
    folder = run.folders.get(step_name(made.number, row.get("name", "")))
    saved = read_manifest(folder, verify=False).files if folder is not None else {}
    for file, digest in made.files.items():
        if file in saved and saved[file].sha256 != digest:
            return f"it gives another {file} than {folder and folder.name} has"
    return None
