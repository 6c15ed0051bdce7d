"""Takes the walk and writes it down: ``python -m tests.first_day.record`` makes docs/walk.md again.

The model that the walk trains is made first if it is not in the cache, which takes a minute.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tests.first_day.steps import EXPERIMENT, STEPS, YAML
from tests.first_day.walk import Screen, Walk

from rlforge.show.report.data import load_run
from rlforge.show.report.plots import draw_curves

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "walk.md"
_INTRODUCTION = f"""\
# A first day, step by step

From an empty folder to a served policy, as a terminal of 80 columns shows it. The test suite takes
the same steps and compares what they show; `python -m tests.first_day.record` records them again.
`#` stands for the digits of times and speeds.

The folder holds one file, an experiment that is `tictactoe_mirror` with fewer and smaller updates.
It is `{EXPERIMENT}`:

```yaml
{YAML}```
"""


def prepare(folder: Path) -> None:
    """Write the one file with which the walk begins."""
    experiment = folder / EXPERIMENT
    experiment.parent.mkdir(parents=True)
    experiment.write_text(YAML)


def section(walk: Walk, screen: Screen) -> str:
    """The part of the page about a step."""
    step = screen.step
    shown = f"```text\n{walk.recorded(screen)}\n```\n"
    if step.picture:
        shown = f"![{screen.step.title}](walk/{step.picture}.svg)\n\n{shown}"
    return f"## {step.title}\n\n{shown}"


def record(folder: Path) -> None:
    """Take the steps in ``folder`` and write the page and its pictures."""
    prepare(folder)
    walk, sections = Walk(folder), [_INTRODUCTION]
    for step in STEPS:
        for screen in walk.take(step):
            if screen.code != screen.step.code:
                raise SystemExit(f"{screen.command} ended with {screen.code}:\n{screen.text}")
            missing = [one for one in screen.step.shows if not re.search(one, screen.text)]
            if missing:
                raise SystemExit(f"{screen.command} does not show {missing}:\n{screen.text}")
            sections.append(section(walk, screen))
            if screen.step.picture:
                (DOCS / "walk" / f"{screen.step.picture}.svg").write_text(screen.svg())
    curves = draw_curves(load_run(min((folder / "runs" / "first_day").iterdir())))
    assert curves is not None
    (DOCS / "walk" / "curves.svg").write_text(curves)
    PAGE.write_text("\n".join(sections))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        record(Path(temporary).resolve())
