"""A finished run as its files record it, for checks; and what a check finds."""

from __future__ import annotations

import dataclasses
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rlforge.record.digests import FILE
from rlforge.record.files import RunPaths, read_jsonl
from rlforge.system.checkpoint import list_checkpoints

T = TypeVar("T")
Say = Callable[[str], None]
"""Called with progress messages."""

#: Seconds between two messages of ``paced``.
_PACE_S = 5.0


@dataclasses.dataclass(frozen=True)
class Check:
    """One kind of check. checked, total: numbers of ``things``, such as games.

    problems: what does not agree. notes: what was left out, and why.
    """

    name: str
    things: str
    checked: int
    total: int
    result: str
    problems: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


class Recorded(ABC):
    """Records that checks read. lines: the digest chain; steps: its updates, by number."""

    def __init__(self, run_dir: Path, whole: bool, seed: int) -> None:
        self.dir, self.whole, self.rng = run_dir.absolute(), whole, random.Random(seed)
        self.paths = RunPaths(root=self.dir)
        self.lines = read_jsonl(self.dir / FILE)
        self.steps = {
            row["step"]: row for row in self.lines if row["step"] > 0 and "final" not in row
        }
        self.computed: Mapping[str, Any] = self.lines[0].get("computed", {}) if self.lines else {}
        self.folders = {path.name: path for path in list_checkpoints(self.paths.checkpoints)}

    @abstractmethod
    def made(self) -> int:
        """The number of the last step."""

    @abstractmethod
    def checks(self, say: Say) -> Iterator[Check]:
        """The checks beside those of its chain and its checkpoints."""

    def some(self, things: Iterable[Any], number: int) -> list[Any]:
        """All things, or ``number`` by chance, in order."""
        # To compute all again takes about as long as the run: by default a check draws some.
        all_of = list(things)
        if self.whole or len(all_of) <= number:
            return all_of
        return [all_of[place] for place in sorted(self.rng.sample(range(len(all_of)), number))]


def paced(things: Iterable[T], total: int, what: str, say: Say) -> Iterator[T]:
    """Yield things, and say every few seconds how many of ``total`` are done, with ``what``."""
    said = time.monotonic()
    for done, thing in enumerate(things):
        if done and time.monotonic() - said >= _PACE_S:
            said = time.monotonic()
            say(f"{done:,} of {total:,} {what}")
        yield thing
