"""The commands ``rlforge serve``, ``deploy``, ``rollback`` and ``deployments``."""

import json
import os
import signal
import subprocess
import sys
import time

import httpx
import pytest

from rlforge.continuous.serving.tokens import ADMIN_VARIABLE

RLFORGE = (sys.executable, "-m", "rlforge")


def _run(*arguments, **environment):
    return subprocess.run(
        [*RLFORGE, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"COLUMNS": "80"} | environment,
    )


@pytest.fixture
def start(config, tmp_path):
    """Starts ``rlforge serve`` with the small model; gives the process and its address."""
    started = []

    def begin():
        lora = config.model.lora
        process = subprocess.Popen(
            [
                *RLFORGE,
                "serve",
                "env=tictactoe",
                "model=hf",
                f"model.name={config.model.name}",
                "model.prompt_template=board",
                "model.action_extraction=bracket",
                f"model.lora.rank={lora.rank}",
                "hardware=cpu",
                "hardware.threads=1",
                "serve.port=0",
                "deployment.holdout_games=0",
                "deployment.min_format=0",
            ],
            stderr=(tmp_path / "serve.err").open("ab"),
        )
        started.append(process)
        address = tmp_path / "deployments" / "service.json"
        limit = time.monotonic() + 150
        while time.monotonic() < limit and process.poll() is None:
            if address.is_file():
                found = json.loads(address.read_text())
                if found["pid"] == process.pid:
                    return process, found["url"]
            time.sleep(0.05)
        raise AssertionError((tmp_path / "serve.err").read_text())

    yield begin
    for process in started:
        process.kill()
        process.wait()


def _answered_by(url):
    answer = httpx.post(
        f"{url}/v1/completions",
        json={"model": "run", "prompt": "go", "max_tokens": 1},
        trust_env=False,
        timeout=60,
    )
    return str(answer.headers["x-rlforge-version"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_service_deploys_survives_sigkill_and_stops_at_sigterm(start, make_adapter, tmp_path):
    adapters = [make_adapter(seed) for seed in (1, 2)]
    process, url = start()
    assert _answered_by(url) == "deploy-0"

    deployed = _run("deploy", adapters[0])
    assert deployed.returncode == 0, deployed.stderr
    assert "ok   finite: " in deployed.stdout
    assert deployed.stdout.splitlines()[-1] == "deploy-1 is live"
    assert _answered_by(url) == "deploy-1"

    (adapters[1] / "adapter_model.safetensors").write_bytes(b"short")
    refused = _run("deploy", adapters[1])
    assert refused.returncode == 1
    assert "FAIL files: " in refused.stdout
    assert "rlforge: deploy-2 is not served (rejected): files: " in refused.stderr

    wrong = _run("rollback", **{ADMIN_VARIABLE: "wrong"})
    assert (wrong.returncode, "refuses the token" in wrong.stderr) == (2, True)
    second = _run("serve", "model=tiny", "hardware=cpu")
    assert (second.returncode, "is in use by process" in second.stderr) == (1, True)

    process.send_signal(signal.SIGKILL)
    process.wait()
    process, url = start()
    assert _answered_by(url) == "deploy-1"
    back = _run("rollback")
    assert back.stdout == "deploy-0 is live\n"
    assert _answered_by(url) == "deploy-0"

    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    said = (tmp_path / "serve.err").read_text()
    last = "rlforge: interrupted as it served; the service has stopped"
    assert said.splitlines()[-1] == last
    assert (tmp_path / "deployments" / "token").read_text().strip() not in said
    for log in (tmp_path / "deployments" / "logs").iterdir():
        assert (tmp_path / "deployments" / "token").read_text().strip() not in log.read_text()

    staged = _run("deploy", adapters[0])
    assert staged.stdout.startswith("deploy-3 is staged: no service runs in deployments;")
    listed = _run("deployments")
    assert listed.returncode == 0
    phases = [line.split()[1] for line in listed.stdout.splitlines() if "deploy-" in line]
    assert phases == ["live", "rolled_back", "rejected", "staged"]
    lines = listed.stdout.splitlines()  # paths are not broken
    assert all(len(line) <= 80 or str(tmp_path) in line for line in lines)
    assert "no service runs here" in _run("rollback").stderr
