"""One update per window: saved whole or not at all, never repeated, undone after a failure."""

import shutil
from pathlib import Path

import pytest
from tests import factories

from rlforge.continuous.loop.learner import WindowLearner
from rlforge.errors import CheckpointError, RlforgeError, RunError
from rlforge.system.checkpoint import list_checkpoints, read_manifest


def batch(reward=1.0):
    samples = [
        factories.sample(
            origin=f"w/agent-{index % 2}",
            group_id="w",
            turn_index=index // 2,
            last_turn=index >= 6,
            token_ids=(60 + index,),
            logprobs=(-2.0,),
            raw_reward=reward * index,
            reward=reward * index,
        )
        for index in range(8)
    ]
    return factories.batch(samples, whole_episodes=True)


@pytest.fixture
def resume(make_config, in_process):
    config = make_config()

    async def make(keep=None):
        context = await in_process.make_context(config, Path.cwd())
        learner = WindowLearner(context.actors.learner, context.run_dir / "checkpoints", keep)
        await learner.begin()
        return learner

    return make


@pytest.fixture
async def learner(resume):
    return await resume()


def weights(name):
    return (Path("checkpoints") / name / "adapter_model.safetensors").read_bytes()


async def test_the_manifest_of_a_version_names_its_window(learner):
    trained = await learner.train("2024-11-13-10:00", batch())
    assert (trained.checkpoint.uid, trained.checkpoint.version) == ("step-1", 1)
    assert (learner.standing, learner.version) == ("step-1", 1)
    manifest = read_manifest(Path("checkpoints/step-1"))
    assert manifest.meta["samples"] == 8
    assert manifest.meta["window_id"] == "2024-11-13-10:00"
    assert manifest.meta["parent_uid"] == "step-0"
    assert manifest.has_state
    assert trained.metrics["loss"] == manifest.meta["metrics"]["loss"]


async def test_a_window_is_not_trained_on_twice(learner, resume):
    first = await learner.train("a", batch())
    again = await resume()
    assert again.standing == "step-0"
    assert await again.train("a", batch()) == first
    assert again.standing == "step-1"
    assert [path.name for path in list_checkpoints(Path("checkpoints"))] == ["step-0", "step-1"]


async def test_a_resumed_learner_makes_the_same_weights(learner, resume):
    await learner.train("a", batch())
    await learner.train("b", batch(2.0))
    straight = weights("step-2")
    list_checkpoints(Path("checkpoints"))[-1].rename("aside")
    again = await resume()
    await again.restore("step-1")
    await again.train("b", batch(2.0))
    assert weights("step-2") == straight


async def test_after_a_refusal_the_next_version_has_a_new_number_and_the_old_parent(learner):
    await learner.train("a", batch())
    await learner.restore("step-0")
    assert (learner.standing, learner.version) == ("step-0", 0)
    trained = await learner.train("b", batch())
    assert (trained.checkpoint.uid, trained.checkpoint.parent_uid) == ("step-2", "step-0")


async def test_an_update_without_a_finite_step_makes_no_version(learner):
    assert await learner.train("a", batch(float("nan"))) is None
    assert learner.standing == "step-0"
    assert len(list_checkpoints(Path("checkpoints"))) == 1
    assert await learner.train("b", batch()) is not None


async def test_after_a_full_disk_the_learner_is_as_before(learner, monkeypatch):
    """``rlforge.system.checkpoint`` explains a full disk; nothing of the update may stay behind."""

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("torch.save", full)
        with pytest.raises(CheckpointError, match="no space on disk"):
            await learner.train("a", batch())
    assert learner.standing == "step-0"
    after = await learner.train("a", batch())
    assert after is not None


async def test_a_learner_that_cannot_go_back_ends_the_run_with_both_failures(learner, monkeypatch):
    assert await learner.train("a", batch()) is not None

    def full(*_):
        shutil.rmtree("checkpoints/step-1")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.save", full)
    with pytest.raises(RlforgeError, match=r"no space on disk.*cannot go back to step-1") as caught:
        await learner.train("b", batch())
    assert not isinstance(caught.value, CheckpointError | RunError)  # of which a window is lost


async def test_pruning_keeps_new_first_and_protected_versions(resume):
    learner = await resume(keep=1)
    for name in "abcd":
        await learner.train(name, batch())
    learner.prune({"step-2"})
    names = [path.name for path in list_checkpoints(Path("checkpoints"))]
    assert names == ["step-0", "step-2", "step-3", "step-4"]
