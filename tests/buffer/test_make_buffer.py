"""Which buffer a configuration asks for."""

from rlforge.buffer import EpisodeBuffer, StepBuffer, make_buffer
from rlforge.config.schema import BufferConfig


def test_the_kind_chooses_the_class():
    assert isinstance(make_buffer(BufferConfig(kind="step"), 4, 1.0, 0), StepBuffer)
    assert isinstance(make_buffer(BufferConfig(kind="episode"), 4, 1.0, 0), EpisodeBuffer)


def test_the_initial_estimate_of_samples_per_game_is_configurable():
    def first_grant(**guess):
        return make_buffer(BufferConfig(max_staleness=0), 64, 1.0, 0, **guess).reserve(1000)

    assert first_grant() == 8
    assert first_grant(samples_per_game=16.0) == 4
