"""Games of a person, played by prepared lines against real opponents."""

import signal
import subprocess

import pytest
from tests.harness.live_run import start

from rlforge.config.compose import compose
from rlforge.games.base import View
from rlforge.games.registry import make_game
from rlforge.league.names import parse_opponent
from rlforge.show.play import PERSON, Leave, Person, find_env, play, seats_of, verdict

MINIMAX = parse_opponent("minimax")


def typing(*lines):
    """Types ``lines``, one per prompt, then ends the input."""
    left = iter(lines)

    def ask(prompt):
        for line in left:
            return line
        raise EOFError

    return ask


def silent(text):
    pass


async def game(person, *, seat=0, env="tictactoe", say=silent):
    config = compose([f"env={env}", "model=tiny"]).config
    spec = find_env(config, None)
    opponent = MINIMAX if env == "tictactoe" else parse_opponent("random_legal")
    return await play(config, spec, seats_of(spec, seat, [opponent]), 0, person, say)


CELLS = [f"[{cell}]" for cell in range(9)]


async def test_a_person_who_plays_at_random_does_not_beat_minimax():
    record = await game(Person(typing(*CELLS * 5), silent))
    assert record.error is None
    assert record.rewards[0] <= 0
    assert record.turns[0].completion.policy_uid == PERSON.uid
    expected = "a draw" if record.rewards[0] == 0 else "you lost"
    assert verdict(record).startswith(f"{expected} (finished): player 0 (you)")


async def test_a_person_may_take_the_second_seat_and_sees_the_last_position():
    said = []
    record = await game(Person(typing(*CELLS * 5), silent), seat=1, say=said.append)
    assert [turn.player_id for turn in record.turns[:2]] == [0, 1]
    assert record.turns[1].completion.policy_uid == PERSON.uid
    title, *rows = said[-1].strip().splitlines()
    assert title == "Final board:"
    cells = [cell.strip(" []") for cell in "|".join(rows).split("|")]
    for player, mark in ((0, "O"), (1, "X")):
        own = (turn for turn in record.turns if turn.player_id == player and turn.legal)
        played = {int(turn.action.strip("[]")) for turn in own if turn.action}
        assert {place for place, cell in enumerate(cells) if cell == mark} == played


def test_moves_that_the_observation_lists_are_not_listed_again():
    said = []
    view = View(player_id=0, observation="You may [a] or [b].", legal_actions=("[a]", "[b]"))
    Person(typing("a"), said.append).act(view)
    assert said == ["You may [a] or [b]."]


async def test_a_person_trades_with_words_and_with_json():
    bought = '{"type": "BUY_SHARES", "marketId": "market-1", "outcome": "NO", "amount": 7}'
    person = Person(typing(bought, "yes9", *["hold"] * 23), silent)
    record = await game(person, env="market")
    assert record.end_reason == "finished"
    mine = [turn for turn in record.turns if turn.player_id == 0]
    assert [turn.action for turn in mine] == [bought, *["[hold]"] * 23]
    assert all(turn.legal for turn in mine)


def test_a_move_may_be_typed_without_brackets_and_an_illegal_one_is_asked_for_again():
    config = compose(["env=tictactoe"]).config
    view = make_game(find_env(config, None), seed=0).view()
    said = []
    assert Person(typing("[9]", "nonsense", "4"), said.append).act(view) == "[4]"
    assert sum("no legal move" in text for text in said) == 2


@pytest.mark.parametrize(
    ("seen", "shown"),
    [
        (["the rules\nboard one", "the rules\nboard one\nboard two"], "board two"),
        (
            ["the rules\n\nBoard:\n0 1\n2 3\n", "the rules\n\nBoard:\n0 1\nX 3\n"],
            "Board:\n0 1\nX 3",
        ),
    ],
    ids=["text that is there again", "paragraphs"],
)
def test_what_the_last_observation_showed_is_not_shown_again(seen, shown):
    said = []
    person = Person(typing("a", "b"), said.append)
    for observation in seen:
        person.act(View(player_id=0, observation=observation))
    assert said == [seen[0].rstrip(), shown]


@pytest.mark.parametrize("lines", [("quit",), ()])
async def test_quit_and_the_end_of_input_leave_the_game(lines):
    with pytest.raises(Leave):
        await game(Person(typing(*lines), silent))


async def test_the_untrained_model_answers_from_its_engine(small_model):
    model = ["model=hf", f"model.name={small_model}", "model.prompt_template=board"]
    model += ["model.action_extraction=bracket", "hardware.device=cpu"]
    config = compose(["env=tictactoe", *model]).config
    spec = find_env(config, None)
    policies = seats_of(spec, 0, [parse_opponent("base")])
    record = await play(config, spec, policies, 0, Person(typing(*CELLS * 5), print), print)
    assert record.error is None
    assert record.turns[1].completion.token_ids


@pytest.mark.ray
def test_ctrl_c_leaves_the_game_at_once():
    words = ("play", "env=tictactoe", "--opponent", "random_legal")
    with start(*words, stdin=subprocess.PIPE) as table:
        assert table.stdout is not None
        for line in table.stdout:  # until the person is asked
            if line.startswith("Available Moves"):
                break
        table.send_signal(signal.SIGINT)
        _, complaint = table.communicate(timeout=60)
        assert table.returncode == 130
        assert "Traceback" not in complaint
