"""Causes for which a run learns nothing, as plug-ins: ``benchmarks/signals.py`` plants them."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue

import torch

from rlforge.algorithms import Targets
from rlforge.algorithms.policy_gradient import Ppo
from rlforge.config.schema import PolicyConfig
from rlforge.engines.base import LocalEngine, Question
from rlforge.engines.registry import transformers
from rlforge.errors import EngineError
from rlforge.samples import Sample
from rlforge.types import Completion


@dataclass
class Turned:
    """Pays each player the negative of its reward."""

    def __call__(self, rewards: Mapping[int, float], env_id: str) -> dict[int, float]:
        return {player: -reward for player, reward in rewards.items()}


class NanWeights(Ppo):
    """Sets the learner's weights to NaN in its second update."""

    updates = 0

    def targets(self, samples: Sequence[Sample], values: Sequence[float] | None) -> Targets:
        self.updates += 1
        if self.updates == 2:
            for each in gc.get_objects():
                if isinstance(each, torch.nn.Parameter) and each.requires_grad:
                    each.data.fill_(float("nan"))
        return super().targets(samples, values)


def shifted(config: PolicyConfig, device: str, threads: int | None, gpus: float) -> LocalEngine:
    """The embedded engine, whose log-probs are 0.05 nats above the learner's."""
    engine = transformers(config, device, threads, gpus)
    ask = engine.ask

    def shifting(questions: Iterable[Question]) -> None:
        made = []
        for prompt, params, policy, caller in questions:
            end = caller.on_end

            def shifted_end(answer: Completion | None, error: EngineError | None, end=end) -> None:
                if answer is not None:
                    moved = tuple(logprob + 0.05 for logprob in answer.logprobs)
                    answer = replace(answer, logprobs=moved)
                end(answer, error)

            caller.on_end = shifted_end
            made.append((prompt, params, policy, caller))
        ask(made)

    engine.ask = shifting  # type: ignore[method-assign]
    return engine


def slow(config: PolicyConfig, device: str, threads: int | None, gpus: float) -> LocalEngine:
    """The embedded engine, which takes a handful of requests a second."""
    engine, waiting = transformers(config, device, threads, gpus), SimpleQueue[Question]()
    ask = engine.ask

    def take() -> None:
        while True:
            time.sleep(1.0)
            ask([waiting.get() for _ in range(min(8, max(1, waiting.qsize())))])

    def later(questions: Iterable[Question]) -> None:
        for question in questions:
            waiting.put(question)

    threading.Thread(target=take, daemon=True).start()
    engine.ask = later  # type: ignore[method-assign]
    return engine
