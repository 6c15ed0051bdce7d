"""What the user reads where an actor ended, by its own error, a crash or a kill."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import ray

from rlforge.errors import ConfigError
from rlforge.record.files import create_run, open_log, write_json
from rlforge.run.actors.ends import explained, reason
from rlforge.system.hardware import ram
from rlforge.system.network import ProxyError

RUN = Path("run")
GIB = 2**30


def test_an_error_in_the_code_of_a_user_is_explained_with_its_place() -> None:
    trace = """Traceback (most recent call last):
  File "/site/rlforge/games/players.py", line 30, in act
    player.act(view)
  File "/home/me/mine.py", line 9, in act
    raise KeyError(view)
KeyError: 'unknown'"""
    error = ray.exceptions.RayTaskError("play", trace, KeyError("unknown"))
    for one in (error, error.as_instanceof_cause()):
        assert reason(one, RUN) == "KeyError: 'unknown' (/home/me/mine.py, line 9)"


def told(error: BaseException, had: int | None = None) -> str:
    """The message for an error while the actors start, of a process that had so much memory."""
    memory = dict.fromkeys((28648, 11736), had) if had else {}
    return str(explained(error, None, RUN, "train", memory))


def test_an_actor_that_cannot_start_is_explained_with_its_own_words_where_there_are_some() -> None:
    def died(error: Exception, text: str) -> ray.exceptions.ActorDiedError:
        return ray.exceptions.ActorDiedError(ray.exceptions.RayTaskError("__init__", text, error))

    ours = died(ConfigError("no weights"), "rlforge.errors.ConfigError: no weights")
    assert told(ours) == "no weights"
    own = died(ProxyError("no proxy"), "rlforge.system.network.ProxyError: no proxy")
    assert told(own) == "no proxy"
    with open_log("pool", RUN):
        process = (RUN / "logs" / "pool.log").read_text().split()[-1]
        place = '  File "/me.py", line 3, in make'
        text = f"ray::Pool.__init__() (pid={process}, ip=::1)\n{place}\nKeyError: 'a'"
        assert told(died(KeyError("a"), text)) == (
            "pool could not be started: KeyError: 'a' (/me.py, line 3); see logs/pool.log in run"
        )


def test_a_disk_that_fills_is_told_with_what_the_run_needs_and_how_to_go_on() -> None:
    run = create_run(RUN)
    (RUN / "games.bin").write_bytes(bytes(2**21))
    write_json(run.progress, {"elapsed_s": 60.0})
    full = OSError(errno.ENOSPC, "No space left on device", "run/metrics.jsonl")
    of_ray = ray.exceptions.RayTaskError("log", f"OSError: {full}", full)
    for error in (full, of_ray, ExceptionGroup("", [full])):
        said = str(explained(error, None, RUN, "train", {}))
        assert "No space left on device" in said
        assert "are free on the disk of " in said
        assert "(run: 2.0 MiB, 2.8 GiB a day at its pace so far); free some" in said
        assert said.endswith("then go on with: rlforge train --resume run")


def ended(detail: str) -> ray.exceptions.ActorDiedError:
    """Ray's error about a process that ended, in its words."""
    error = ray.exceptions.ActorDiedError()
    error.error_msg = (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: LearnerActor\n"
        "\tactor_id: 254906d3\n\tpid: 28648\n\tname: learner\n\tnamespace: f127\n\tip: ::1\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
        f"Worker exit detail: {detail}\nThe actor never ran - it was cancelled before it started."
    )
    return error


#: Ray's words where the process is gone without a word.
SILENT = (
    "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes "
    "include: (1) the process was killed by the OOM killer due to high memory usage."
)


def test_a_killed_actor_is_named_with_its_signal_its_memory_and_the_limit() -> None:
    limit = f"{ram() / GIB:.1f}"
    assert told(ended(SILENT), had=int(1.1 * GIB)) == (
        f"learner was killed (signal 9), perhaps for want of memory: it had 1.1 GiB of {limit}; "
        "`rlforge doctor` lists what saves memory; see logs/learner.log in run"
    )
    assert "for want of memory; `rlforge doctor`" in told(ended(SILENT))


def test_an_actor_that_ended_otherwise_is_not_said_to_be_killed() -> None:
    logs = RUN / "logs"
    logs.mkdir(parents=True)
    by_signal = "Worker exits with an exit code 1. The process receives a SIGTERM"
    assert told(ended(f"{by_signal}.")) == f"learner died: {by_signal}; see logs/learner.log in run"
    # The log of an earlier process of this actor, which Ray has restarted, does not count.
    lines = "CRITICAL rlforge: this process ends: the engine is stuck\n"
    (logs / "learner.log").write_text(f"{lines}INFO rlforge: learner started as process 9\n")
    assert told(ended(SILENT)).startswith("learner was killed (signal 9)")
    (logs / "learner.log").write_text(lines)
    assert told(ended(SILENT)).startswith("learner died: the engine is stuck; see logs/")
    (logs / "learner.crash.log").write_text(
        "Fatal Python error: Segmentation fault\n\nThread 0x0\n"
    )
    assert told(ended(SILENT)).startswith(
        "learner crashed: Segmentation fault (logs/learner.crash.log); see logs/learner.log"
    )


@pytest.mark.parametrize("had", [None, GIB])
def test_an_actor_that_ray_killed_is_named_with_the_memory_in_use(had: int | None) -> None:
    error = ray.exceptions.OutOfMemoryError(
        "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: "
        "::1, ID: 20f4) was 22.63GB used / 23.54GB limit (0.961333)\nConsidered workers: [\n"
        "Selected to kill: (Actor(ca09): job ID=01, lease ID=01, task name=state:Host.__init__, "
        "required resources={}, pid=11736, actual memory used=0.05GB, worker ID=fc77)\n]\n"
    )
    its = ": it had 1.0 GiB, and" if had else ":"
    assert told(error, had) == (
        f"state was killed by Ray for want of memory{its} 22.6 of 23.5 GiB (Ray's limit: 95%) "
        "were in use; `rlforge doctor` lists what saves memory; see logs/state.log in run"
    )


def test_an_actor_that_ray_killed_for_another_one_is_told_with_the_largest() -> None:
    with open_log("engine-0", RUN):
        largest = int((RUN / "logs" / "engine-0.log").read_text().split()[-1])
    error = ray.exceptions.OutOfMemoryError(
        "Memory on the node was 22.63GB used / 23.54GB limit (0.961333)\n"
        "Selected to kill: (Actor(ca09): task name=learner:LearnerActor.__init__, pid=11736)\n"
    )
    said = str(explained(error, None, RUN, "train", {11736: GIB, largest: 9 * GIB}))
    assert "it had 1.0 GiB, and 22.6 of 23.5 GiB" in said
    assert "were in use, 9.0 GiB of them by engine-0; `rlforge doctor`" in said
