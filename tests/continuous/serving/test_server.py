"""The arguments of ``rlforge serve``: an experiment, or a run with changes."""

import socket
from pathlib import Path

import pytest

from rlforge.config.compose import compose, to_yaml
from rlforge.continuous.config.serving import ServingConfig
from rlforge.continuous.serving.server import listen
from rlforge.continuous.serving.setup import compose_service
from rlforge.errors import ConfigError
from rlforge.preflight.plan import make_plan
from rlforge.system.hardware import detect


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The files of a run that composing reads: a configuration and a checkpoint."""
    path = tmp_path_factory.mktemp("runs") / "one"
    checkpoint = path / "checkpoints" / "step-3"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    config = compose(["+experiment=simpletak_mirror", "engine.max_loras=4", "hardware=cpu"]).config
    (path / "config.yaml").write_text(to_yaml(config))
    return path


def test_without_a_run_the_configuration_is_an_experiment_with_service_groups():
    composed = compose_service(
        ["+experiment=simpletak_mirror", "deployment=ab_test", "serve.port=0", "engine.max_loras=3"]
    )
    assert isinstance(composed.config, ServingConfig)
    assert composed.config.name == "simpletak_mirror"
    assert composed.config.deployment.strategy == "ab_test"
    assert composed.config.serve.port == 0
    assert (composed.source, composed.state_dir) == (None, Path("deployments"))


def test_a_run_brings_its_own_configuration(run):
    composed = compose_service([str(run), "serve.port=0", "deployment.keep=2", "engine.top_p=0.9"])
    assert composed.config.engine.max_loras == 4
    assert composed.config.engine.top_p == 0.9
    assert composed.config.model.kind == "tiny"
    assert composed.config.hardware.device == "cpu"
    assert composed.config.deployment.keep == 2
    assert (composed.source, composed.state_dir) == (run, run / "deployments")
    two = compose_service([str(run), "engine.num_engines=2", "engine.min_engines=1"])
    # On the CPU there is no GPU for the other.
    assert make_plan(two.config, detect()).config.engine.num_engines == 1
    assert compose_service([str(run), "serve.state_dir=here"]).state_dir == Path("here")
    assert compose_service([str(run), "hardware=auto"]).config.hardware.device == "auto"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model=tiny", r"the run in .* has its own model; change single values"),
        ("engine.max_lora=4", r"engine\.max_lora=4\): no such key; did you mean"),
    ],
)
def test_wrong_changes_of_a_run_are_one_message(run, change, message):
    with pytest.raises(ConfigError, match=message):
        compose_service([str(run), change])


def test_an_adapter_is_not_a_run(tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"is an adapter, not a run: .*rlforge deploy"):
        compose_service([str(tmp_path / "adapter")])


def test_an_address_in_use_is_an_error_that_says_what_to_change():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"serve\.port={port}: cannot listen.*serve\.port=0"):
            listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"serve\.host=no-such-host\.invalid"):
        listen("no-such-host.invalid", 0)
