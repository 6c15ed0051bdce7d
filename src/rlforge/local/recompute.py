"""What models computed in a run, computed again: log-probs of answers, and updates."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlforge.config.schema import GamesConfig, RunConfig
from rlforge.engines.invariant import last_logits
from rlforge.engines.policies import PolicyStore
from rlforge.engines.sampling import sampling_logprobs
from rlforge.engines.versions import PolicyKey
from rlforge.learner import Learners, make_learners, read_state
from rlforge.learner.ranks import Ranks
from rlforge.models.devices import exact_kernels, resolve_device, resolve_dtype
from rlforge.models.fit import with_own_start
from rlforge.models.load import load_base_model
from rlforge.system.checkpoint import read_manifest
from rlforge.types import Completion, Purpose, TrainBatch, value

#: Most logits that exist at once.
_MOST_LOGITS = 2**24


@value
class Answered:
    """An answer of a game, and the kind of game, which decides the temperature."""

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

    def largest_gaps(
        self, path: str | None, answers: Sequence[Answered]
    ) -> Iterator[tuple[Answered, float]]:
        """Of each answer with tokens, the largest difference of a token's log-prob to the record.

        path: of the adapter or weights; None: the base model. NaN where a token could not have been
        drawn.
        """
        key = PolicyKey(path or "", path)
        self._store.load(key, ())
        model: Any = self._store.use(key)
        vocabulary = model.config.get_text_config().vocab_size
        ordered = sorted(answers, key=lambda each: len(each.completion.prompt_token_ids))
        longest = max((len(each.completion.token_ids) for each in ordered), default=1)
        rows = max(1, _MOST_LOGITS // (vocabulary * longest))
        for begin in range(0, len(ordered), rows):
            yield from self._gaps(model, ordered[begin : begin + rows])

    @torch.inference_mode()
    def _gaps(self, model: Any, answers: Sequence[Answered]) -> Iterator[tuple[Answered, float]]:
        read = [
            (*each.completion.prompt_token_ids, *each.completion.token_ids[:-1]) for each in answers
        ]
        longest = max(len(each.completion.token_ids) for each in answers)
        after = last_logits(model, read, longest)
        for each, logits in zip(answers, after, strict=True):
            tokens, recorded = each.completion.token_ids, each.completion.logprobs
            logprobs = self._logprobs(logits[longest - len(tokens) :], each.purpose)
            found = logprobs[torch.arange(len(tokens)), torch.tensor(tokens)].cpu()
            yield each, float((found - torch.tensor(recorded)).abs().max())

    def _logprobs(self, logits: Tensor, purpose: Purpose) -> Tensor:
        """Of the distribution that tokens were drawn from [T, V]."""
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
    """An update made again. files: SHA-256 of the policy's files as it would be saved, by name."""

    number: int
    digests: Mapping[str, str]
    files: Mapping[str, str]


class Updates:
    """Makes updates of a run again, from its saved states and batches."""

    def __init__(self, config: RunConfig, run_dir: Path, threads: int | None) -> None:
        """threads: of torch in the run; None leaves them."""
        self._config, self._device = with_own_start(config, run_dir), config.hardware.device
        self._threads = threads
        self._checkpoints = run_dir / "checkpoints"

    def after(
        self, state: Path | None, batches: Iterable[tuple[int, str, TrainBatch]]
    ) -> Iterator[Made]:
        """Consecutive updates after a saved state; None: from the start of the run.

        batches: by number of the update and name of the policy.
        """
        with self._as_then():
            learners = make_learners(self._config, resolve_device(self._device), Ranks())
            if state is not None:
                read_state(state, learners)
                for learner in learners.each():
                    learner.recall(self._saved)
        for number, name, batch in batches:
            with self._as_then():
                made = self._made(learners, number, name, batch)
            yield made

    @contextlib.contextmanager
    def _as_then(self) -> Iterator[None]:
        """In the block torch computes with the threads and kernels of the run."""
        exact, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
        torch.set_num_threads(self._threads or threads)
        if self._config.strict:
            exact_kernels()
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(exact)
            torch.set_num_threads(threads)

    def _saved(self, uid: str) -> Path | None:
        path = self._checkpoints / uid
        return path if path.is_dir() else None

    def _made(self, learners: Learners, number: int, name: str, batch: TrainBatch) -> Made:
        learner = learners.turn(name)
        learner.version = number - 1
        digests = learner.update_with_digests(batch).digests
        with tempfile.TemporaryDirectory() as folder:
            from rlforge.system.checkpoint import write_checkpoint

            path = write_checkpoint(Path(folder), f"step-{number}", learner.save, {})
            files = {file: entry.sha256 for file, entry in read_manifest(path).files.items()}
        return Made(number=number, digests=digests, files=files)
