"""What reacts to a run beside its loop: found by the registry, called in order, saved with it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from tests.harness.composed import composed

from rlforge.config import names
from rlforge.config.schema import RunConfig
from rlforge.errors import ConfigError, RunError
from rlforge.lab.exact.observer import ExactMeasure
from rlforge.preflight.games import validate
from rlforge.record.results import ExactResult
from rlforge.run.actors.cluster import RunActors
from rlforge.run.lifecycle import RunContext
from rlforge.run.observers import Observer, Observers, observers_of
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
    """Notes what it is told, and has a state."""

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
    both = Observers({name: Noting(name, seen) for name in ("sentinel", "exact")})
    await both.published(STEP)
    assert await both.evaluating(STEP) == [RESULT]
    assert seen == ["sentinel step-1", "exact step-1", "sentinel 0.5", "exact 0.5"]
    assert both.needed() == {"sentinel", "exact"}


def test_each_observer_gets_its_own_state_back_and_one_that_is_new_begins_without() -> None:
    before = Observers({"a": Noting("a", []), "none": Observer(), "b": Noting("b", [])})
    state = before.state_dict()
    assert state == {"a": {"of": "a"}, "b": {"of": "b"}}
    one, other, new = Noting("", []), Noting("", []), Noting("new", [])
    Observers({"b": one, "a": other, "new": new}).load_state_dict(state)
    assert (one.state, other.state, new.state) == ({"of": "b"}, {"of": "a"}, {"of": "new"})


class Broken(Observer):
    """Fails in one of its methods, or makes a state that cannot be saved."""

    def __init__(self, context: RunContext[RunConfig]) -> None:
        self.fails = ""

    def __getattribute__(self, attribute: str) -> Any:
        if attribute == object.__getattribute__(self, "fails"):
            raise KeyError(attribute)
        return object.__getattribute__(self, attribute)


class Late(Observer):
    def __init__(self, context: RunContext[RunConfig]) -> None:
        raise OSError("no such board")


class Unsaved(Observer):
    def __init__(self, context: RunContext[RunConfig]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"seen": {1, 2}}


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Offer observers as packages do."""

    def offered(**targets: str) -> None:
        points = {
            name: [EntryPoint(name, each, "rlforge.observers") for each in value.split()]
            for name, value in targets.items()
        }
        monkeypatch.setattr(
            names, "entry_points_of", lambda group: points if group == "rlforge.observers" else {}
        )

    return offered


@pytest.fixture
def context(tmp_path: Path) -> RunContext[RunConfig]:
    config = composed("env=openspiel_kuhn", root=RunConfig).config
    return RunContext(
        config=config,
        hardware=config.hardware,
        run_dir=tmp_path,
        actors=RunActors({"tracker": None}),
        note=print,
        started=0.0,
    )


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ({"one": "absent.board:One"}, "there is no module absent"),
        ({"one": f"{__name__}:STEP"}, "is not a class of .RunContext."),
        ({"one": "rlforge.errors:ConfigError"}, "it has no updated, eval"),
        ({"one": f"{__name__}:Broken {__name__}:Late"}, "two packages .*; uninstall one of them"),
        ({"exact": f"{__name__}:Broken"}, "hidden: exact is rlforge's; uninstall it"),
    ],
)
def test_an_observer_that_cannot_be_used_is_refused_before_anything_starts(
    offer: Callable[..., None], targets: dict[str, str], said: str
) -> None:
    offer(**targets)
    (name,) = targets
    with pytest.raises(ConfigError, match=f"observer '{name}', of every run of games .*{said}"):
        validate(composed("env=openspiel_kuhn", root=RunConfig))


EVENTS = ("updated", "saved", "published", "evaluating")


@pytest.mark.parametrize("event", [*EVENTS, "evaluated", "ended", "needed", "state_dict"])
async def test_an_error_of_an_observer_names_it_with_file_and_line(
    offer: Callable[..., None], context: RunContext[RunConfig], event: str
) -> None:
    offer(mine=f"{__name__}:Broken")
    broken = Broken(context)
    broken.fails = event
    method = getattr(Observers({"mine": broken}), event)
    with pytest.raises(RunError, match=r"observer 'mine' fails: KeyError: .*test_observers.py, l"):
        await method(STEP) if event in EVENTS else method(*[RESULT][: event == "evaluated"])


@pytest.mark.parametrize(("made", "said"), [("Late", "no such board"), ("Unsaved", "set is not")])
def test_an_observer_that_cannot_be_made_or_saved_is_named(
    offer: Callable[..., None], context: RunContext[RunConfig], made: str, said: str
) -> None:
    offer(**{made: f"{__name__}:{made}"})
    with pytest.raises(RunError, match=f"observer '{made}' fails: .*{said}"):
        observers_of(context).state_dict()


async def test_versions_are_measured_exactly_only_where_the_configuration_asks_for_it(
    context: RunContext[RunConfig],
) -> None:
    assert not context.config.eval.exploitability
    assert await ExactMeasure(context).evaluating(STEP) == ()  # without asking a learner
