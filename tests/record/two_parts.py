"""A run in two parts, as a sink gets it, and what sinks take at its end."""

from pathlib import Path

from rlforge.record.files import RunPaths
from rlforge.record.sinks import JsonlSink, Sink

EVALUATED = "evaluation-Tak-v0/random_legal/win_rate"
RATINGS = [{"uid": "step-2", "mu": 27.0}, {"uid": "base", "mu": 25.0}]


def checkpoint(folder: Path, name: str = "step-3") -> Path:
    (folder / name / "state").mkdir(parents=True)
    for file in ("manifest.json", "adapter_model.safetensors", "state/learner.pt"):
        (folder / name / file).write_text(file)
    return folder / name


def write_two_parts(sink: Sink, paths: RunPaths) -> None:
    """A run that is killed after update 5, with its state after update 3, and goes on to 6.

    Evaluations end after a later update; that of version 4 is made in both parts.
    """
    for part, evaluated in (((1, 2, 3, 4, 5), {2: 0, 4: 2, 5: 4}), ((4, 5, 6), {6: 4})):
        sinks = [JsonlSink(), sink]
        for each in sinks:
            each.open(paths, "demo")
        for each in sinks:
            if part[0] > 1:
                each.rewind(3)
            for step in part:
                each.write(step, {"learner/loss": 1 / step})
                if step in evaluated:
                    each.write(evaluated[step], {EVALUATED: 0.5})
            each.close()
