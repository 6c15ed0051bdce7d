"""Engines of several models as one engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from rlforge.engines.base import Caller, EngineStats, LocalEngine, OnTokens, Question
from rlforge.errors import EngineError
from rlforge.system.utilisation import Span
from rlforge.types import Completion, PolicyRef, SamplingParams


class ModelsEngine(LocalEngine):
    """Answers for checkpoints of the run's model, and for other models by their uid.

    ``own`` is the engine of the run's model; without one, checkpoints are refused. ``others`` are
    engines by the uid of policies of kind ``hf``.
    """

    def __init__(self, own: LocalEngine | None, others: Mapping[str, LocalEngine]) -> None:
        self._own, self._others = own, others
        self.about = getattr(own, "about", "")
        self._all = [*([] if own is None else [own]), *others.values()]

    def _at(self, policy: PolicyRef) -> tuple[LocalEngine, PolicyRef]:
        """The engine of a policy, and its name there."""
        # Another model is the base of its own engine.
        if policy.kind == "hf" and (other := self._others.get(policy.uid)) is not None:
            return other, PolicyRef(uid=policy.uid, kind="checkpoint")
        if self._own is None:
            raise EngineError(f"this engine holds {', '.join(self._others)}, and not {policy.uid}")
        return self._own, policy

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        policy: PolicyRef,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        engine, its_name = self._at(policy)
        return await engine.generate(prompt_token_ids, params, its_name, on_tokens)

    def ask(self, questions: Iterable[Question]) -> None:
        divided: dict[LocalEngine, list[Question]] = {}
        for prompt, params, policy, caller in questions:
            engine, its_name = self._at(policy)
            divided.setdefault(engine, []).append((prompt, params, its_name, caller))
        for engine, own in divided.items():
            engine.ask(own)

    def forget(self, callers: Iterable[Caller]) -> None:
        gone = list(callers)
        for engine in self._all:
            engine.forget(gone)

    async def load(self, policy: PolicyRef) -> None:
        engine, its_name = self._at(policy)
        await engine.load(its_name)

    def stats(self) -> EngineStats:
        return EngineStats.total(engine.stats() for engine in self._all)

    def take_busy_spans(self) -> list[Span]:
        return [span for engine in self._all for span in engine.take_busy_spans()]

    async def sleep(self) -> None:
        await asyncio.gather(*(engine.sleep() for engine in self._all))

    async def wake(self) -> None:
        await asyncio.gather(*(engine.wake() for engine in self._all))

    async def close(self) -> None:
        await asyncio.gather(*(engine.close() for engine in self._all))
