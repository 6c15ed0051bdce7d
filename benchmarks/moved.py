"""Whether this commit behaves as another one: strict runs, refused lines, graphs, old runs, time.

    python benchmarks/moved.py BASELINE [--parts PART ...] [--pairs N] [--updates N]

BASELINE, a commit, is checked out into a work tree of its own, and both run side by side on this
machine: digests and weights only compare on one machine.

- runs: strict runs of eight updates, continuous ones of batch-invariant answers. Compared are the
  digest of each update and the bytes of all adapters.
- lines: exit codes and texts of ``tests/cli/wrong_lines.txt``, as the baseline has the file.
- graphs: what ``rlforge graph --format json`` says of each experiment.
- folders: run directories of the baseline, opened by ``report``, ``replay``, ``eval`` and
  ``export`` of this commit, which must not fail.
- time: ``simpletak_mirror`` for N updates, pair by pair: start until the first game, wall and CPU
  seconds of the whole command, and seconds an update.

Each difference is printed, and is a line of the result.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import cpu_seconds, record, rows_so_far, spread

REPOSITORY = Path(__file__).parents[1]
PARTS = ("runs", "lines", "graphs", "folders", "time")
QUIET = ("tracker.report=false", "tracker.progress=off")
STRICT = (
    *("determinism=strict", "learner.total_updates=8", "learner.state_every=4"),
    *("eval.every=4", "eval.games=4", "eval.final_games=4", *QUIET),
)
SMALL = "learner.batch_size=64"
#: What is run with ``STRICT``, by its name in the result.
RUNS = {
    "simpletak_mirror": ("+experiment=simpletak_mirror", SMALL),
    "simpletak_pool": ("+experiment=simpletak_pool", SMALL),
    "tictactoe_mirror": ("+experiment=tictactoe_mirror", SMALL),
    "kuhn_grpo": ("+experiment=kuhn_grpo", SMALL),
    "kuhn_nash": ("+experiment=kuhn_nash", SMALL),
    "conversation": ("+experiment=tictactoe_mirror", SMALL, "env.context=conversation"),
    "blotto_league": ("+experiment=blotto_league", SMALL),
}
CONTINUOUS = (
    *("continuous", "+experiment=market_continuous", "continuous.agents=8", "window.minutes=30"),
    *("continuous.windows=4", "continuous.compare_episodes=0", "deployment.holdout_games=0"),
    *("engine.batch_invariant=true", "hardware.threads=1", *QUIET),
)
#: Runs that the parts ``lines`` and ``folders`` begin with, by their folder.
OLD = {"game": ("train", *RUNS["kuhn_grpo"], *STRICT), "market": CONTINUOUS}
#: Runs a list of lines in one process: what they print, and their exit codes.
LINES = """
import contextlib, io, json, sys
from rlforge.cli import main
answers = []
for words in json.load(open(sys.argv[1])):
    sys.argv = ["rlforge", *words]
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            code = repr(error)
    answers.append([code, out.getvalue(), err.getvalue()])
sys.stdout.write(json.dumps(answers))
"""


class Side:
    """One of both commits: its source, and a folder in which it runs."""

    def __init__(self, name: str, tree: Path, folder: Path) -> None:
        self.name, self.tree, self.folder = name, tree, folder / name
        self.folder.mkdir()
        self._environment = os.environ | {
            "PYTHONPATH": str(tree / "src"),
            "COLUMNS": "80",
            "RLFORGE_CACHE": str(folder / f"{name}-models"),
        }

    def start(self, *words: str, code: str = "from rlforge.cli import main; main()") -> Any:
        """A process of this side's Python, whose output goes to a file."""
        with (self.folder / "output.txt").open("w") as output:
            return subprocess.Popen(
                [sys.executable, "-c", code, *words],
                cwd=self.folder,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def rlforge(self, *words: str) -> tuple[int, str]:
        """The exit code of a command, and what it printed."""
        code = self.start(*words).wait()
        return code, (self.folder / "output.txt").read_text()

    def answers(self, lines: list[list[str]]) -> list[list[Any]]:
        """Exit code, output and errors of each line; the side's folder is written as ``.``."""
        (self.folder / "lines.json").write_text(json.dumps(lines))
        assert self.start("lines.json", code=LINES).wait() == 0, self.folder
        text = (self.folder / "output.txt").read_text()
        plain = text[text.index("[[") :]
        for place in (str(self.folder), str(self.tree)):
            plain = plain.replace(place, ".")
        answers: list[list[Any]] = json.loads(plain)
        return answers


# ---------------------------------------------------------------- parts


def runs(both: list[Side]) -> Iterator[str]:
    for name, overrides in RUNS.items():
        yield from _same_run(both, name, ("train", *overrides, *STRICT))
    yield from _same_run(both, "market_continuous", CONTINUOUS)


def _same_run(both: list[Side], name: str, words: tuple[str, ...]) -> Iterator[str]:
    for side in both:
        code, text = side.rlforge(*words, f"run_dir={name}")
        if code:
            yield f"{name}: {side.name} ends with {code}: {text.strip().splitlines()[-1]}"
            return
    found = [_marks(side.folder / name) for side in both]
    print(f"{name}: {len(found[0])} digests of updates and adapters", flush=True)
    for key in dict.fromkeys([*found[0], *found[1]]):
        if found[0].get(key) != found[1].get(key):
            yield f"{name}: {key} differs"


def _marks(run_dir: Path) -> dict[str, str]:
    """The digests of each update and of each adapter of a run.

    Updates are compared without the first line, which says what computed, and without the chain
    through the lines that goes back to it.
    """
    marks = {}
    file = run_dir / "digests.jsonl"
    for line in file.read_text().splitlines()[1:] if file.is_file() else ():
        row = json.loads(line)
        marks |= {
            f"{key} of update {row['step']}": json.dumps(row[key])
            for key in sorted(row)
            if key not in ("digest", "before", "step")
        }
    for adapter in sorted(run_dir.glob("checkpoints/*/adapter_model.safetensors")):
        marks[adapter.parent.name] = hashlib.sha256(adapter.read_bytes()).hexdigest()
    return marks


def _make_old_runs(both: list[Side]) -> None:
    """Let the baseline make the runs of ``OLD``; both sides have them."""
    old, new = both
    for name, words in OLD.items():
        code, text = old.rlforge(*words, f"run_dir={name}")
        assert code == 0, text
        shutil.copytree(old.folder / name, new.folder / name)


def lines(both: list[Side]) -> Iterator[str]:
    _make_old_runs(both)
    for side in both:
        (side.folder / "full").mkdir()
        (side.folder / "full" / "file").touch()
    text = (both[0].tree / "tests/cli/wrong_lines.txt").read_text()
    asked = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    asked = [line.replace("WINDOWS", "market").replace("RUN", "game") for line in asked]
    yield from _same_answers(both, [shlex.split(line) for line in asked])


def graphs(both: list[Side]) -> Iterator[str]:
    names = sorted(path.stem for path in (both[0].tree / "conf/experiment").glob("*.yaml"))
    wanted = [["graph", f"+experiment={name}", "--format", "json"] for name in names]
    differ: Counter[str] = Counter()
    for before, after in zip(*(side.answers(wanted) for side in both), strict=True):
        one, other = (dict(_leaves(json.loads(answer[1]))) for answer in (before, after))
        for key in dict.fromkeys([*one, *other]):
            if one.get(key) != other.get(key):
                differ[f"{key}: {one.get(key)!r} is now {other.get(key)!r}"] += 1
    print(f"{len(wanted)} graphs", flush=True)
    yield from (f"{text} ({number} experiments)" for text, number in differ.most_common())


def _leaves(tree: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Values with their dotted keys; parts of a list go by their names or numbers."""
    if isinstance(tree, dict):
        for key, inside in tree.items():
            yield from _leaves(inside, f"{at}.{key}".lstrip("."))
    elif isinstance(tree, list):
        for number, inside in enumerate(tree):
            name = inside.get("name") if isinstance(inside, dict) else None
            yield from _leaves(inside, f"{at}.{name or number}")
    else:
        yield at, tree


def _same_answers(both: list[Side], asked: list[list[str]]) -> Iterator[str]:
    answers = [side.answers(asked) for side in both]
    print(f"{len(asked)} lines", flush=True)
    for words, before, after in zip(asked, *answers, strict=True):
        for kind, old, new in zip(("exit code", "output", "errors"), before, after, strict=True):
            if old != new:
                yield f"rlforge {shlex.join(words)}: {kind}: {old!r} is now {new!r}"


def folders(both: list[Side]) -> Iterator[str]:
    _make_old_runs(both)
    commands = [["runs", "."], ["replay", "game"], ["eval", "game", "--games", "4"]]
    commands += [["report", name] for name in OLD]
    commands += [["export", name, f"{name}-exported", "--merge"] for name in OLD]
    for command in commands:
        code, text = both[1].rlforge(*command)
        print(f"rlforge {shlex.join(command)}: {code}", flush=True)
        if code:
            yield f"rlforge {shlex.join(command)}: {text.strip().splitlines()[-1]}"


def timed(both: list[Side], pairs: int, updates: int) -> dict[str, Any]:
    found: dict[str, dict[str, list[float]]] = {side.name: {} for side in both}
    words = ("train", "+experiment=simpletak_mirror", "eval.opponents=[random_legal]")
    words += (f"learner.total_updates={updates}", *QUIET)
    for side in both:  # makes the model
        side.rlforge(*words, "learner.total_updates=1", "run_dir=first")
    for pair in range(pairs):
        for side in both if pair % 2 == 0 else reversed(both):
            figures = _one_timed(side, words, f"timed-{pair}")
            print(side.name, figures, flush=True)
            for key, value in figures.items():
                found[side.name].setdefault(key, []).append(value)
    spreads = {
        name: {key: spread(values) for key, values in figures.items()}
        for name, figures in found.items()
    }
    ratios = {
        key: [b / a for a, b in zip(found[both[0].name][key], values, strict=True)]
        for key, values in found[both[1].name].items()
    }
    return spreads | {"ratios": {key: spread(each, "ratio") for key, each in ratios.items()}}


def _one_timed(side: Side, words: tuple[str, ...], name: str) -> dict[str, float]:
    began, cpu, run_dir = time.monotonic(), 0.0, side.folder / name
    process, figures = side.start(*words, f"run_dir={name}"), dict[str, float]()
    while process.poll() is None:
        cpu = max(cpu, cpu_seconds(process.pid))
        games = (run_dir / "games").is_dir() and any((run_dir / "games").iterdir())
        if games and "first_game" not in figures:
            figures = {"first_game": time.monotonic() - began, "first_game_cpu": cpu}
        time.sleep(0.05)
    assert process.returncode == 0, (side.folder / "output.txt").read_text()
    rows = rows_so_far(run_dir)
    figures |= {"wall": time.monotonic() - began, "cpu": cpu}
    shutil.rmtree(run_dir)
    return figures | {"update": (rows[-1]["time_s"] - rows[0]["time_s"]) / (len(rows) - 1)}


# ---------------------------------------------------------------- both trees


@contextlib.contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """A work tree of a commit, while the block runs."""
    git = ["git", "-C", str(REPOSITORY), "worktree"]
    tree = folder / "baseline-tree"
    subprocess.run([*git, "add", "-q", "--detach", str(tree), commit], check=True)
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("baseline")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--updates", type=int, default=80)
    asked = parser.parse_args()
    results: dict[str, Any] = {"baseline": asked.baseline}
    with tempfile.TemporaryDirectory() as name, checked_out(asked.baseline, Path(name)) as tree:
        for part in asked.parts:
            folder = Path(name) / part
            folder.mkdir()
            both = [Side("before", tree, folder), Side("after", REPOSITORY, folder)]
            if part == "time":
                results[part] = timed(both, asked.pairs, asked.updates)
                continue
            compare = {"runs": runs, "lines": lines, "graphs": graphs, "folders": folders}[part]
            results[part] = list(compare(both))
            for difference in results[part]:
                print(f"  {difference}", flush=True)
    record("moved", results)


if __name__ == "__main__":
    main()
