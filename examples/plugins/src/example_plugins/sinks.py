"""A sink of metrics: where the numbers of a run are written."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass

from rlforge import RunPaths


@dataclass
class CsvSink:
    """A CSV file in the run directory with the columns step, metric and value."""

    file: str = "metrics.csv"

    def open(self, run: RunPaths, name: str) -> None:
        self.path = run.root / self.file
        self.path.touch()  # a resumed run finds the rows that it has written before

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerows([step, name, value] for name, value in scalars.items())

    def rewind(self, step: int) -> None:
        rows = self.path.read_text().splitlines(keepends=True)
        self.path.write_text("".join(row for row in rows if int(row.partition(",")[0]) <= step))

    def close(self) -> None:
        pass
