"""Keep a run resumable anywhere: its start, and the versions that must stay on disk."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeVar

from rlforge.config.per_policy import of_policy, policy_names
from rlforge.config.schema import PolicyConfig
from rlforge.errors import RunError, counted
from rlforge.kinds import kind_of
from rlforge.models.files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, VALUE_HEAD
from rlforge.record.files import RunPaths, numbered, read_json
from rlforge.record.status import is_done
from rlforge.system.checkpoint import (
    checkpoint_version,
    latest_checkpoint,
    list_checkpoints,
    needed_to_resume,
    prune,
    read_manifest,
    step_name,
    write_checkpoint,
)

log = logging.getLogger(__name__)

C = TypeVar("C", bound=PolicyConfig)

BEFORE_ALL = -1
"""The version to rewind to without a saved state: even version 0 is evaluated again."""


class Retention:
    """Which saved versions of a run stay: the newest ``keep``, and all that may be loaded again."""

    def __init__(self, root: Path, keep: int | None) -> None:
        """Take the folder of the checkpoints; ``keep`` None keeps all."""
        self._root, self._keep = root, keep
        #: Uids that a run resumed from the newest saved state draws its opponents from.
        self.resumable: Collection[str] = ()

    def prune(self, needed: Collection[str], published: int | None = None) -> None:
        """Delete the versions that need not stay.

        Versions from ``published`` on stay, the newest that engines have. So do ``needed`` uids,
        which games and evaluations may ask for: an engine may have evicted them.
        """
        if self._keep is None:
            return
        protected = {*needed, *self.resumable, step_name(0)}
        prune(self._root, self._keep, protected, since=published)


def keep_start(config: PolicyConfig, run_dir: Path) -> None:
    """Copy the adapter that the run starts from, if there is one, to ``step-0``."""
    # A resumed run needs the adapter, which may have been moved or deleted by then.
    start, root = config.learner.initial_adapter, run_dir / "checkpoints"
    if start is None or (root / step_name(0)).exists():
        return

    def fill(folder: Path) -> None:
        for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS, VALUE_HEAD):
            if (Path(start) / name).exists():
                shutil.copyfile(Path(start) / name, folder / name)

    facts = {"version": 0, "experiment": config.name, "parent_uid": None}
    write_checkpoint(root, step_name(0), fill, facts)


def check_resumable(run_dir: Path, total_updates: int) -> None:
    """Raise RunError when the run has made and evaluated all its updates.

    Raises CheckpointError, naming the file, when its newest saved state is damaged.
    """
    newest = latest_checkpoint(run_dir / "checkpoints", with_state=True)
    if newest is None:
        return
    ended = is_done(RunPaths(root=run_dir))
    if ended and checkpoint_version(newest) >= total_updates:
        raise RunError(
            f"{run_dir}: already finished its {counted(total_updates, 'update')}; "
            "go on with --more N, or in a new run with learner.initial_adapter"
        )
    with needed_to_resume(newest):
        read_manifest(newest)


def rewind(run_dir: Path, version: int) -> None:
    """Drop the checkpoints and batches made after ``version``, but for the start, ``step-0``.

    The tracker drops the lines of its own files (``Tracker.resume``).
    """
    # A killed run may have gone on past its newest saved state: the resumed one makes these files
    # again. Games stay, because each says which version played it.
    for path in list_checkpoints(run_dir / "checkpoints"):
        if checkpoint_version(path) > max(version, 0):
            log.info("dropping %s, made after the state that is resumed", path.name)
            shutil.rmtree(path)
    for number, path in numbered((run_dir / "batches").glob("batch-*.*")):
        if number > version:
            path.unlink()


# ---------------------------------------------------------------- --more

_LONGER = re.compile(r"^# made longer, from (\d+) to (\d+) at (\d+)$", re.MULTILINE)


def made_longer(config: C, run_dir: Path, more: int) -> tuple[C, str, str]:
    """The configuration of a run that ``--more`` makes longer, with two texts.

    The first goes into config.yaml: with it a repeated command adds nothing. The second tells the
    user of the new end and of schedules, which are stretched to it.
    """
    kind, run = kind_of(config), RunPaths(root=run_dir)
    made, before, again = int(read_json(run.progress).get("update", 0)), config, ""
    last = _LONGER.search(run.config.read_text(encoding="utf-8"))
    # Interrupted while it started, a run has made nothing of what it was asked for.
    if last and int(last[2]) == config.total_updates and made <= int(last[3]):
        before = kind.longer(config, int(last[1]) - int(last[2]))
        again = f", and not after the {last[2]} of the last --more, of which none was made"
    after: C = kind.longer(before, more)
    start, end = before.total_updates or 0, after.total_updates or 0
    line = f"--more {more}: the run is to make {end} {kind.unit}s, {more} after {start}{again}"
    newest = latest_checkpoint(run_dir / "checkpoints", with_state=True)
    version = 0 if newest is None else checkpoint_version(newest)
    if changes := list(_stretched(before, after, version)):
        line += f"; schedules are stretched to that end: {', '.join(changes)}"
    return after, f"made longer, from {start} to {end} at {made}", line


def _stretched(before: PolicyConfig, after: PolicyConfig, version: int) -> Iterator[str]:
    """Yield each figure that follows another schedule than without ``--more``."""
    # Imported late, because they load torch.
    from rlforge.algorithms.policy_gradient import annealed
    from rlforge.learner.optim import learning_rate_factor

    def figures(config: PolicyConfig, update: int) -> Iterator[tuple[str, float]]:
        progress = min(1.0, update / (config.total_updates or 1))
        for name in policy_names(config):
            own, prefix = of_policy(config, name), f"policies.{name}." if name else ""
            learner, algorithm = own.learner, own.algorithm
            factor = learning_rate_factor(update, learner, config.total_updates)
            yield f"{prefix}learner.learning_rate", learner.learning_rate * factor
            kl, ratio = algorithm.kl, algorithm.entropy_final_ratio
            yield f"{prefix}algorithm.kl.coef", annealed(kl.coef, kl.final_ratio, progress)
            yield (
                f"{prefix}algorithm.entropy_coef",
                annealed(algorithm.entropy_coef, ratio, progress),
            )

    if not version:
        return
    as_it_was, next_ = dict(figures(before, version)), dict(figures(after, version))
    for key, last in figures(before, version - 1):
        if as_it_was[key] != next_[key]:
            yield f"{key} {last:.3g} in update {version}, {next_[key]:.3g} in update {version + 1}"
