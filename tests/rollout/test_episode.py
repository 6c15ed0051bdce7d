import asyncio
import dataclasses
import random
import sys

import pytest
from tests import factories
from tests.factories import game_spec, seat

from rlforge.errors import EngineError, ExtensionError, PromptTooLongError
from rlforge.games.orientation import canonical
from rlforge.games.players import make_player
from rlforge.rollout.episode import play_game, replayed, turn_seed
from rlforge.types import Completion, EnvSpec, Form

TAK = EnvSpec(id="SimpleTak-v0-train")
POLICY = factories.scripted("someone")


def spec(env=TAK, seed=1, extraction="boxed", game_id="g", **changes):
    form = Form(extraction=extraction)
    seats = [seat(player, POLICY, form=form) for player in range(env.num_players)]
    return game_spec(game_id, env, seats, seed=seed, **changes)


def scripted(env, name="random_legal", pause=False):
    async def answer(seat, view, seed):
        if pause:
            for _ in range(seed % 4):
                await asyncio.sleep(0)
        text = make_player(name, env, seed).act(view)
        return Completion(text=text, finish_reason="scripted", policy_uid=seat.policy.uid)

    return answer


def saying(*texts):
    """Answers that go through ``texts`` in order, then a free cell."""
    left = list(texts)

    async def answer(seat, view, seed):
        return Completion(text=left.pop(0) if left else rf"\boxed{{{view.legal_actions[0]}}}")

    return answer


def facts(record):
    """A record without its clock."""
    return dataclasses.replace(record, duration_s=0.0)


async def test_a_game_is_played_to_its_end_and_recorded():
    record = await play_game(spec(), scripted(TAK))
    assert record.error is None
    assert record.end_reason == "finished"
    assert sorted(record.rewards.values()) in ([-1.0, 1.0], [0.0, 0.0])
    assert [turn.player_id for turn in record.turns[:4]] == [0, 1, 0, 1]
    assert all(turn.legal and turn.well_formed for turn in record.turns)
    assert [turn.info["legal_actions"] for turn in record.turns[:3]] == [16, 15, 14]
    assert record.turns[0].observation.startswith("You are Player 0 in SimpleTak.")
    assert record.duration_s > 0
    assert {turn.legal_tokens for turn in record.turns} == {()}  # left out unless asked for


async def test_only_the_extracted_action_reaches_the_game():
    record = await play_game(spec(), saying(r"[0] is bad, so \boxed{7}", r"\boxed{[3]}"))
    assert [turn.action for turn in record.turns[:2]] == ["[7]", "[3]"]
    assert record.turns[0].completion.text == r"[0] is bad, so \boxed{7}"


async def test_an_answer_without_the_format_is_a_retry_with_feedback():
    record = await play_game(spec(), saying("I take [4].", r"\boxed{4}"))
    first, second = record.turns[:2]
    assert (first.action, first.well_formed, first.legal) == ("", False, False)
    assert (second.action, second.well_formed, second.legal) == ("[4]", True, True)
    assert (first.info["retry"], second.info["retry"]) == (False, True)
    assert first.player_id == second.player_id == 0
    assert r"had no \boxed{...}" in first.info["format_feedback"]
    assert second.observation.endswith("\n\n" + first.info["format_feedback"])
    assert not record.turns[2].info["retry"]


async def test_format_feedback_is_news_in_a_game_that_shows_nothing_else():
    seen = []
    answers = saying("I take [4].", r"\boxed{4}")

    async def answer(seat, view, seed):
        seen.append(view)
        return await answers(seat, view, seed)

    await play_game(spec(EnvSpec(id="SimpleTak-v0-raw", max_turns=2)), answer)
    assert seen[1].news == seen[1].observation
    assert r"had no \boxed{...}" in seen[1].news


async def test_whoever_ends_a_game_by_an_invalid_move_is_named():
    record = await play_game(spec(), saying(r"\boxed{0}", r"\boxed{99}", "?"))
    assert record.end_reason == "invalid_move"
    assert record.invalid_by == 1
    assert record.rewards == {0: 1.0, 1: -1.0}
    assert record.error is None
    # An illegal action is told apart from a bad format.
    _, illegal, unread = record.turns
    assert (illegal.well_formed, illegal.legal) == (True, False)
    assert (unread.well_formed, unread.legal) == (False, False)
    assert "Invalid cell number 99" in unread.observation


async def test_interleaved_games_of_chance_equal_the_same_games_alone():
    envs = [
        EnvSpec(id="KuhnPoker-v0-short-train"),
        EnvSpec(id="LiarsDice-v0-small-train"),
        EnvSpec(id="PigDice-v0-short-train"),
        EnvSpec(id="leduc_poker", source="openspiel"),
    ]
    shares = (80, 12, 8, 40)
    games = [(env, seed) for env, share in zip(envs, shares, strict=True) for seed in range(share)]
    random.Random(0).shuffle(games)
    together = await asyncio.gather(
        *(play_game(spec(env, seed), scripted(env, pause=True)) for env, seed in games)
    )
    for (env, seed), record in zip(games, together, strict=True):
        assert facts(record) == facts(await play_game(spec(env, seed), scripted(env)))
    assert all(record.error is None for record in together)


async def test_request_seeds_follow_from_game_and_turn():
    seeds = []

    async def answer(seat, view, seed):
        seeds.append(seed)
        return await scripted(TAK)(seat, view, seed)

    await play_game(spec(seed=5), answer)
    assert seeds == [turn_seed(spec(seed=5), turn) for turn in range(len(seeds))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert turn_seed(spec(seed=6), 0) != seeds[0]
    # The id is a name and nothing more, but for games of a group, which share their seed.
    assert turn_seed(spec(seed=5, game_id="other"), 0) == seeds[0]
    group = {turn_seed(spec(seed=5, game_id=f"g{i}", group_id="G"), 0) for i in range(8)}
    assert len(group) == 8


def thinking(env, failure=None, free_cells=14):
    """A model at each seat; ``failure`` is raised, or waited for, when so many cells are free."""

    async def answer(seat, view, seed):
        if len(view.legal_actions) == free_cells:
            if isinstance(failure, Exception):
                raise failure
            await asyncio.sleep(30)
        given = await scripted(env)(seat, view, seed)
        return dataclasses.replace(given, finish_reason="stop", token_ids=(1,), logprobs=(0.0,))

    return answer


TOO_LONG = PromptTooLongError("prompt of 99 tokens is 5 too long")


async def test_a_game_over_its_time_is_cut_and_its_turns_count():
    env = dataclasses.replace(TAK, timeout_s=0.1)
    record = await play_game(spec(env, extraction="raw"), thinking(env))
    assert (record.end_reason, record.error, record.cut_by) == ("timeout", None, None)
    assert record.rewards == {0: 0.0, 1: 0.0}
    assert len(record.turns) == 2


async def test_a_prompt_that_outgrows_the_context_cuts_the_game_and_names_its_player():
    record = await play_game(spec(extraction="raw"), thinking(TAK, TOO_LONG, free_cells=13))
    assert (record.end_reason, record.error, record.cut_by) == ("context_limit", None, 1)
    assert record.rewards == {0: 0.0, 1: 0.0}
    assert len(record.turns) == 3


def cut_at(turn, text, tokens=3):
    """Random legal play; the context ends the answer of turn ``turn``, which is ``text`` then."""
    turns = []

    async def answer(seat, view, seed):
        turns.append(seat)
        given = await scripted(TAK)(seat, view, seed)
        cut = len(turns) == turn + 1
        return dataclasses.replace(
            given,
            text=text if cut else given.text,
            token_ids=(1,) * tokens,
            logprobs=(0.0,) * tokens,
            finish_reason="context" if cut else "stop",
        )

    return answer


@pytest.mark.parametrize("text", ["Let me thi", "The free cells are [", "[99]"])
async def test_an_answer_that_the_context_ends_without_a_legal_action_cuts_the_game(text):
    record = await play_game(spec(extraction="raw"), cut_at(3, text))
    assert (record.end_reason, record.error, record.cut_by) == ("context_limit", None, 1)
    assert record.invalid_by is None
    assert record.rewards == {0: 0.0, 1: 0.0}
    # Its turn counts, too: all that was sampled is learned from.
    assert [turn.legal for turn in record.turns] == [True, True, True, False]
    assert record.turns[-1].completion.token_ids == (1, 1, 1)


async def test_a_legal_action_in_an_answer_that_the_context_ends_is_played():
    env = dataclasses.replace(TAK, max_turns=6)
    record = await play_game(spec(env, extraction="bracket"), cut_at(0, "Best is [5], becau"))
    assert (record.turns[0].action, record.turns[0].legal) == ("[5]", True)
    assert record.end_reason in ("finished", "turn_limit")
    assert len(record.turns) > 1


async def test_an_api_model_whose_context_is_full_fails_a_game_of_no_other_model():
    record = await play_game(spec(extraction="raw"), cut_at(2, "I th", tokens=0))
    assert (record.end_reason, record.rewards, record.cut_by) == ("context_limit", {}, 0)
    assert record.error == "the context of someone ended before its answer had a legal action"


@pytest.mark.parametrize("failure", [TOO_LONG, None])
async def test_a_game_in_which_no_model_has_answered_fails_at_a_limit(failure):
    """Else a wrong set-up would end every game as a draw, without a message."""
    env = dataclasses.replace(TAK, timeout_s=0.1)
    record = await play_game(spec(env, extraction="raw"), thinking(env, failure, free_cells=16))
    assert record.rewards == {}
    expected = "PromptTooLongError: prompt of 99" if failure else "was not over after 0.1 s"
    assert expected in record.error


@pytest.mark.parametrize("failure", [EngineError("out of memory"), TimeoutError("no answer")])
async def test_a_failing_policy_is_data(failure):
    async def fails(seat, view, seed):
        if len(view.legal_actions) == 14:
            raise failure
        return await scripted(TAK)(seat, view, seed)

    record = await play_game(spec(), fails)
    assert (record.end_reason, record.error) == ("error", f"{type(failure).__name__}: {failure}")
    assert len(record.turns) == 2
    assert record.rewards == {}


async def test_a_failing_environment_is_data():
    env = EnvSpec(id="ScorableGames-v0-7players")
    record = await play_game(spec(env), scripted(env))
    assert record.end_reason == "error"
    assert record.error.startswith("GameError: ScorableGames-v0-7players: reset failed")
    assert record.turns == ()


async def test_a_mistake_in_the_program_is_not_hidden():
    async def wrong(seat, view, seed):
        return {}["missing"]

    with pytest.raises(KeyError, match="missing"):
        await play_game(spec(), wrong)


async def test_a_mistake_in_a_users_game_goes_through_with_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "games_with_a_mistake.py").write_text(
        "class Game:\n    done = False\n    def view(self):\n        return 1 / 0\n"
        "class Source:\n    def make(self, env, seed): return Game()\n"
        "    def check(self, env): pass\n    def env_ids(self): return []\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    env = EnvSpec(id="any", source="games_with_a_mistake:Source", num_players=1)
    with pytest.raises(ExtensionError, match=r"division by zero .*games_with_a_mistake.py, line 4"):
        await play_game(spec(env), answer=None)


async def test_cancellation_goes_through():
    async def never(seat, view, seed):
        await asyncio.Event().wait()

    task = asyncio.create_task(play_game(spec(), never))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_seats_have_to_match_the_players():
    with pytest.raises(ValueError, match="seats must be players 0 to 1"):
        await play_game(dataclasses.replace(spec(), seats=spec().seats[:1]), scripted(TAK))


async def test_the_seat_to_move_is_asked():
    asked = []

    async def answer(seat, view, seed):
        asked.append((seat.player_id, view.player_id))
        return await scripted(env)(seat, view, seed)

    env = EnvSpec(id="ThreePlayerTicTacToe-v0-train", num_players=3)
    record = await play_game(spec(env), answer)
    assert record.error is None
    assert asked[:4] == [(0, 0), (1, 1), (2, 2), (0, 0)]


# ---------------------------------------------------------------- legal tokens


def marked(seat, view, completion, accepted):
    """Shows in the record for which seat, view and answer it was called."""
    return ((seat.player_id, len(view.legal_actions), len(completion.text)),)


async def test_turns_of_trained_seats_have_their_legal_tokens_and_no_others():
    both = spec(extraction="raw")
    seats = (both.seats[0], dataclasses.replace(both.seats[1], trained=False))
    record = await play_game(
        dataclasses.replace(both, seats=seats), scripted(TAK), legal_tokens=marked
    )
    assert record.error is None
    for turn in record.turns:
        of_turn = (turn.player_id, turn.info["legal_actions"], len(turn.completion.text))
        assert turn.legal_tokens == ((of_turn,) if turn.player_id == 0 else ())


def test_turns_that_do_not_come_out_as_they_did_fail_the_game():
    first = asyncio.run(play_game(spec(), scripted(TAK)))
    past = (first.turns[0], dataclasses.replace(first.turns[1], action="[99]"))
    record = asyncio.run(play_game(spec(past=past), scripted(TAK)))
    assert "turn 2 does not repeat: its action is" in record.error


def test_players_that_remember_get_the_answers_of_the_past():
    first = asyncio.run(play_game(spec(), scripted(TAK)))

    class Player:
        def __init__(self):
            self.past = []

        def remember(self, seat, view, completion):
            self.past.append((seat.player_id, view.observation, completion))

        async def __call__(self, seat, view, seed):
            return await scripted(TAK)(seat, view, seed)

    player = Player()
    past = first.turns[:3]
    record = asyncio.run(play_game(spec(game_id="h", group_id="h", past=past), player))
    assert record.error is None
    assert record.turns[:3] == past
    assert len(record.turns) > 3
    assert player.past == [(turn.player_id, turn.observation, turn.completion) for turn in past]


async def test_with_canonical_a_model_plays_on_turned_boards_and_scripts_on_the_games_own():
    env = dataclasses.replace(TAK, canonical=True)
    model = factories.checkpoint()
    seats = [seat(0, model, form=Form(template="board")), seat(1, POLICY)]
    seen = {"checkpoint": [], "scripted": []}

    async def answer(seat, view, seed):
        seen[seat.policy.kind].append(view)
        if seat.policy.kind == "scripted":
            return Completion(text=view.legal_actions[-1], finish_reason="scripted")
        return Completion(text=rf"\\boxed{{{view.legal_actions[0]}}}")

    record = await play_game(game_spec("g", env, seats, seed=1), answer)
    assert record.error is None
    assert all(turn.legal for turn in record.turns)
    assert {canonical(view.grid)[0] == view.grid for view in seen["checkpoint"]} == {True}
    assert {canonical(view.grid)[0] == view.grid for view in seen["scripted"]} != {True}
    # The record is in the words of the game: it can be played again.
    for game, turn in replayed(record):
        assert turn.action in game.view().legal_actions
