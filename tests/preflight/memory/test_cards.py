"""Processes on the cards of a run."""

import pytest

from rlforge.config.schema import HardwareConfig
from rlforge.preflight.memory.cards import place
from rlforge.preflight.memory.plan import GIB


def cuda(learner: float, engine: float) -> HardwareConfig:
    return HardwareConfig(device="cuda", learner_gpus=learner, engine_gpus=engine)


@pytest.mark.parametrize(
    ("hardware", "learners", "engines", "cards"),
    [
        (HardwareConfig(device="cpu"), 1, 3, [(1, 3, 1)]),
        (HardwareConfig(device="cpu"), 3, 2, [(3, 2, 1)]),
        (cuda(0.5, 0.5), 1, 1, [(1, 1, 1)]),
        (cuda(0.4, 0.3), 1, 2, [(1, 2, 1)]),
        (cuda(0.5, 0.5), 1, 4, [(1, 1, 1), (0, 2, 2)]),
        (cuda(1, 1), 1, 2, [(1, 0, 1), (0, 1, 2)]),
        (cuda(1, 0.5), 1, 3, [(1, 0, 1), (0, 2, 2)]),
        (cuda(1, 0.5), 3, 2, [(1, 0, 3), (0, 2, 1)]),
        (cuda(1 / 3, 1 / 3), 1, 2, [(1, 2, 1)]),
    ],
)
def test_cards_are_filled_as_ray_packs_them(hardware, learners, engines, cards):
    made = place(hardware, learners, engines, GIB)
    assert [(card.learners, card.engines, card.count) for card in made] == cards
