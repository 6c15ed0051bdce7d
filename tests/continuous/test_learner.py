"""One update per window: on disk whole or not at all, never twice, and undone when refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlforge.config.continuous import ContinuousConfig
from rlforge.continuous.learner import WindowLearner
from rlforge.errors import CheckpointError
from rlforge.learner import Learner, make_learner
from rlforge.learner.ranks import Ranks
from rlforge.system.checkpoint import list_checkpoints, read_manifest
from rlforge.types import Step, TrainBatch


def batch(reward: float = 1.0) -> TrainBatch:
    steps = tuple(
        Step(
            game_id=f"w/agent-{index % 2}",
            env_id="market",
            player_id=0,
            group_id="w",
            turn_index=index // 2,
            last_turn=index >= 6,
            observation="",
            action="",
            prompt_token_ids=(5, 6, 7),
            token_ids=(60 + index,),
            logprobs=(-2.0,),
            raw_reward=reward * index,
            reward=reward * index,
            policy_uid="deploy-0",
            policy_version=0,
        )
        for index in range(8)
    )
    return TrainBatch(steps=steps, whole_episodes=True, min_version=0, max_version=0)


@pytest.fixture
def new_learner(make_config: Callable[..., ContinuousConfig]) -> Callable[[], Learner]:
    config = make_config()
    return lambda: make_learner(config, torch.device("cpu"), Ranks())


@pytest.fixture
def learner(new_learner: Callable[[], Learner]) -> WindowLearner:
    made = WindowLearner(new_learner(), Path("checkpoints").absolute(), "test")
    made.begin()
    return made


def weights(name: str) -> dict[str, torch.Tensor]:
    return load_file(Path("checkpoints") / name / "adapter_model.safetensors")


def test_a_window_becomes_a_version_that_says_so(learner: WindowLearner) -> None:
    trained = learner.train("2024-11-13-10:00", batch())
    assert trained is not None
    assert (trained.checkpoint.uid, trained.checkpoint.version) == ("step-1", 1)
    assert (trained.samples, learner.standing, learner.version) == (8, "step-1", 1)
    manifest = read_manifest(Path("checkpoints/step-1"))
    assert manifest.meta["window_id"] == "2024-11-13-10:00"
    assert manifest.meta["parent_uid"] == "step-0"
    assert manifest.has_state
    assert trained.metrics["loss"] == manifest.meta["metrics"]["loss"]


def test_a_window_is_not_trained_on_twice(
    learner: WindowLearner, new_learner: Callable[[], Learner]
) -> None:
    first = learner.train("a", batch())
    again = WindowLearner(new_learner(), Path("checkpoints").absolute(), "test")
    again.begin()
    assert again.standing == "step-0"
    assert again.train("a", batch()) == first
    assert again.standing == "step-1"
    assert [path.name for path in list_checkpoints(Path("checkpoints"))] == ["step-0", "step-1"]


def test_a_resumed_learner_goes_on_as_if_it_had_not_stopped(
    learner: WindowLearner, new_learner: Callable[[], Learner]
) -> None:
    learner.train("a", batch())
    learner.train("b", batch(2.0))
    straight = weights("step-2")
    list_checkpoints(Path("checkpoints"))[-1].rename("aside")
    again = WindowLearner(new_learner(), Path("checkpoints").absolute(), "test")
    again.begin()
    again.restore("step-1")
    again.train("b", batch(2.0))
    assert all(torch.equal(straight[name], tensor) for name, tensor in weights("step-2").items())


def test_after_a_refusal_learning_goes_on_from_before_under_a_new_number(
    learner: WindowLearner,
) -> None:
    learner.train("a", batch())
    learner.restore("step-0")
    assert (learner.standing, learner.version) == ("step-0", 0)
    trained = learner.train("b", batch())
    assert trained is not None
    assert (trained.checkpoint.uid, trained.checkpoint.parent_uid) == ("step-2", "step-0")


def test_an_update_that_is_not_finite_leaves_nothing(learner: WindowLearner) -> None:
    assert learner.train("a", batch(float("nan"))) is None
    assert learner.standing == "step-0"
    assert len(list_checkpoints(Path("checkpoints"))) == 1
    assert learner.train("b", batch()) is not None


def test_a_disk_without_room_leaves_the_learner_as_it_was(
    learner: WindowLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``rlforge.system.checkpoint`` explains a full disk; nothing of the update may stay behind."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", full)
        with pytest.raises(CheckpointError, match="no space on disk"):
            learner.train("a", batch())
    assert learner.standing == "step-0"
    after = learner.train("a", batch())
    assert after is not None


def test_old_versions_go_but_not_those_that_are_needed(learner: WindowLearner) -> None:
    for name in "abcd":
        learner.train(name, batch())
    learner.prune(1, {"step-2"})
    names = [path.name for path in list_checkpoints(Path("checkpoints"))]
    assert names == ["step-0", "step-2", "step-3", "step-4"]
