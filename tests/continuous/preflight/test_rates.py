"""What a start says of learning rates that do not go with the model."""

import pytest
from tests.harness.composed import composed

from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.preflight.limits import limit_notes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ((), None),
        (("learner=window_grpo",), "learner=tiny_window has a rate for it"),
        (("model=smollm2_135m",), "learner=window_grpo has the document's values"),
        (("model=smollm2_135m", "learner=window_grpo"), None),
    ],
)
def test_a_start_says_what_to_expect_of_the_rate(changes, said):
    found = [*limit_notes(composed(*changes, root=ContinuousConfig))]
    notes = [note for note in found if "learner.learning_rate" in note]
    assert len(notes) == (said is not None)
    assert said is None or said in notes[0]
