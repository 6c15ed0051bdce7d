"""A person at the terminal: what is shown, what may be typed, how it ends."""

import pytest

from rlforge.errors import ConfigError, RunError
from rlforge.games.terminal import play_at_terminal
from rlforge.types import EnvSpec

TTT = EnvSpec(id="tic_tac_toe", source="openspiel")
SMALL = EnvSpec(id="market-small", source="market")


def sit(env, answers, opponents=("random_legal",), seat=0):
    """The result and all that was shown; ``answers`` are typed until they end."""
    shown, lines = [], iter(answers)

    def ask(_):
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    return play_at_terminal(env, opponents, seat, 0, ask, shown.append), "\n".join(shown)


def test_a_person_plays_a_market_with_words_and_json():
    result, shown = sit(SMALL, ["yes3", '{"type": "NO_OP"}', *["hold"] * 10], ["value_trader"])
    assert result.end_reason == "finished"
    assert shown.count("You are player-0") == 12
    assert f"you (player 0): {result.rewards[0]:+.2f}" in shown
    assert f"value_trader (player 1): {result.rewards[1]:+.2f}" in shown


def test_brackets_may_be_left_out():
    result, _ = sit(TTT, map(str, range(9)), ["minimax"], seat=1)
    assert result.end_reason == "invalid_move" or result.rewards[0] >= 0
    result, shown = sit(TTT, ["99", "77"], seat=1)
    assert (result.end_reason, result.invalid_by) == ("invalid_move", 1)
    assert "invalid move by player 1" in shown


def test_a_seat_or_opponent_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="seats 0 to 1, no seat 2"):
        sit(SMALL, [], seat=2)
    with pytest.raises(ConfigError, match="did you mean value_trader"):
        sit(SMALL, [], ["value_tradr"])


def test_an_input_that_ends_is_one_message():
    with pytest.raises(RunError, match="input ended"):
        sit(SMALL, ["hold"])
