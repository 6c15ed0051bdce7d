"""From a game record to episodes, and what a pipeline remembers."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from tests import factories
from tests.factories import seat

from rlforge.config.compose import compose
from rlforge.config.games import RewardsConfig
from rlforge.errors import CheckpointError, ConfigError, ExtensionError
from rlforge.rewards import RewardPipeline
from rlforge.types import GameRecord, Turn

QUICK_START = RewardsConfig(
    final=[{"name": "role_advantage_by_env", "decay": 0.5}],
    step=[
        {"name": "format_reward", "reward": 1.5},
        {"name": "invalid_move_penalty", "reward": 1.0, "penalty": -1.0},
    ],
    sampling=[{"name": "normalize_by_env", "z_score": True}],
)


def turn(player_id: int, text: str, **changes: Any) -> Turn:
    before = {"observation": f"board before {text}", "info": {"try": 1}}
    return factories.turn(player_id, f"[{text}]", **before, **changes)


def record(turns, rewards, seats=None, **changes) -> GameRecord:
    seats = [seat(player) for player in rewards] if seats is None else seats
    spec = factories.game_spec(env="Game-v0", seats=seats, group_id="grp", group_size=4)
    return factories.game_record(spec, turns, rewards, **changes)


GAME = record(
    [turn(1, "a"), turn(0, "b", well_formed=False), turn(1, "c"), turn(0, "d", legal=False)],
    {0: -1.0, 1: 1.0},
)


def test_each_trained_seat_gets_its_own_turns_in_order():
    zero, one = RewardPipeline(RewardsConfig()).shape(GAME)
    assert [sample.action for sample in zero] == ["[b]", "[d]"]
    assert [sample.action for sample in one] == ["[a]", "[c]"]
    assert [(s.turn_index, s.last_turn) for s in one] == [(0, False), (1, True)]
    assert [s.reward for s in zero] == [-1, -1]
    first = one[0]
    assert (first.origin, first.env_id, first.player_id) == ("g1", "Game-v0", 1)
    assert first.policy_version == 3
    assert first.observation == "board before a"
    assert first.prompt_token_ids == (5, 6, 7)
    assert (first.token_ids, first.logprobs) == ((9, 2), (-0.5, -0.1))
    assert (first.policy_uid, first.group_id) == ("step-3", "grp")
    assert first.info == {"try": 1, "well_formed": True, "legal": True}


def test_rewards_go_through_the_final_and_then_the_step_stack():
    pipeline = RewardPipeline(QUICK_START)
    pipeline.shape(GAME)
    zero, one = pipeline.shape(GAME)  # baselines are -0.5 and 0.5 now
    assert [s.reward for s in zero] == [-0.5 + 0.0 + 1.0, -0.5 + 1.5 - 1.0]
    assert [s.reward for s in one] == [0.5 + 1.5 + 1.0] * 2
    assert [s.outcome_reward for s in zero] == [-0.5, -0.5]
    assert [s.raw_reward for s in zero + one] == [-1, -1, 1, 1]


def test_a_step_has_its_reward_after_each_transform_in_order():
    pipeline = RewardPipeline(QUICK_START)
    pipeline.shape(GAME)
    zero, one = pipeline.shape(GAME)
    *_, last = pipeline.on_draw([*zero, *one])
    assert list(last.rewards) == [
        *("role_advantage_by_env", "format_reward", "invalid_move_penalty", "normalize_by_env")
    ]
    assert list(last.rewards.values())[:3] == [0.5, 2.0, 3.0]
    assert last.rewards["normalize_by_env"] == last.reward
    twice = [{"name": "scale", "alpha": 2.0}, {"name": "scale", "alpha": 3.0}]
    (sample, _), _ = RewardPipeline(RewardsConfig(step=twice)).shape(GAME)
    assert sample.rewards == {"scale": -2.0, "scale_2": -6.0}
    assert RewardPipeline(RewardsConfig()).shape(GAME)[0][0].rewards == {}


def test_outcome_reward_follows_reshaping_but_not_feedback():
    config = RewardsConfig(
        step=[
            {"name": "discount", "gamma": 0.5},
            {"name": "format_reward", "reward": 2.0, "penalty": 0.0},
            {"name": "scale", "alpha": 10.0},
        ]
    )
    zero = RewardPipeline(config).shape(GAME)[0]
    assert [s.outcome_reward for s in zero] == [-5.0, -10.0]
    assert [s.reward for s in zero] == [-5.0, 10.0]


def test_the_baseline_learns_once_per_game_from_each_seat_that_is_learned_from():
    pipeline = RewardPipeline(RewardsConfig(final=[{"name": "role_advantage", "decay": 0.5}]))
    seats = (seat(0), seat(1, trained=False))
    only_zero = record([turn(0, "a")], {0: 1.0, 1: -1.0}, seats=seats)
    assert [turns[0].player_id for turns in pipeline.shape(only_zero)] == [0]
    assert pipeline.state_dict() == {"0": {"baselines": [["", 0, 0.5]]}}
    assert [turns[0].player_id for turns in pipeline.shape(GAME, learned=[1])] == [1]
    assert pipeline.state_dict() == {"0": {"baselines": [["", 0, 0.5], ["", 1, 0.5]]}}
    assert pipeline.shape(GAME, learned=[]) == []
    assert pipeline.state_dict() == {"0": {"baselines": [["", 0, 0.5], ["", 1, 0.5]]}}


def test_the_preset_of_unstable_baselines_has_its_running_mean():
    """tau = 0.001, and each game counts in the mean that is subtracted from it."""
    pipeline = RewardPipeline(compose(["rewards=unstable_baselines"]).config.rewards)
    mean = 0.0
    for _ in range(50):
        mean = (1 - 0.001) * mean + 0.001 * 1.0
        winner = pipeline.shape(record([turn(0, "a")], {0: 1.0, 1: -1.0}))[0]
        assert winner[0].outcome_reward == pytest.approx(1.0 - mean, abs=1e-12)
    assert round(winner[0].outcome_reward, 3) == 0.951


@dataclass
class Noticing:
    """Halves rewards, and notices each call."""

    adds_feedback = False
    calls: ClassVar[list[tuple[int, int, float]]] = []

    def __call__(self, trajectory, step_index, base_reward):
        self.calls.append((trajectory.player_id, step_index, base_reward))
        return base_reward / 2


def test_a_step_transform_of_a_user_is_called_once_for_each_step(monkeypatch):
    monkeypatch.setattr(Noticing, "calls", [])
    stack = [{"name": "scale", "alpha": 0.5}, {"name": f"{__name__}:Noticing"}]
    zero, one = RewardPipeline(RewardsConfig(step=stack)).shape(GAME)
    assert Noticing.calls == [(0, 0, -0.5), (0, 1, -0.5), (1, 0, 0.5), (1, 1, 0.5)]
    assert {(s.reward, s.outcome_reward) for s in zero} == {(-0.25, -0.25)}
    assert {(s.reward, s.outcome_reward) for s in one} == {(0.25, 0.25)}


def test_a_step_that_was_paid_feedback_has_its_outcome_mapped_apart(monkeypatch):
    monkeypatch.setattr(Noticing, "calls", [])
    stack = [{"name": "format_reward", "reward": 2.0}, {"name": f"{__name__}:Noticing"}]
    zero, _ = RewardPipeline(RewardsConfig(step=stack)).shape(GAME)
    assert Noticing.calls[:3] == [(0, 0, -1.0), (0, 1, 1.0), (0, 1, -1.0)]
    assert [(s.reward, s.outcome_reward) for s in zero] == [(-0.5, -0.5), (0.5, -0.5)]


@dataclass
class Curiosity:
    """Notes how long an answer is, as a stand-in for curiosity, and pays for what it noted."""

    adds_feedback = True
    weight: float = 0.5

    def notes(self, trajectory, step_index):
        return {"curiosity": np.float32(len(trajectory.turns[step_index].action)), "tags": ("x",)}

    def __call__(self, trajectory, step_index, base_reward):
        return base_reward + self.weight * trajectory.turns[step_index].info["curiosity"]


class Unstorable(Curiosity):
    def notes(self, trajectory, step_index):
        return {"board": object()}


def test_what_a_transform_notes_is_there_for_rewards_and_goes_into_the_step():
    of_mine = {"name": f"{__name__}:Curiosity", "weight": 0.25}
    pipeline = RewardPipeline(RewardsConfig(step=[{"name": f"{__name__}:Curiosity"}, of_mine]))
    (first, second), _ = pipeline.shape(GAME)
    assert first.info == {
        "try": 1,
        "well_formed": False,
        "legal": True,
        "curiosity": 3.0,
        "tags": ["x"],
    }
    assert first.reward == first.outcome_reward + 0.75 * 3.0
    assert type(second.info["curiosity"]) is float


def test_notes_that_cannot_be_stored_are_refused():
    pipeline = RewardPipeline(RewardsConfig(step=[{"name": f"{__name__}:Unstorable"}]))
    with pytest.raises(ExtensionError, match=r"Unstorable.notes: cannot write a object"):
        pipeline.shape(GAME)


def test_a_seat_without_a_turn_makes_no_episode():
    episodes = RewardPipeline(RewardsConfig()).shape(record([turn(0, "a")], {0: 1.0, 1: -1.0}))
    assert [episode[0].player_id for episode in episodes] == [0]


def test_a_failed_game_makes_no_episode_and_teaches_no_baseline():
    pipeline = RewardPipeline(QUICK_START)
    failed = record([turn(0, "a")], {}, seats=(seat(0), seat(1)), error="boom", end_reason="error")
    assert pipeline.shape(failed) == []
    assert pipeline.state_dict() == {"0": {"baselines": []}}


def test_on_draw_applies_the_sampling_stack():
    pipeline = RewardPipeline(QUICK_START)
    samples = [sample for episode in pipeline.shape(GAME) for sample in episode]
    drawn = pipeline.on_draw(samples)
    assert sum(s.reward for s in drawn) == pytest.approx(0)
    assert [s.action for s in drawn] == [s.action for s in samples]
    assert RewardPipeline(RewardsConfig()).on_draw(samples) == samples


def test_a_resumed_pipeline_goes_on_where_it_was():
    kept, resumed = RewardPipeline(QUICK_START), RewardPipeline(QUICK_START)
    kept.shape(GAME)
    resumed.load_state_dict(json.loads(json.dumps(kept.state_dict())))
    assert resumed.shape(GAME) == kept.shape(GAME)


def test_baselines_of_another_stack_are_refused():
    state = RewardPipeline(QUICK_START).state_dict()
    with pytest.raises(CheckpointError, match=r"resume with the rewards\.final"):
        RewardPipeline(RewardsConfig()).load_state_dict(state)


@pytest.mark.parametrize("stack", ["final", "step", "sampling"])
def test_errors_name_the_stack(stack):
    with pytest.raises(ConfigError, match=rf"rewards\.{stack}\[0\]\.name"):
        RewardPipeline(RewardsConfig(**{stack: [{"name": "nonsense"}]}))
