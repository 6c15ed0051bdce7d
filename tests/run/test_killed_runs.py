"""Runs whose processes are killed, stopped or cannot start: real Ray, real engine, real games."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import shlex
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from tests.harness import live_run
from tests.harness.in_process import rlforge_here
from tests.harness.live_run import RLFORGE, actor_pids, rows, run, start, train_arguments, wait_for

from rlforge.record.game_files import read_games
from rlforge.system.checkpoint import checkpoint_version, latest_checkpoint


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
    except FileNotFoundError:
        return False


def all_pids() -> list[int]:
    logs = Path("run/logs").glob("*.log")
    return [pid for log in logs if "crash" not in log.name for pid in actor_pids(log.stem)]


def listened_on(pid: int) -> set[str]:
    """Addresses on which a process takes connections."""
    sockets = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            sockets.add(str(file.readlink()))
    addresses = set()
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                # The last four bytes, which the kernel prints as a little-endian number.
                number = int(local.partition(":")[0][-8:], 16)
                addresses.add(str(ipaddress.IPv4Address(number.to_bytes(4, "little"))))
    return addresses


@pytest.mark.ray
def test_a_run_survives_dead_actors_stops_at_ctrl_c_and_resumes(
    small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endless = ("learner.total_updates=400", "learner.state_every=1000")
    endless += ("learner.save_every=2", "eval.every=3")
    process = start(*train_arguments(small_model, *endless, "engine.num_engines=2"))
    wait_for(lambda: len(rows("metrics.jsonl")) >= 1, process)
    for name in ("engine-0", "collector-0"):
        # Ray by itself would lower the priority of its processes.
        assert os.getpriority(os.PRIO_PROCESS, actor_pids(name)[-1]) == os.getpriority(
            os.PRIO_PROCESS, process.pid
        )
        os.kill(actor_pids(name)[-1], signal.SIGKILL)
        wait_for(lambda name=name: len(actor_pids(name)) == 2, process)
        so_far = len(rows("metrics.jsonl"))
        wait_for(lambda so_far=so_far: len(rows("metrics.jsonl")) >= so_far + 3, process)
    wait_for(lambda: any(row["step"] == 2 for row in rows("evals.jsonl")), process)
    capsys.readouterr()
    assert rlforge_here("train", "--resume", "run") == 1
    busy = capsys.readouterr().err
    assert "run" in busy
    assert str(process.pid) in busy

    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert "rlforge train --resume" in stderr
    assert "Traceback" not in stderr
    assert stdout.splitlines() == [str(Path("run").absolute())]
    assert "a worker died" in Path("run/logs/run.log").read_text().lower()  # as Ray says it
    assert not any(map(alive, all_pids()))
    assert json.loads(Path("run/summary.json").read_text())["restarts"] == 2
    scalars = rows("scalars.jsonl")
    for engine in ("engine-0", "engine-1"):
        assert max(row.get(f"inference/{engine}/tok_s", 0) for row in scalars) > 0
    assert overlap() > 1e-3
    newest = latest_checkpoint(Path("run/checkpoints"), with_state=True)
    assert newest is not None
    stopped_at = checkpoint_version(newest, verify=True)
    assert stopped_at == rows("metrics.jsonl")[-1]["step"]

    live_run.change_config("total_updates", 400, stopped_at + 2)
    resumed = run("train", "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    metrics = rows("metrics.jsonl")
    assert [row["step"] for row in metrics] == list(range(1, stopped_at + 3))
    assert metrics[-1]["samples_seen"] > metrics[stopped_at - 1]["samples_seen"]
    training = [game for game in read_games(Path("run")) if game.spec.purpose == "train"]
    assert len({game.spec.game_id for game in training}) == len(training)
    evals = rows("evals.jsonl")
    assert all(row["policy_uid"] == f"step-{row['step']}" for row in evals)
    assert len({(row["step"], row["opponent"]) for row in evals}) == len(evals)
    assert {0, 2, stopped_at + 2} <= {row["step"] for row in evals}
    assert rlforge_here("train", "--resume", "run") == 1
    assert "already finished" in capsys.readouterr().err


@pytest.mark.ray
def test_sigterm_while_the_actors_start_ends_all_processes(small_model: Path) -> None:
    # A shell script starts background processes with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = start(*train_arguments(small_model))
    signal.signal(signal.SIGINT, before)
    wait_for(lambda: bool(Path("run/logs").is_dir() and all_pids()), process)
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stderr.splitlines()[-1] == (
        "rlforge: interrupted before a first state was saved; start it again with: "
        f"rlforge train --resume {Path('run').absolute()}"
    )
    assert json.loads(Path("run/summary.json").read_text())["status"] == "interrupted"
    assert "SIGTERM" not in stderr  # Ray's own message
    assert not any(map(alive, all_pids()))


@pytest.mark.slow  # tests/run/actors/test_engine.py has the engine alone
def test_an_alternating_engine_killed_during_an_update_loads_after_it(small_model: Path) -> None:
    process = start(
        *train_arguments(small_model, "hardware.alternate=true", "learner.total_updates=6")
    )
    wait_for(lambda: len(rows("metrics.jsonl")) >= 1, process)
    learner = actor_pids("learner")[-1]
    wait_for(lambda: stopped_in_its_turn(learner), process)
    try:
        os.kill(actor_pids("engine-0")[-1], signal.SIGKILL)
        wait_for(lambda: len(actor_pids("engine-0")) == 2, process)
        time.sleep(1.0)
        assert Path("run/logs/engine-0.log").read_text().count("the engine is loaded") == 1
    finally:
        os.kill(learner, signal.SIGCONT)
    _, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    metrics = rows("metrics.jsonl")
    assert [row["step"] for row in metrics] == list(range(1, 7))
    assert all(row["seconds_switch"] > 0 for row in metrics)
    assert Path("run/logs/engine-0.log").read_text().count("the engine is loaded") == 2
    # Engine, learner and idle shares add up to 1 only where no work overlaps.
    assert overlap() < 1e-6
    assert not (Path("run") / "learning").exists()


@pytest.mark.slow
def test_an_alternating_learner_killed_in_an_update_ends_the_resumable_run(
    small_model: Path,
) -> None:
    settings = ("hardware.alternate=true", "learner.total_updates=300", "learner.state_every=1")
    process = start(*train_arguments(small_model, *settings))
    wait_for(lambda: len(rows("metrics.jsonl")) >= 2, process)
    learner = actor_pids("learner")[-1]
    wait_for(lambda: stopped_in_its_turn(learner), process)
    os.kill(learner, signal.SIGKILL)
    assert "--resume" in live_run.ended_by_a_killed("learner", process)
    assert json.loads(Path("run/summary.json").read_text())["status"] == "failed"
    assert not any(map(alive, all_pids()))  # no engine is left asleep
    assert not (Path("run") / "learning").exists()

    updates = len(rows("metrics.jsonl"))
    live_run.change_config("total_updates", 300, updates + 2)
    resumed = run("train", "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    assert [row["step"] for row in rows("metrics.jsonl")] == list(range(1, updates + 3))


def stopped_in_its_turn(learner: int) -> bool:
    """Stop the learner's process during an update; returns whether that succeeded."""
    turn = Path("run") / "learning"
    for _ in range(1000):
        if turn.exists():
            os.kill(learner, signal.SIGSTOP)
            time.sleep(0.5)
            if turn.exists():
                return True
            os.kill(learner, signal.SIGCONT)
        time.sleep(0.001)
    return False


def overlap() -> float:
    """Share of the run's time in which engines and learner both worked."""
    summary = json.loads(Path("run/summary.json").read_text())
    return summary["engine_share"] + summary["learner_share"] + summary["idle_share"] - 1


@pytest.mark.slow
def test_several_ranks_train_and_a_dead_one_ends_the_run(small_model: Path) -> None:
    ranks = ("learner.num_learners=2", "learner.shard_weights=true", "learner.state_every=2")
    ranks += ("eval.continuous=true", "eval.max_games_per_checkpoint=6")
    process = start(
        *train_arguments(small_model, *ranks, "learner.total_updates=300", "learner.state_every=2")
    )
    wait_for(lambda: len(rows("metrics.jsonl")) >= 3, process)
    assert not {address for pid in all_pids() for address in listened_on(pid)} - {"127.0.0.1"}
    os.kill(actor_pids("learner-1")[-1], signal.SIGKILL)
    assert "logs/learner-1.log" in live_run.ended_by_a_killed("learner-1", process)
    assert not any(map(alive, all_pids()))
    live_run.change_config("total_updates", 300, 5)
    resumed = run("train", "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    metrics = rows("metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3, 4, 5]
    assert all(row["logprob_gap_mean"] <= 1e-4 for row in metrics)
    evals = rows("evals.jsonl")
    assert len({(row["step"], row["opponent"]) for row in evals}) == len(evals)
    games = {step: sum(row["games"] for row in evals if row["step"] == step) for step in range(6)}
    assert (games[0], games[5]) == (6, 6)
    assert all(games[step] in (0, 2, 4, 6) for step in range(1, 5))
    assert any(games[step] for step in range(1, 5))


@pytest.mark.slow
def test_resume_starts_over_when_no_state_was_saved(small_model: Path) -> None:
    process = start(
        *train_arguments(small_model, "learner.total_updates=300", "learner.state_every=1000")
    )
    wait_for(lambda: rows("metrics.jsonl") != [] and len(rows("evals.jsonl")) >= 2, process)
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while any(map(alive, all_pids())):
        assert time.monotonic() < deadline, "the actors outlive their run"
        time.sleep(0.2)
    live_run.change_config("total_updates", 300, 2)
    resumed = run("train", "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    assert [row["step"] for row in rows("metrics.jsonl")] == [1, 2]
    assert [row["step"] for row in rows("evals.jsonl")] == [0, 0, 2, 2]
    games = [game for game in read_games(Path("run")) if game.spec.purpose == "train"]
    assert len({game.spec.game_id for game in games}) == len(games)


@pytest.mark.ray
def test_a_model_that_does_not_load_is_one_message(
    small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("lost.py").write_text(
        "from rlforge.errors import ConfigError\n\n"
        "def make(config, device, threads, gpus):\n"
        "    raise ConfigError(f'model {config.model.name!r} cannot be loaded: its disk is gone')\n"
    )
    problem = f"model '{small_model}' cannot be loaded: its disk is gone"
    done = run(*train_arguments(small_model, "engine.name=lost:make"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert problem in done.stderr.splitlines()[-1]
    for name in ("summary.json", "progress.json"):
        assert json.loads((Path("run") / name).read_text())["status"] == "failed"
    capsys.readouterr()
    assert rlforge_here("monitor", "run") == 0
    assert f"failed: {problem}" in capsys.readouterr().out
    assert not any(map(alive, all_pids()))


@pytest.mark.ray
def test_an_actor_that_is_killed_for_want_of_memory_is_named_while_it_starts(
    small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.01")
    done = run(*train_arguments(small_model))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"rlforge: [a-z0-9-]+ was killed by Ray for want of memory.* GiB .*were in use.*; `rlforge "
        r"doctor` lists what saves memory; see logs/[a-z0-9-]+\.log in .*",
        last,
    )
    assert "Traceback" not in done.stderr
    assert "A worker died" not in done.stderr + done.stdout


@pytest.mark.ray
def test_an_engine_that_outgrows_the_memory_ends_the_run_in_a_line_with_the_limit(
    small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes 6 GiB after a hundred questions, where Ray allows 3 more than are in use."""
    Path("growing.py").write_text(
        "from rlforge.engines.registry import transformers\n\n"
        "def make(config, device, threads, gpus):\n"
        "    engine = transformers(config, device, threads, gpus)\n"
        "    ask, asked, held = engine.ask, [], []\n"
        "    def growing(questions):\n"
        "        questions = list(questions)\n"
        "        asked.extend(questions)\n"
        "        if len(asked) > 100 and not held:\n"
        "            held.append(b'x' * (6 << 30))\n"
        "        ask(questions)\n"
        "    engine.ask = growing\n"
        "    return engine\n"
    )
    memory = psutil.virtual_memory()
    allowed = (memory.total - memory.available + 3 * 2**30) / memory.total
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{allowed:.4f}")
    endless = ("engine.max_restarts=0", "learner.total_updates=100")
    done = run(*train_arguments(small_model, "engine.name=growing:make", *endless))
    assert done.returncode == 1
    size = r"[\d.]+ GiB"
    # Ray chooses which one it kills.
    assert re.fullmatch(
        rf"rlforge: [a-z0-9-]+ was killed by Ray for want of memory: it had {size}, and [\d.]+ of "
        rf"{size} \(Ray's limit: {allowed:.0%}\) were in use(, {size} of them by [a-z0-9-]+)?; "
        r"`rlforge doctor` lists what saves memory; see logs/[a-z0-9-]+\.log in .*",
        done.stderr.splitlines()[-1],
    )
    assert "Traceback" not in done.stderr


@pytest.mark.ray
def test_a_run_whose_shell_has_ended_says_that_its_node_was_killed(small_model: Path) -> None:
    """Its parent is process 1 then, as of ``nohup`` or a service."""
    endless = ("learner.total_updates=400", "hardware=cpu")
    command = shlex.join([*RLFORGE, *train_arguments(small_model, *endless)])
    shell = ["sh", "-c", f"{command} > out 2> err & echo $!"]
    detached = psutil.Process(int(subprocess.check_output(shell)))
    while not Path("run/metrics.jsonl").exists():
        assert detached.is_running(), Path("err").read_text()
        time.sleep(0.1)
    (node,) = [child for child in detached.children() if child.name() == "raylet"]
    node.kill()
    detached.wait(timeout=60)

    *_, last = Path("err").read_text().splitlines()
    assert last.startswith("rlforge: Ray's process raylet has ended: it was killed")
    assert last.endswith(f"; go on with: rlforge train --resume {Path('run').resolve()}")
    assert json.loads(Path("run/summary.json").read_text())["status"] == "failed"


@pytest.mark.ray
def test_sigterm_to_the_group_of_a_run_interrupts_it_in_order(
    small_model: Path, in_process: ModuleType
) -> None:
    endless = ("learner.total_updates=400", "hardware=cpu")
    process = start(*train_arguments(small_model, *endless), process_group=0)
    wait_for(lambda: rows("metrics.jsonl") != [], process)
    os.killpg(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=120)

    assert process.returncode == 130, stderr
    assert "died" not in stderr
    assert json.loads(Path("run/summary.json").read_text())["status"] == "interrupted"
    updates = rows("metrics.jsonl")[-1]["step"]
    live_run.change_config("total_updates", 400, updates + 2)
    assert in_process.rlforge_here("train", "--resume", "run") == 0
    metrics = rows("metrics.jsonl")
    assert [row["step"] for row in metrics] == list(range(1, updates + 3))
    # Also after the resume, where earlier versions come from the checkpoints.
    assert all(row["logprob_gap_mean"] <= 1e-4 for row in metrics), metrics


HOLDS = """import ctypes
from dataclasses import dataclass
from pathlib import Path


def hold():
    if Path("hold").exists():
        ctypes.PyDLL(None).sleep(1000)  # which does not give the interpreter away


class Player:
    def __init__(self, env, rng):
        pass

    def act(self, view):
        hold()
        return view.legal_actions[0]


@dataclass
class Reward:
    def __call__(self, rewards, env_id):
        hold()
        return rewards
"""


@pytest.mark.parametrize(
    ("chosen", "holder", "all_is_saved"),
    [
        pytest.param(
            ("pool.mode=fixed", "pool.fixed_opponents=[holds:Player]"),
            "collector-0",
            True,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("rewards.final=[{name: 'holds:Reward'}]",),
            "(tracker|pool|buffer)",
            False,
            marks=pytest.mark.ray,
        ),
    ],
)
def test_code_that_holds_the_interpreter_ends_the_run_with_what_can_be_saved(
    small_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    chosen: tuple[str, ...],
    holder: str,
    all_is_saved: bool,
) -> None:
    for module in ("actors.cluster", "lifecycle"):
        monkeypatch.setattr(f"rlforge.run.{module}.HELD_S", 8.0)
    Path("holds.py").write_text(HOLDS)
    own = (*chosen, "learner.total_updates=400", "eval.every=0", "hardware.num_cpus=2")
    own += (f"learner.state_every={1000 if all_is_saved else 2}",)
    with ThreadPoolExecutor(1) as waiting:

        def hold() -> None:
            while len(rows("metrics.jsonl")) < 3:
                time.sleep(0.1)
            Path("hold").touch()

        waiting.submit(hold)
        assert rlforge_here(*train_arguments(small_model, *own)) == 1
    said = capsys.readouterr().err
    assert re.search(
        rf"{holder} does not answer: code of yours holds its process \(.*holds.py, line 8, in "
        r"hold\); mend it or leave it out, then go on with: rlforge train --resume ",
        said,
    )
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["status"], "does not answer" in summary["error"]) == ("failed", True)
    saved = latest_checkpoint(Path("run/checkpoints"), with_state=True)
    assert saved is not None
    if all_is_saved:
        assert checkpoint_version(saved) == len(rows("metrics.jsonl")) >= 3
