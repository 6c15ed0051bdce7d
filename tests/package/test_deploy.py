"""Scripts and manifests for clusters: their commands are right, and do what they say."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.harness.live_run import environment_without_ray, train_arguments, wait_for

from rlforge.config.compose import compose
from rlforge.record.files import read_jsonl

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFEST = (DEPLOY / "kuberay.yaml").read_text()
SCRIPT = (DEPLOY / "slurm.sh").read_text()

#: Stands in for Slurm's: all nodes are this machine.
SRUN = """#!/usr/bin/env bash
while [ "$1" != ray ]; do shift; done
exec "$@" --num-cpus 2
"""


def arguments(command: str) -> list[str]:
    """Those of ``rlforge train``, without the options."""
    return [word for word in shlex.split(command.partition("train ")[2]) if "--" not in word]


def test_the_job_on_kubernetes_has_room_for_what_its_command_asks():
    job: dict[str, Any] = list(yaml.safe_load_all(MANIFEST))[1]
    config = compose(arguments(job["spec"]["entrypoint"])).config
    [workers] = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    [container] = workers["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    engines, learners = config.engine.num_engines, config.learner.num_learners
    assert (config.hardware.engine_gpus, limits["nvidia.com/gpu"]) == (1, "1")
    assert workers["maxReplicas"] == engines + learners
    cores = engines + learners + config.collector.num_collectors
    assert cores <= int(limits["cpu"]) * workers["maxReplicas"]
    [head] = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    [mount] = head["volumeMounts"]
    assert Path(config.run_dir).is_relative_to(mount["mountPath"])


def test_the_example_of_the_slurm_script_fills_its_nodes():
    example = SCRIPT.partition("sbatch ")[2].partition("\n#\n")[0].replace("\\\n#", "")
    words = shlex.split(example)
    gpus = int(words[words.index("--nodes") + 1]) * int(words[words.index("--gpus-per-node") + 1])
    config = compose(arguments(example)).config
    assert config.hardware.ray_address == "auto"
    assert config.engine.num_engines + config.learner.num_learners == gpus


@pytest.mark.release
@pytest.mark.timeout(900)
def test_the_slurm_script_runs_and_resumes_a_command_and_hands_it_the_signal(small_model, tmp_path):
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = ("hardware=cluster", "hardware.device=cpu")
    own += ("hardware.learner_gpus=0", "hardware.engine_gpus=0", "learner.total_updates=400")
    metrics = Path("run/metrics.jsonl")
    commands = {"6390": train_arguments(small_model, *own), "6391": ["train", "--resume", "run"]}
    for port, command in commands.items():
        before = len(read_jsonl(metrics))
        with tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as ray:
            # Paths of sockets must be short.
            job = {"SLURM_JOB_NUM_NODES": "2", "RAY_PORT": port, "PATH": path, "RAY_TMPDIR": ray}
            process = subprocess.Popen(
                [DEPLOY / "slurm.sh", *command],
                env=environment_without_ray() | job,
                stderr=subprocess.PIPE,
                text=True,
            )
            wait_for(lambda known=before: len(read_jsonl(metrics)) > known, process)
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=120)
        assert process.returncode == 130, stderr
        assert json.loads(Path("run/summary.json").read_text())["status"] == "interrupted"
    assert len(Path("run/command.txt").read_text().splitlines()) == 2
