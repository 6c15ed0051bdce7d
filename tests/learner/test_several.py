"""Several learners in one model, against learners with a model each."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.learner import parts

from rlforge.errors import CheckpointError
from rlforge.learner import Learner, Learners, read_state, write_state
from rlforge.models.files import ADAPTER_WEIGHTS

NAMES = ("main", "rival")


def settings(name: str) -> dict[str, Any]:
    """Two policies that differ in algorithm, step size, critic, reference and average."""
    if name == "main":
        return {
            "algorithm": parts.PolicyGradient(reference=True),
            "average": "moving",
            "weight_decay": 0.1,
        }
    return {"algorithm": parts.PolicyGradient(values=True, entropy=True), "learning_rate": 3e-2}


@pytest.fixture
def alone():
    return {name: parts.learner(name=name, **settings(name)) for name in NAMES}


@pytest.fixture
def together():
    return make_together()


def make_together() -> Learners:
    model = parts.model()
    first = parts.learner(model, name="main", **settings("main"))
    first.step_aside()
    second = parts.learner(model, name="rival", beside=first, **settings("rival"))
    return Learners({"main": first, "rival": second})


def saved(learner: Learner, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    learner.save(folder)
    files = {path.relative_to(folder): path for path in folder.rglob("*.safetensors")}
    return {str(name): load_file(path) for name, path in files.items()}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for file, tensors in one.items():
        assert all(tensors[name].equal(other[file][name]) for name in tensors | other[file])


def test_in_turns_each_learns_bit_for_bit_what_it_learns_alone(alone, together, tmp_path):
    for round_, name in enumerate(("main", "rival", "rival", "main", "rival", "main")):
        batch = parts.batch(parts.random_steps(6, seed=round_))
        own, shared = alone[name].update(batch), together.turn(name).update(batch)
        assert shared.version == own.version
        assert parts.outcome(shared.metrics).items() >= parts.outcome(own.metrics).items()
    for name in NAMES:
        files = saved(together.turn(name), tmp_path / f"{name} together")
        assert ADAPTER_WEIGHTS in files
        assert_same(files, saved(alone[name], tmp_path / name))


def test_a_resumed_pair_goes_on_as_the_one_that_was_not_interrupted(together, tmp_path):
    batches = [parts.batch(parts.random_steps(6, seed=seed)) for seed in range(4)]
    together.turn("main").update(batches[0])
    together.turn("rival").update(batches[1])
    for learner in together.each():
        learner.save_state(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"learner-main.pt", "learner-rival.pt"}
    resumed = make_together()
    for learner in resumed.each():
        learner.load_state(tmp_path)
    for each in (together, resumed):
        each.turn("main").update(batches[2])
        each.turn("rival").update(batches[3])
    for name in NAMES:
        first = saved(together.turn(name), tmp_path / f"{name} first")
        assert_same(first, saved(resumed.turn(name), tmp_path / f"{name} resumed"))


def test_one_that_begins_anew_learns_as_it_did_at_first(together, tmp_path):
    batches = [parts.batch(parts.random_steps(6, seed=seed)) for seed in range(3)]
    rival = together.turn("rival")
    critic = rival.state_dict()["policy"]
    first = [rival.update(batch).metrics["loss"] for batch in batches]
    together.turn("main").update(batches[0])
    rival = together.turn("rival")
    rival.begin_anew(5)
    assert (rival.version, rival.updates) == (5, 0)
    # The critic stays: it is put back, so that the rest can be compared.
    state = rival.state_dict()
    heads = {name: tensor for name, tensor in critic.items() if name.startswith("value_head.")}
    rival.load_state_dict({**state, "version": 0, "policy": {**state["policy"], **heads}})
    assert [rival.update(batch).metrics["loss"] for batch in batches] == first


def test_one_can_begin_anew_as_another_is_now(together, tmp_path):
    main = together.turn("main")
    main.update(parts.batch(parts.random_steps(6)))
    adapter = saved(main, tmp_path / "main")[ADAPTER_WEIGHTS]
    together.turn("rival").begin_anew(2, together.other("main"))
    begun = saved(together.turn("rival"), tmp_path / "rival")[ADAPTER_WEIGHTS]
    assert_same({"adapter": begun}, {"adapter": adapter})
    together.turn("rival").update(parts.batch(parts.random_steps(6, seed=1)))
    still = saved(together.turn("main"), tmp_path / "main again")[ADAPTER_WEIGHTS]
    assert_same({"adapter": still}, {"adapter": adapter})


def test_the_numbers_of_updates_may_be_those_of_a_whole_run(together):
    for number, name in ((1, "main"), (2, "rival"), (3, "main"), (4, "main"), (5, "rival")):
        learner = together.turn(name)
        learner.version = number - 1
        samples = [
            dataclasses.replace(sample, policy_version=0) for sample in parts.random_steps(4)
        ]
        assert learner.update(parts.batch(samples)).version == number
    assert [together.other(name).updates for name in NAMES] == [3, 2]


def test_a_saved_state_of_another_layout_is_refused(together, tmp_path):
    write_state(tmp_path, together, {"pool": [1]})
    assert read_state(tmp_path, make_together()) == {"pool": [1]}
    file = tmp_path / "state" / "run.json"
    for content, layout in (('{"pool": [1]}', 0), ('{"layout": 2}', 2)):
        file.write_text(content)
        with pytest.raises(CheckpointError, match=rf"has layout {layout} and .* begin a new run"):
            read_state(tmp_path, make_together())
    file.unlink()
    with pytest.raises(CheckpointError, match=r"state holds no run\.json to resume from"):
        read_state(tmp_path, make_together())
