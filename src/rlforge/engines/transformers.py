"""The embedded engine: transformers models in one worker thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from torch import nn

from rlforge.config.schema import EngineConfig
from rlforge.engines.base import EngineStats
from rlforge.engines.batching import BatchGenerator, BatchLimits
from rlforge.engines.policies import PolicyStore
from rlforge.errors import ConfigError, EngineError
from rlforge.types import Completion, PolicyRef, SamplingParams
from rlforge.utilisation import Span

#: Padded prompt tokens of one forward pass. On a CPU more of them fall out of the cache: a
#: 0.1M-parameter model reads 12,000 20-token prompts a second in batches of 64, 8,000 of 128.
_CPU_BATCH_TOKENS = 1536
_GPU_BATCH_TOKENS = 16384

#: A caller's future and the submission that the worker makes for it; returns the request's id.
_Future = asyncio.Future[Completion | None]
_Call = tuple[Callable[[], int], _Future]
_Result = tuple[_Future, Completion | None, EngineError | None]

log = logging.getLogger(__name__)


class TransformersEngine:
    """Continuous batching over a base model and its adapters (see ``rlforge.engines.base``).

    model: the base model, on its device, in the dtype it is to run in; not changed. tokenizer:
    turns answers into text, without special tokens. seed: of the draws of requests that bring no
    seed.

    Everything is computed in one worker thread. ``generate`` and ``load`` are called from any
    event loop, also from several; a cancelled call takes its request out of the batch.
    """

    def __init__(
        self, config: EngineConfig, model: nn.Module, tokenizer: Any, *, seed: int = 0
    ) -> None:
        causal: Any = model
        _check_layers(causal)
        on_cpu = next(model.parameters()).device.type == "cpu"
        self._core = BatchGenerator(
            PolicyStore(model.requires_grad_(False).eval(), config.max_loras),
            BatchLimits(
                max_sequences=config.max_parallel_seq,
                max_model_len=min(config.max_model_len, _positions(causal)),
                batch_prompt_tokens=_CPU_BATCH_TOKENS if on_cpu else _GPU_BATCH_TOKENS,
            ),
            decode=_decoder(tokenizer),
            vocab_size=causal.get_input_embeddings().weight.shape[0],
            pad_id=tokenizer.pad_token_id or 0,
            seed=seed,
        )
        self._wake = threading.Condition()
        self._inbox: list[_Call] = []
        self._cancelled: set[_Future] = set()
        self._end: EngineError | None = None
        self._pending: dict[int, _Future] = {}
        self._thread = threading.Thread(target=self._work, name="rlforge-engine", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ any event loop

    async def generate(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, policy: PolicyRef
    ) -> Completion:
        """Continue ``prompt_token_ids`` with ``policy``, which is loaded if it is not resident.

        Raises EngineError for a prompt without room for an answer, a policy that does not load, a
        failed computation, and when the engine closes.
        """
        submit = partial(self._core.submit, tuple(prompt_token_ids), params, policy)
        completion = await self._ask(submit)
        assert completion is not None
        return completion

    async def load(self, policy: PolicyRef) -> None:
        """Make ``policy`` resident ahead of its first request. Raises EngineError as above."""
        await self._ask(partial(self._core.load, policy))

    def stats(self) -> EngineStats:
        """Counters since the start."""
        return self._core.stats()

    def take_busy_spans(self) -> list[Span]:
        """When it computed since the last call, in seconds of the wall clock."""
        return self._core.take_busy_spans()

    async def close(self) -> None:
        """Stop; requests under way fail with ``EngineError``."""
        self._stop(EngineError("the engine is closed"))
        await asyncio.to_thread(self._thread.join)

    async def _ask(self, submit: Callable[[], int]) -> Completion | None:
        future: _Future = asyncio.get_running_loop().create_future()
        with self._wake:
            if self._end is not None:
                raise EngineError(str(self._end))
            self._inbox.append((submit, future))
            self._wake.notify()
        try:
            return await future
        except asyncio.CancelledError:
            with self._wake:
                self._cancelled.add(future)
            raise

    # ------------------------------------------------------------ the worker thread

    def _stop(self, reason: EngineError) -> None:
        with self._wake:
            self._end = self._end or reason
            self._wake.notify()

    def _work(self) -> None:
        try:
            while self._round():
                pass
        except Exception as error:  # a bug here must not leave callers waiting for ever
            self._stop(EngineError(f"the engine died: {type(error).__name__}: {error}"))
            log.exception("the engine thread died")
        with self._wake:
            assert self._end is not None
            left = [*self._pending.values(), *(future for _, future in self._inbox)]
            reason = str(self._end)
        _deliver([(future, None, EngineError(reason)) for future in left])

    def _round(self) -> bool:
        """Takes what came in and makes one step; False when the engine is to stop."""
        with self._wake:
            self._wake.wait_for(lambda: self._inbox or self._end or self._core.has_work)
            if self._end is not None:
                return False
            inbox, self._inbox = self._inbox, []
            cancelled, self._cancelled = self._cancelled, set()
        done: list[_Result] = []
        for submit, future in inbox:
            try:
                self._pending[submit()] = future
            except EngineError as error:
                done.append((future, None, error))
        if cancelled:
            gone = [i for i, future in self._pending.items() if future in cancelled]
            self._core.cancel(gone)
            for i in gone:
                del self._pending[i]
        for answer in self._core.step():
            done.append((self._pending.pop(answer.id), answer.completion, answer.error))
        _deliver(done)
        return True


def _deliver(results: list[_Result]) -> None:
    """Hands results to the loops that wait for them: one wake-up per loop, not per request."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Result]] = defaultdict(list)
    for result in results:
        by_loop[result[0].get_loop()].append(result)
    for loop, batch in by_loop.items():
        # A loop that closed meanwhile has no callers left.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, batch)


def _settle(results: list[_Result]) -> None:
    for future, completion, error in results:
        if future.done():  # cancelled while the answer was under way
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(completion)


def _decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Ids to text without special tokens. Short answers repeat, so theirs are remembered."""

    def decode(ids: Sequence[int]) -> str:
        text: str = tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    short = lru_cache(maxsize=4096)(decode)
    return lambda ids: short(tuple(ids)) if len(ids) <= 3 else decode(ids)


def _positions(model: Any) -> int:
    """Most tokens the model has positions for."""
    config = model.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or sys.maxsize)


def _check_layers(model: Any) -> None:
    """Raises ConfigError for models whose layers keep something else than keys and values."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if model.config.is_encoder_decoder:
        kinds.add("encoder-decoder")
    if getattr(model, "_is_stateful", False):
        kinds.add("recurrent")
    unknown = sorted(kinds - {"full_attention", "sliding_attention"})
    if unknown:
        raise ConfigError(
            f"engine.name transformers cannot run {type(model).__name__}: it has "
            f"{', '.join(unknown)} layers, and full or sliding attention is needed; choose "
            "another model"
        )
