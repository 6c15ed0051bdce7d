"""What reacts to a run beside its loop: found by the registry, called in order, saved with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.harness.composed import composed

from rlforge.config.schema import RunConfig
from rlforge.lab.exact.observer import exact_measure
from rlforge.record.results import ExactResult
from rlforge.run.actors.cluster import RunActors
from rlforge.run.lifecycle import RunContext
from rlforge.run.observers import Observer, Observers
from rlforge.types import Checkpoint

STEP = Checkpoint(uid="step-1", version=1, path=None)
RESULT = ExactResult(
    step=1,
    policy_uid="step-1",
    env_id="kuhn_poker",
    nash_conv=0.5,
    values=(0.0, 0.0),
    gains=(0.25, 0.25),
    decisions=12,
    illegal=0.0,
    illegal_most=0.0,
)


class Noting(Observer):
    """Notes what it is told, and saves it under its name."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen, self.state = name, seen, {"of": name}

    async def published(self, checkpoint: Checkpoint) -> None:
        self.seen.append(f"{self.name} {checkpoint.uid}")

    async def evaluating(self, checkpoint: Checkpoint) -> tuple[ExactResult, ...]:
        return (RESULT,) if self.name == "exact" else ()

    def evaluated(self, result: Any) -> None:
        self.seen.append(f"{self.name} {result.nash_conv}")

    def needed(self) -> set[str]:
        return {self.name}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


async def test_observers_are_called_in_order_and_hear_the_results_of_each_other() -> None:
    seen = list[str]()
    both = Observers([Noting("sentinel", seen), Noting("exact", seen)])
    await both.published(STEP)
    assert await both.evaluating(STEP) == [RESULT]
    assert seen == ["sentinel step-1", "exact step-1", "sentinel 0.5", "exact 0.5"]
    assert both.needed() == {"sentinel", "exact"}


def test_each_observer_with_a_name_gets_its_own_state_back() -> None:
    before = Observers([Noting("a", []), Observer(), Noting("b", [])])
    state = before.state_dict()
    assert state == {"a": {"of": "a"}, "b": {"of": "b"}}
    one, other = Noting("b", []), Noting("a", [])
    Observers([one, other]).load_state_dict({**state, "pool": {}})
    assert (one.state, other.state) == ({"of": "b"}, {"of": "a"})


@pytest.mark.parametrize("asked", [True, False])
def test_versions_are_measured_exactly_where_the_configuration_asks_for_it(
    asked: bool, tmp_path: Path
) -> None:
    config = composed("env=openspiel_kuhn", f"eval.exploitability={asked}", root=RunConfig).config
    context = RunContext(
        config=config,
        hardware=config.hardware,
        run_dir=tmp_path,
        actors=RunActors({}),
        note=print,
        started=0.0,
    )
    assert (exact_measure(context) is not None) == asked
