"""A run in two parts, as a sink gets it, and what sinks take at its end."""

from collections.abc import Callable
from pathlib import Path

from rlforge.record.files import RunPaths
from rlforge.record.sinks import JsonlSink, Sink, Sinks

EVALUATED = "evaluation-Tak-v0/random_legal/win_rate"
RATINGS = [{"uid": "step-2", "mu": 27.0}, {"uid": "base", "mu": 25.0}]


def checkpoint(folder: Path, name: str = "step-3") -> Path:
    (folder / name / "state").mkdir(parents=True)
    for file in ("manifest.json", "adapter_model.safetensors", "state/learner.pt"):
        (folder / name / file).write_text(file)
    return folder / name


def write_two_parts(make: Callable[[], Sink], paths: RunPaths, *, killed: bool = True) -> None:
    """A run that ends after update 5, with its state after update 3, and goes on to 6.

    Evaluations end after a later update; that of version 4 is made in both parts. killed: the first
    part does not close its sinks; here its last one is closed, so that it can be read.
    """
    for part, evaluated in (((1, 2, 3, 4, 5), {2: 0, 4: 2, 5: 4}), ((4, 5, 6), {6: 4})):
        sinks = Sinks([JsonlSink(), sink := make()], paths, "demo")
        if part[0] > 1:
            sinks.rewind(3)
        for step in part:
            sinks.write(step, {"learner/loss": 1 / step})
            if step in evaluated:
                sinks.write(evaluated[step], {EVALUATED: 0.5})
        if killed and part[0] == 1:
            sink.close()
        else:
            sinks.close()
