"""The plan of a run on a CPU, against what its processes take."""

import subprocess
import time
from collections import Counter

import psutil
import pytest
from tests.harness.composed import composed
from tests.harness.live_run import RLFORGE, environment_without_ray

from rlforge.config.schema import HardwareConfig
from rlforge.models.catalog import locate
from rlforge.preflight.memory.plan import make_plan

EXPERIMENT = "+experiment=simpletak_mirror"
SHORT = ("learner.total_updates=4", "eval.every=0", "eval.final_games=4", "run_dir=run")


def own_memory(process: psutil.Process) -> Counter[str]:
    """Bytes that each actor below ``process`` has for itself, by its class."""
    found = Counter[str]()
    for child in process.children(recursive=True):
        try:
            title = child.cmdline()[:1]
            if title and title[0].startswith("ray::"):
                name = title[0].removeprefix("ray::").partition(".")[0]
                found[name] = child.memory_full_info().uss
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_learner_and_engine_take_no_more_than_planned_and_little_less(tmp_path):
    command = [*RLFORGE, "train", EXPERIMENT, *SHORT]
    peaks = Counter[str]()
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment_without_ray(), stderr=subprocess.DEVNULL
    ) as run:
        while run.poll() is None:
            peaks |= own_memory(psutil.Process(run.pid))
            time.sleep(0.5)
    assert run.returncode == 0
    config = composed(EXPERIMENT).config
    shape = locate(config.model).shape  # of the model, which is made by now
    planned = make_plan(config, shape, HardwareConfig(device="cpu"), 2**34, bf16=False)
    for name, need in (("LearnerActor", planned.learner), ("EngineActor", planned.engine)):
        assert 0.7 * need.total < peaks[name] <= need.total, (name, peaks[name] / 2**20)
