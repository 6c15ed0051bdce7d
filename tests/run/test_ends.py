"""Signals at every phase of every kind of command: one line, 130, what there was is saved."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from signal import SIGINT

import psutil
import pytest
from tests.harness.ends import PLACES, REACHED
from tests.harness.live_run import RLFORGE, start, train_arguments, wait_for

from rlforge.record.files import RunPaths, read_jsonl
from rlforge.record.status import read_summary
from rlforge.system.checkpoint import latest_checkpoint

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
ALL = sorted(product(PLACES, PLACES["games"], SIGNALS))
#: What the tier of processes tries, which must stay short; a release tries all.
DRAWN = {
    one
    for kind in PLACES
    for one in random.Random(kind).sample(
        [case for case in ALL if case[0] == kind], 2 if kind == "games" else 1
    )
}
#: Phases after which there is a state, and after which a run is done.
SAVED = ("publish", "last evaluation", "report", "exit")
DONE = ("report", "exit")
#: In the environment of all processes of a command.
MARK = "RLFORGE_TEST_ENDS"


def cases() -> list[object]:
    marks = {True: pytest.mark.ray, False: pytest.mark.release}
    return [pytest.param(*one, marks=marks[one in DRAWN]) for one in ALL]


def words(kind: str, model: Path, market: Sequence[str]) -> list[str]:
    few = ("learner.total_updates=2", "learner.state_every=1", "hardware=cpu")
    games = train_arguments(model, *few)
    if kind == "games":
        return games
    if kind == "sweep":
        jobs = [word for word in games if not word.startswith("run_dir=")]
        return [*jobs, "-m", "seed=0,1"]
    own = ["model=hf", f"model.name={model}", "model.prompt_template=board", "hardware=cpu"]
    own.append("model.action_extraction=bracket")
    if kind == "serve":
        return ["serve", "env=tictactoe", *own, "serve.port=0", "run_dir=run"]
    if kind == "sft":
        data = ["data=random_legal", "data.games=20", "data.max_samples=40", "data.validation=0.2"]
        small = ["data.epochs=1", "learner.batch_size=16", "learner.save_every=1000"]
        return ["sft", "tictactoe_mirror", *own, *data, *small, "run_dir=run"]
    few = ("continuous.windows=1", "continuous.compare_episodes=2", "run_dir=run")
    return ["continuous", *market, *few]


def left(mark: str) -> list[psutil.Process]:
    """Processes of the command that still run."""

    def belongs(process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == mark
        except psutil.Error:
            return False

    return [each for each in psutil.process_iter() if belongs(each)]


def runs_here() -> list[Path]:
    """Runs at any depth, those of sweeps as well."""
    return [file.parent for file in sorted(Path().rglob("config.yaml"))]


@pytest.mark.parametrize(("kind", "phase", "signal"), cases())
def test_a_signal_ends_a_command_in_order(
    small_model: Path, small_market: Sequence[str], kind: str, phase: str, signal: str
) -> None:
    place, count = PLACES[kind][phase]
    ends = [[place, count, signal]]
    if (kind, phase) == ("serve", "exit"):  # a service ends by a signal alone
        ends.insert(0, [*PLACES["serve"]["report"], "SIGTERM"])
    command = [sys.executable, "-m", "tests.harness.ends", json.dumps(ends)]
    mark = os.urandom(8).hex()
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, *words(kind, small_model, small_market)],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", MARK: mark, "PYTHONPATH": path},
        start_new_session=True,
    )
    said = done.stderr.splitlines()
    assert Path(REACHED).exists(), done.stderr
    assert done.returncode == 130, done.stderr
    # A service has been ended by a signal before it can get one at its exit.
    lines = 2 if (kind, phase) == ("serve", "exit") else 1
    assert sum("interrupted" in line and "] interrupted" not in line for line in said) == lines, (
        said
    )
    assert "Traceback" not in done.stderr
    assert not left(mark)
    assert not [*Path().rglob("*.tmp")]
    if kind == "serve":
        return
    runs = runs_here()
    begun = phase not in ("imports", "compose")
    assert len(runs) == (2 if kind == "sweep" and phase == "exit" else begun)
    for run in runs:
        status = read_summary(RunPaths(root=run))["status"]
        assert (run / "config.yaml").is_file()
        assert status == ("done" if phase in DONE else status)
        assert status in ("done", "interrupted")
        if phase in SAVED and kind != "continuous":
            assert latest_checkpoint(run / "checkpoints", with_state=True) is not None


@pytest.mark.release
@pytest.mark.parametrize("to_all", [True, False])
def test_jobs_of_a_sweep_that_run_side_by_side_save_and_are_named(
    small_model: Path, to_all: bool
) -> None:
    """Ctrl-C reaches the whole group of a terminal; a batch system may signal one process."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    side_by_side = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1,2")
    process = start(
        *words("sweep", small_model, ())[:-1],
        *("learner.total_updates=400", *side_by_side),
        start_new_session=True,
    )

    def jobs() -> list[Path]:
        return [run for run in runs_here() if read_jsonl(run / "metrics.jsonl")]

    wait_for(lambda: len(jobs()) == 2, process)
    (os.killpg if to_all else os.kill)(process.pid, SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    last = said.splitlines()[-1]
    assert last.startswith("rlforge: interrupted in runs/")
    assert last.count("rlforge train --resume") == 2
    assert "; rlforge train +experiment=" in last
    assert f"run_dir={jobs()[0].parent / '2'}" in last
    for job in jobs():
        assert read_summary(RunPaths(root=job))["status"] == "interrupted"
        assert latest_checkpoint(job / "checkpoints", with_state=True) is not None
    assert len(runs_here()) == 2


@pytest.mark.release
@pytest.mark.parametrize("late_s", [0.0, 0.5, 2.0, 5.0])
def test_jobs_of_a_sweep_that_import_and_compose_end_without_a_word(
    small_model: Path, late_s: float
) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    side_by_side = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1,2")
    command = [*words("sweep", small_model, ())[:-1], *side_by_side]
    process = start(*command, start_new_session=True)

    def workers() -> list[psutil.Process]:
        below = psutil.Process(process.pid).children()
        return [each for each in below if any("popen_loky" in word for word in each.cmdline())]

    wait_for(lambda: len(workers()) == 2, process)
    time.sleep(late_s)
    os.killpg(process.pid, SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    lines = [line for line in said.splitlines() if not line.startswith("job ")]
    assert lines == ["rlforge: interrupted before a job had started"]
    assert not list(Path().glob("runs/*/*"))


@pytest.mark.slow
def test_ctrl_c_saves_and_ends_with_130_where_it_ends_the_reader_as_well(small_model: Path) -> None:
    """As in ``rlforge train … 2>&1 | tee log``, whose processes all get the signal."""
    arguments = train_arguments(small_model, "learner.total_updates=400", "hardware=cpu")
    reader, writer = os.pipe()
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        [*RLFORGE, *arguments], stdout=writer, stderr=writer, env=environment
    )
    os.close(writer)
    deadline = time.monotonic() + 200
    while not read_jsonl(Path("run/metrics.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.close(reader)
    time.sleep(3)
    assert process.poll() is None  # it goes on without one
    process.send_signal(SIGINT)
    assert process.wait(120) == 130
    assert read_summary(RunPaths(root=Path("run")))["status"] == "interrupted"
    assert latest_checkpoint(Path("run/checkpoints"), with_state=True) is not None
