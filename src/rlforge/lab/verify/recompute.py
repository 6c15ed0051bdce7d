"""Recompute a run's log-probs of answers and its updates, and compare."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlforge.buffer.batches import read_batch
from rlforge.config.per_policy import policy_names
from rlforge.config.schema import GamesConfig
from rlforge.engines import invariant, whole
from rlforge.engines.policies import PolicyStore
from rlforge.engines.sampling import sampling_logprobs
from rlforge.engines.versions import PolicyKey
from rlforge.lab.verify.recorded import RecordedGames
from rlforge.learner import make_learners, read_state
from rlforge.learner.ranks import Ranks
from rlforge.models.devices import exact_kernels, resolve_device, resolve_dtype
from rlforge.models.fit import start_of
from rlforge.models.load import load_base_model
from rlforge.record.files import read_jsonl
from rlforge.record.recorded import Check, Say, paced
from rlforge.system.checkpoint import read_manifest, step_name, step_number, write_checkpoint
from rlforge.types import Completion, Purpose, value

#: Largest difference of a log-prob that rounding explains in a run that is not strict.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.2}

#: What is checked by default: answers of each version, stretches of updates, the length of each.
_MOST_ANSWERS, _STRETCHES, _LENGTH = 100, 2, 2

#: Most logits that exist at once.
_MOST_LOGITS = 2**24


@value
class Answered:
    """An answer, and the purpose of its game, which decides the temperature."""

    game_id: str
    turn: int
    purpose: Purpose
    completion: Completion


class Answers:
    """Log-probs of recorded answers under the adapters of a run, as its engines compute them."""

    def __init__(self, config: GamesConfig) -> None:
        device = resolve_device(config.hardware.device)
        model = load_base_model(config.model, device, resolve_dtype(config.model.dtype, device))
        self._store = PolicyStore(
            model.requires_grad_(False).eval(), 1, invariant=config.batch_invariant
        )
        self._config, self._device = config, device
        self._last_logits: Callable[..., Tensor] = invariant.last_logits
        if not config.batch_invariant:
            # All positions of a pass may need logits, so its tokens are limited.
            vocabulary = model.config.get_text_config().vocab_size
            self._last_logits = partial(
                whole.last_logits,
                padded=whole.reads_padded(self._store),
                most_tokens=_MOST_LOGITS // vocabulary,
                most_rows=_MOST_LOGITS,
            )

    def largest_gaps(
        self, path: str | None, answers: Sequence[Answered]
    ) -> Iterator[tuple[Answered, float]]:
        """Yield the largest difference of a token's log-prob to the record, in no order."""
        key = PolicyKey(path or "", path)
        self._store.load(key, ())
        model: Any = self._store.use(key)
        vocabulary = model.config.get_text_config().vocab_size
        # Games repeat one another: four of five answers of a small game are given twice or more.
        alike = defaultdict[Any, list[Answered]](list)
        for each in answers:
            said = each.completion
            alike[said.prompt_token_ids, said.token_ids, each.purpose].append(each)
        # Sorted, so that answers in a pass have similar lengths and little padding.
        ordered = sorted(alike.values(), key=lambda same: len(same[0].completion.prompt_token_ids))
        longest = max((len(each.completion.token_ids) for each in answers), default=1)
        rows = max(1, _MOST_LOGITS // (vocabulary * longest))
        for begin in range(0, len(ordered), rows):
            yield from self._gaps(model, ordered[begin : begin + rows])

    @torch.inference_mode()
    def _gaps(
        self, model: Any, alike: Sequence[Sequence[Answered]]
    ) -> Iterator[tuple[Answered, float]]:
        answers = [same[0].completion for same in alike]
        longest = max(len(each.token_ids) for each in answers)
        read = [(*each.prompt_token_ids, *each.token_ids[:-1]) for each in answers]
        after = self._last_logits(model, read, longest)
        for same, logits in zip(alike, after, strict=True):
            tokens = same[0].completion.token_ids
            logprobs = self._logprobs(logits[longest - len(tokens) :], same[0].purpose)
            # A token that could not have been drawn gives NaN, which ``check_logprobs`` reports.
            found = logprobs[torch.arange(len(tokens)), torch.tensor(tokens)].cpu()
            for each in same:
                recorded = torch.tensor(each.completion.logprobs)
                yield each, float((found - recorded).abs().max())

    def _logprobs(self, logits: Tensor, purpose: Purpose) -> Tensor:
        """Log-probs of the distribution that tokens were drawn from [T, V]."""
        engine, rows = self._config.engine, len(logits)
        temperature = engine.temperature if purpose == "train" else self._config.eval_temperature

        def numbers(setting: float) -> Tensor:
            return torch.full((rows,), setting, dtype=torch.float32, device=self._device)

        return sampling_logprobs(
            logits,
            numbers(temperature),
            numbers(engine.top_p) if engine.top_p < 1 else None,
            numbers(engine.top_k) if engine.top_k else None,
            numbers(engine.min_p) if engine.min_p else None,
        )


@value
class Made:
    """An update made again."""

    number: int
    digests: Mapping[str, str]
    files: Mapping[str, str]  #: SHA-256 of the policy's files as it would be saved, by name


def remade(run: RecordedGames, state: Path | None, numbers: Sequence[int]) -> Iterator[Made]:
    """Make consecutive updates after a saved state again; None: from the start of the run."""
    config, start = run.config, start_of(run.config, run.dir)

    def saved(uid: str) -> Path | None:
        path = run.paths.checkpoints / uid
        return path if path.is_dir() else None

    with _as_then(run):
        device = resolve_device(config.hardware.device)
        learners = make_learners(config, device, Ranks(), lambda _: str(start))
        if state is not None:
            read_state(state, learners)
            for learner in learners.each():
                learner.recall(saved)
    for number in numbers:
        batch = run.batches.get(number) or read_batch(run.batch_file(number))
        with _as_then(run):
            learner = learners.turn(run.steps[number].get("name", ""))
            learner.version = number - 1
            digests = learner.update_with_digests(batch).digests
            with tempfile.TemporaryDirectory() as folder:
                path = write_checkpoint(Path(folder), f"step-{number}", learner.save, {})
                files = {file: one.sha256 for file, one in read_manifest(path).files.items()}
        yield Made(number=number, digests=digests, files=files)


@contextlib.contextmanager
def _as_then(run: RecordedGames) -> Iterator[None]:
    """Let torch compute with the threads and kernels of the run."""
    exact, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    torch.set_num_threads(run.computed.get("threads") or threads)
    if run.config.strict:
        exact_kernels()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(exact)
        torch.set_num_threads(threads)


# ---------------------------------------------------------------- against the record


def check_logprobs(run: RecordedGames, say: Say) -> Check:
    by_version: dict[str, list[Answered]] = defaultdict(list)
    made_again = of_others = 0
    for record in run.records.values():
        for number, turn in enumerate(record.turns, 1):
            if not turn.completion.token_ids or record.error is not None:
                continue
            if record.spec.seats[turn.player_id].policy.kind == "hf":
                of_others += 1
                continue
            if run.made_in(turn.completion.policy_uid) > record.spec.part:
                made_again += 1
            else:
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
    if made_again:
        notes.append(f"{made_again} answers are of versions that the run, resumed, made again")
    if of_others:
        notes.append(f"{of_others} answers are of other models (hf:)")
    largest, checked, problems = 0.0, 0, list[str]()
    # With ``batch_invariant`` no row depends on its batch, so all bits have to agree.
    allowed = 0.0 if run.config.batch_invariant else TOLERANCE[_dtype(run)]
    scorer = Answers(run.config) if known else None
    for uid, path in known.items():
        assert scorer is not None
        say(f"log-probs of {uid}")
        answers = run.some(by_version[uid], _MOST_ANSWERS)
        gaps = scorer.largest_gaps(path, answers)
        for answered, gap in paced(gaps, len(answers), f"answers of {uid} are computed again", say):
            checked += 1
            # Not ``gap > allowed``, which would let NaN pass.
            if not gap <= allowed:
                problems.append(
                    f"game {answered.game_id}, turn {answered.turn}: under {uid} the log-probs of "
                    f"the answer differ by {gap:.2g} from the recorded ones"
                )
            largest = max(largest, gap)
    result = f"{len(known)} versions; largest difference {largest:.2g}, allowed {allowed:g}"
    return Check(
        "log-probs", "answers", checked, sum(map(len, by_version.values())), result, problems, notes
    )


def _dtype(run: RecordedGames) -> str:
    device = resolve_device(run.config.hardware.device)
    return str(resolve_dtype(run.config.model.dtype, device)).removeprefix("torch.")


def _places(run: RecordedGames, uids: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    # ``base`` and the start of training have no folder: they are the base model.
    starts = {step_name(0, name) for name in policy_names(run.config)}
    for uid in uids:
        if uid in run.folders:
            yield uid, str(run.folders[uid])
        elif uid == "base" or (uid in starts and run.config.learner.initial_adapter is None):
            yield uid, None


def check_updates(run: RecordedGames, say: Say) -> Check:
    problems, notes, checked = list[str](), list[str](), 0
    if run.config.learner.num_learners > 1:
        notes.append("updates of several ranks are not made again")
    if not notes and run.steps and not any("policy" in row for row in run.steps.values()):
        notes.append("weights have no digest (learner.train=full)")
    stretches = [] if notes else list(_stretches(run))
    total = len(run.steps)
    for state, numbers in run.some(stretches, _STRETCHES):
        numbers = numbers if run.whole else numbers[:_LENGTH]
        say(f"updates {numbers[0]} to {numbers[-1]}")
        again = remade(run, state, numbers)
        for made in paced(again, len(numbers), "updates are made again", say):
            checked += 1
            if (problem := _update_problem(run, made)) is not None:
                problems.append(f"update {made.number}: {problem}")
                # Later updates start from these weights and would differ, too.
                break
    result = "made again, with the same weights and optimizer"
    return Check("updates", "updates", checked, total, result, problems, notes)


def _stretches(run: RecordedGames) -> Iterator[tuple[Path | None, list[int]]]:
    # A stretch ends where something else changed the weights: a policy that began anew, or an
    # action of the sentinel.
    changed = {row["step"] for row in read_jsonl(run.paths.sentinel) if row.get("actions")}
    states = {
        step_number(name): path
        for name, path in run.folders.items()
        if read_manifest(path, verify=False).has_state
    }
    last = max(run.steps, default=0)
    for start, end in itertools.pairwise([0, *sorted(states), last]):
        numbers = []
        for number in range(start + 1, end + 1):
            drawn = run.steps.get(number, {}).get("batch") and run.batch_file(number).exists()
            if not drawn or (number - 1 in changed and number - 1 != start):
                break
            numbers.append(number)
        if numbers:
            yield states.get(start), numbers


def _update_problem(run: RecordedGames, made: Made) -> str | None:
    row = run.steps[made.number]
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
