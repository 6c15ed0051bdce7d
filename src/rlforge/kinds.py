"""Kinds of runs: all that depends on the kind, as one value for each.

Code that all kinds share asks ``kind_of``, and never the class of a configuration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from rlforge.config.plugins import RUN_KINDS
from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.errors import ConfigError, RlforgeError, RunError, command_line
from rlforge.specs import ActorSpec
from rlforge.types import Form, PolicyRef

if TYPE_CHECKING:  # to import it takes half a second, and lists of keys need the kinds
    from rlforge.config.compose import Composed

C = TypeVar("C", bound=PolicyConfig)

Say = Callable[[str], None]


class Asked(NamedTuple):
    """A turn at which a policy was asked."""

    prompt_token_ids: Sequence[int]
    form: Form
    observation: str


class Controller(Protocol):
    """One kind of training over the actors of its plan.

    Its errors end the run: those of Ray are explained, RlforgeErrors go to the user as they are.
    """

    async def begin(self, *, resume: bool) -> None:
        """Make version 0 ready, or restore the newest saved state."""

    async def run(self) -> bool:
        """Train and save the result; False where ``stop`` ended it before it was complete."""

    def stop(self) -> None:
        """End ``run`` after the work in hand, which is saved; called once, in the event loop."""

    async def close(self) -> None:
        """Release everything; called last, also after a failure."""

    def summary(self) -> Mapping[str, Any]:
        """For summary.json, at any time. ``objective``: the number that a sweeper maximises."""


class RunKind(ABC, Generic[C]):
    """One kind of run; one that trains needs ``root``, ``check``, ``nodes`` and ``controller``.

    Example:
        >>> from rlforge.config.schema import RunConfig
        >>> nodes = kind_of(RunConfig()).nodes(RunConfig(), HardwareConfig())
        >>> [node.name for node in nodes]
        ['tracker', 'pool', 'buffer', 'learner', 'engine', 'collector']
    """

    root: type[C]
    #: Whether it learns given answers.
    supervised = False
    #: Whether it has engines.
    generates = True
    #: Whether it has a learner.
    learns = True
    #: Bytes of Ray, the driver and processes without a model, measured with games of few turns.
    host_bytes = 700 * 2**20
    #: What its progress counts.
    unit = "update"
    #: ``module:Thing``, a ``rlforge.record.recorded.Recorded``; empty: nothing can be verified.
    recorded = ""
    #: ``module:function`` from a ``RunData`` to the page of its report.
    report = "rlforge.show.report:of_games"
    #: ``module:function`` from a ``RunData`` to charts of its results.
    results = "rlforge.show.report.curves:outcomes"
    #: ``module:function`` from a ``Progress`` to sections of its display; empty: as of games.
    progress = ""

    @abstractmethod
    def check(self, composed: Composed[C], *, keys: bool = True) -> None:
        """Raise ConfigError for what cannot run; keys: also for what this machine lacks."""

    @abstractmethod
    def nodes(self, config: C, hardware: HardwareConfig) -> tuple[ActorSpec, ...]:
        """The parts of the run, in the order in which they start."""

    def controller(self, config: C) -> Callable[[Any], Controller]:
        """Makes the controller from a ``rlforge.run.lifecycle.RunContext``."""
        raise TypeError(f"{self.root.about} trains nothing")

    def check_prompts(self, config: C) -> None:
        """Raise ConfigError where prompts leave no room for an action; loads the tokenizer."""

    def opponents(self, config: C) -> Mapping[str, Sequence[PolicyRef]]:
        """The policies that the run meets, by the key that names them."""
        return {}

    def notes(self, composed: Composed[C]) -> Iterator[str]:
        """Warnings about values that go badly together."""
        yield from ()

    def forecast(self, config: C) -> str | None:
        """Sentences on what to expect of collection, if there is one."""
        return None

    def prepare(self, config: C, run_dir: Path, say: Say) -> None:
        """Make in ``run_dir`` what the actors need and is missing."""

    def counted(self, config: C, run_dir: Path) -> C:
        """The configuration with numbers that follow from the content of ``run_dir``."""
        return config

    def check_resumable(self, config: C, run_dir: Path) -> None:
        """Raise RunError for a complete run, CheckpointError for a damaged state."""
        from rlforge.record.files import RunPaths
        from rlforge.record.status import read_summary

        ended = read_summary(RunPaths(root=run_dir))
        # A run that is made longer goes on from where it was done.
        more = (config.total_updates or 0) > ended.get("total_updates", 0)
        if ended.get("status") == "done" and not more:
            raise RunError(f"{run_dir}: already finished; start a new run")

    def longer(self, config: C, more: int) -> C:
        """The configuration with more updates; ConfigError where that has no meaning."""
        raise ConfigError(f"--more: {self.root.about} cannot be made longer")

    def saved(self, run_dir: Path) -> str:
        """The middle of a message about an interrupted run: what is kept, and the mend."""
        from rlforge.system.checkpoint import latest_checkpoint

        try:
            newest = latest_checkpoint(run_dir / "checkpoints", with_state=True)
        # An error on the way out would hide that the run was interrupted.
        except (OSError, RlforgeError) as error:
            return f"({error}); go on with"
        if newest is None:
            return "before a first state was saved; start it again with"
        return f"with {newest.name} saved; later work is lost; go on with"

    def next_steps(self, config: C, run_dir: Path) -> list[str]:
        """Commands for the user of a finished run."""
        return [command_line("report", run_dir)]

    def learned(self, config: C, policy: str) -> str:
        """Words for the card on what a policy of the run learned from."""
        return "its own experience"

    def asked(self, config: C, run_dir: Path, policy: str) -> Iterator[Asked]:
        """Turns on disk at which a policy was asked."""
        from rlforge.record.game_files import read_games

        for purpose in ("train", "eval"):
            for record in read_games(run_dir, purpose=purpose):
                seats = {seat.player_id: seat for seat in record.spec.seats}
                for turn in record.turns:
                    seat, ids = seats[turn.player_id], turn.completion.prompt_token_ids
                    # Other kinds of policies are asked in their own forms, some without token ids.
                    if seat.policy.kind == "checkpoint" and seat.policy.name == policy and ids:
                        yield Asked(ids, seat.form, turn.observation)

    def samples(self, config: C, run_dir: Path, update: int | None) -> tuple[int, Sequence[Any]]:
        """The number of an update, by default the newest, and its ``ShownSample``s."""
        raise ConfigError(f"{run_dir} is {self.root.about}, which keeps no batches")


def kind_of(config: PolicyConfig) -> RunKind[Any]:
    """The kind of the run that ``config`` describes.

    Example:
        >>> from rlforge.config.schema import RunConfig
        >>> kind_of(RunConfig()).root
        <class 'rlforge.config.schema.RunConfig'>
    """
    kind: RunKind[Any] = RUN_KINDS.find(config.kind)
    return kind
