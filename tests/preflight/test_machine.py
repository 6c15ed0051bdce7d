"""Runs that are prepared where they cannot start: on a login node without a GPU."""

import pytest
from tests.harness.composed import composed

from rlforge import launch
from rlforge.config.catalog import catalog
from rlforge.errors import ConfigError
from rlforge.preflight.plan import for_machine, make_plan
from rlforge.system.hardware import detect

QUICK_START = "+experiment=qwen3_1p7b_simpletak"
GPU_PROFILES = {choice.name for choice in catalog("hardware").choices} - {
    "auto",
    "auto_3",
    "cluster",
    "cpu",
}


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def gpus_of(config):
    graph = make_plan(config, detect())
    return {node.name: node.replicas * node.num_gpus for node in graph.nodes if node.num_gpus}


@pytest.mark.parametrize("profile", sorted(GPU_PROFILES))
def test_a_profile_that_wants_gpus_is_planned_with_a_note_where_there_is_none(profile):
    config, _, note = for_machine(composed(QUICK_START, f"hardware={profile}").config)
    number = sum(gpus_of(config).values())
    assert number == (3 if profile == "multi_gpu" else 1)
    assert f"={profile} wants a GPU and this machine shows none, so that train refuses" in note
    assert f"planned for {number:g} (--gpus N --gpu-memory GB" in note


@pytest.mark.parametrize("overrides", [[], ["hardware=cpu"], ["hardware=cluster"]])
def test_what_starts_here_or_elsewhere_is_planned_as_it_is(overrides):
    config = composed(QUICK_START, *overrides).config
    assert for_machine(config) == (config, detect(), None)


def test_the_planned_machine_has_the_gpus_that_are_asked_for():
    quick_start = composed(QUICK_START).config
    config, _, note = for_machine(quick_start, gpus=3, memory_gb=48)
    assert (config.hardware.num_gpus, config.hardware.memory_gb, note) == (3, 48, None)
    assert gpus_of(config) == {"learner": 1, "engine": 2}
    assert gpus_of(for_machine(quick_start, gpus=2)[0]) == {"learner": 1, "engine": 1}
    assert gpus_of(for_machine(quick_start, gpus=8)[0]) == {"learner": 1, "engine": 2}
    assert gpus_of(for_machine(quick_start, memory_gb=24)[0]) == {"learner": 0.5, "engine": 0.5}
    assert gpus_of(for_machine(quick_start, gpus=0)[0]) == {}


@pytest.mark.parametrize(
    ("profile", "gpus", "message"),
    [
        ("multi_gpu", 2, "wants 3 GPUs .* and 2 are there"),
        ("cluster", 1, "wants 2 GPUs .* and 1 are there"),
        ("gpu_24gb", 0, r"wants a GPU and hardware\.num_gpus is 0"),
    ],
)
def test_a_planned_machine_with_too_few_gpus_is_refused(profile, gpus, message):
    config, *_ = for_machine(composed(QUICK_START, f"hardware={profile}").config, gpus=gpus)
    with pytest.raises(ConfigError, match=message):
        make_plan(config, detect())


def test_gpus_of_a_run_on_the_cpu_are_refused():
    config = composed("hardware=cpu").config
    assert for_machine(config, gpus=0)[::2] == (config, None)
    with pytest.raises(ConfigError, match=r"--gpus: hardware\.device=cpu uses none"):
        for_machine(config, gpus=1)
    with pytest.raises(ConfigError, match=r"--gpu-memory: hardware\.device=cpu uses none"):
        for_machine(config, memory_gb=24)
    with pytest.raises(ConfigError, match="--gpu-memory: a machine of --gpus 0 has none"):
        for_machine(composed().config, gpus=0, memory_gb=24)


def test_supervised_training_is_planned_without_engines():
    config = composed("kind=sft", "data=random_legal", "env=tictactoe", "hardware=multi_gpu").config
    assert gpus_of(for_machine(config)[0]) == {"learner": 1}


def test_supervised_training_takes_no_turns_with_engines():
    lines = ["kind=sft", "+experiment=smollm2_tictactoe", "data=random_legal"]
    config = composed(*lines).config
    assert config.hardware.alternate
    assert make_plan(config, detect()).notes == ()


def test_train_says_which_gpus_it_leaves_unused(cards, small_model, tmp_path, capsys):
    cards(*[f"GPU-{number}, NVIDIA L4, 23034, 8.9" for number in range(4)])
    (tmp_path / "config.yaml").touch()  # of another run, so that none starts
    model = ["model=hf", f"model.name={small_model}", "model.prompt_template=board"]
    wanted = ["tictactoe_mirror", *model, "engine.max_tokens=16", f"run_dir={tmp_path}"]
    notes = {}
    for engines in (1, 3):
        with pytest.raises(ConfigError, match="holds a run already"):
            launch.train([*wanted, f"engine.num_engines={engines}"], None)
        notes[engines] = capsys.readouterr().err
    assert "note: 2 of 4 GPUs are not used: engine.num_engines=1" in notes[1]
    assert "not used" not in notes[3]
