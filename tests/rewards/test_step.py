"""Step transforms on one turn of a trajectory."""

from tests import factories

from rlforge.rewards.step import Clamp, Discount, FormatReward, InvalidMovePenalty, Scale
from rlforge.samples import Trajectory


def trajectory(*turns: tuple[bool, bool]) -> Trajectory:
    record = factories.game_record()
    played = (factories.turn(well_formed=formed, legal=legal) for formed, legal in turns)
    return Trajectory(record=record, player_id=0, turns=tuple(played))


def test_format_reward_judges_the_turn_itself():
    of = trajectory((True, True), (False, True))
    transform = FormatReward(reward=1.5, penalty=-0.5)
    assert [transform(of, step, 1.0) for step in (0, 1)] == [2.5, 0.5]


def test_invalid_move_penalty_judges_the_turn_itself():
    of = trajectory((False, True), (True, False))
    transform = InvalidMovePenalty(reward=1.0, penalty=-1.0)
    assert [transform(of, step, 0.5) for step in (0, 1)] == [1.5, -0.5]


def test_discount_counts_from_the_end_by_default_and_from_the_start_as_published():
    of, published = trajectory(*[(True, True)] * 3), Discount(0.5, distance_from="start")
    assert [Discount(0.5)(of, step, 8.0) for step in range(3)] == [2.0, 4.0, 8.0]
    assert [published(of, step, 8.0) for step in range(3)] == [8.0, 4.0, 2.0]


def test_scale_and_clamp():
    of = trajectory((True, True))
    assert Scale(0.5)(of, 0, 3.0) == 1.5
    assert [Clamp(-1, 2)(of, 0, reward) for reward in (-5.0, 0.5, 5.0)] == [-1, 0.5, 2]


def test_only_judgements_of_the_turn_are_feedback():
    assert FormatReward.adds_feedback is InvalidMovePenalty.adds_feedback is True
    assert Discount.adds_feedback is Scale.adds_feedback is Clamp.adds_feedback is False
