"""Which buffer a configuration asks for, and which configurations make none."""

import re

import pytest

from rlforge.buffer import EpisodeBuffer, StepBuffer, make_buffer
from rlforge.config.schema import BufferConfig
from rlforge.errors import ConfigError


def test_the_kind_chooses_the_class():
    assert isinstance(make_buffer(BufferConfig(kind="step"), 4, 1.0, 0), StepBuffer)
    assert isinstance(make_buffer(BufferConfig(kind="episode"), 4, 1.0, 0), EpisodeBuffer)


@pytest.mark.parametrize(
    ("config", "batch_size", "batch_delay", "message"),
    [
        ({"kind": "stepp"}, 4, 1.0, "buffer.kind: 'stepp' is neither step nor episode; did you"),
        ({"strategy": "prioritised"}, 4, 1.0, "buffer.strategy: 'prioritised' is not known"),
        ({"max_staleness": -1}, 4, 1.0, "buffer.max_staleness: -1 is negative"),
        ({}, 0, 1.0, "learner.batch_size: 0 is less than 1"),
        ({}, 4, 0.5, "learner.batch_delay_buffer: 0.5 is less than 1"),
        ({"max_size": 5}, 4, 1.5, "buffer.max_size: 5 is less than the 6 samples"),
    ],
)
def test_errors_name_the_key(config, batch_size, batch_delay, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_buffer(BufferConfig(**config), batch_size, batch_delay, 0)


def test_the_guess_of_a_games_yield_can_be_given():
    def first_grant(**guess):
        return make_buffer(BufferConfig(max_staleness=0), 64, 1.0, 0, **guess).reserve(1000)

    assert first_grant() == 8
    assert first_grant(samples_per_game=16.0) == 4
