import dataclasses
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import checkpoint, game_record, scripted

from rlforge.errors import ConfigError
from rlforge.rollout.evaluation import (
    NO_OPPONENT,
    OpenEvaluation,
    Pairing,
    opponent_of,
    plan_evaluation,
    summarise,
)
from rlforge.statistics import wilson_interval
from rlforge.types import EnvSpec, GameRecord, GameSpec, PolicyRef

POLICY = checkpoint(4)
RANDOM = scripted("random_legal")
BASE = PolicyRef(uid="base", kind="checkpoint")
OTHER = PolicyRef(uid="openai:m", kind="api", path_or_name="openai:m")
TWO = EnvSpec(id="Two-v0")
THREE = EnvSpec(id="Three-v0", num_players=3)
ALONE = EnvSpec(id="Alone-v0", num_players=1)


def pairings(envs, opponents):
    return [Pairing(env=env, opponents=tuple(opponents)) for env in envs]


def plan(envs=(TWO,), opponents=(RANDOM,), policy=POLICY, games=4, step=4, seed=0, **kwargs):
    tables = pairings(envs, opponents)
    return list(plan_evaluation(tables, policy, games, step=step, seed=seed, **kwargs))


def played(spec: GameSpec, own: float, others: float = 0.0, **changes) -> GameRecord:
    """The game with reward ``own`` for the evaluated policy ``others`` for the others."""
    rewards = {seat.player_id: others for seat in spec.seats} | {spec.focus: own}
    return game_record(spec, (), rewards, **changes)


def failed(spec: GameSpec) -> GameRecord:
    return game_record(spec, (), {}, end_reason="error", error="it broke")


@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 3), st.integers(0, 2**31))
def test_every_round_has_one_seed_and_the_policy_at_each_seat_once(players, games, rivals, seed):
    env = EnvSpec(id="Game-v0", num_players=players)
    specs = plan([env], [RANDOM, BASE, OTHER][:rivals], games=games, seed=seed)
    rounds = [specs[i : i + players] for i in range(0, len(specs), players)]
    for games_of_round in rounds:
        assert [spec.focus for spec in games_of_round] == list(range(players))
        assert len({spec.seed for spec in games_of_round}) == 1
        for spec in games_of_round:
            assert spec.seats[spec.focus].policy == POLICY
            assert [seat.player_id for seat in spec.seats] == list(range(players))
            rest = {seat.policy.uid for seat in spec.seats if seat.player_id != spec.focus}
            assert len(rest) == (players > 1)
            assert (spec.purpose, spec.trained, spec.group_id) == ("eval", (), None)
    against = rivals if players > 1 else 1
    assert games * against <= len(specs) < (games + players) * against
    assert len({spec.game_id for spec in specs}) == len(specs)


def test_every_opponent_and_step_meets_the_same_starts():
    specs = plan(opponents=[RANDOM, BASE], games=6)
    seeds = defaultdict(list)
    for spec in specs:
        seeds[spec.seats[1 - spec.focus].policy.uid].append(spec.seed)
    assert seeds["random_legal"] == seeds["base"]
    assert seeds["base"] != [spec.seed for spec in plan(games=6, seed=3)]
    later = plan(opponents=[RANDOM], games=6, step=8)
    assert [spec.seed for spec in later] == seeds["base"]
    assert {spec.game_id for spec in later}.isdisjoint(spec.game_id for spec in specs)


def test_base_against_itself_is_told_apart_by_seat():
    specs = plan(policy=BASE, opponents=[BASE], games=4, step=0)
    assert [spec.focus for spec in specs] == [0, 1, 0, 1]
    [result] = summarise([played(spec, own=1, others=-1) for spec in specs], step=0)
    assert (result.opponent, result.policy_uid) == ("base", "base")
    assert (result.wins, result.losses) == (4, 0)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 30), st.integers(1, 60))
def test_the_cap_holds_per_environment_and_is_shared_fairly(players, rivals, games, cap):
    env = EnvSpec(id="Game-v0", num_players=players)
    opponents = [RANDOM, BASE, OTHER][:rivals]
    against = rivals if players > 1 else 1
    uncapped = plan([env], opponents, games=games)
    if len(uncapped) > cap and cap < players * against:
        with pytest.raises(ConfigError, match=f"needs at least {players * against}"):
            plan([env], opponents, games=games, max_games=cap)
        return
    specs = plan([env], opponents, games=games, max_games=cap)
    assert len(specs) <= cap
    assert len(specs) == min(len(uncapped), cap // players * players)
    counts = Counter(
        spec.seats[(spec.focus + 1) % players].policy.uid if players > 1 else NO_OPPONENT
        for spec in specs
    )
    assert len(counts) == against
    assert max(counts.values()) - min(counts.values()) in (0, players)
    assert all(count % players == 0 for count in counts.values())


def test_outcomes_are_those_of_the_evaluated_policy():
    specs = plan(games=8)
    records = [
        played(specs[0], 1, -1),
        played(specs[1], 1, -1),
        played(specs[2], 1, -1, invalid_by=1 - specs[2].focus),
        played(specs[3], -1, 1),
        played(specs[4], -1, 1, invalid_by=specs[4].focus),
        played(specs[5], 0, 0),
        failed(specs[6]),
        failed(specs[7]),
    ]
    [result] = summarise(records, step=4)
    assert dataclasses.asdict(result) == {
        "step": 4,
        "env_id": "Two-v0",
        "opponent": "random_legal",
        "policy_uid": "step-4",
        "games": 6,
        "wins": 3,
        "draws": 1,
        "losses": 2,
        "win_rate": 0.5,
        "ci95": wilson_interval(3, 6),
        "mean_reward": pytest.approx(1 / 6),
        "invalid_rate": pytest.approx(1 / 6),
        "failed": 2,
    }


@pytest.mark.parametrize(
    ("env", "rewards", "opponent", "counts"),
    [
        (THREE, [(1.0, 0.0), (1.0, 1.0), (0.5, 1.0)], "random_legal", (1, 1, 1)),  # the highest
        (ALONE, [(1.0, 0.0), (0.9, 0.0), (0.0, 0.0)], NO_OPPONENT, (1, 0, 2)),  # a full reward
    ],
)
def test_who_wins_among_many_players_and_alone(env, rewards, opponent, counts):
    specs = plan([env], games=3)
    records = [played(spec, *reward) for spec, reward in zip(specs, rewards, strict=True)]
    [result] = summarise(records, step=4)
    assert (result.wins, result.draws, result.losses) == counts
    assert result.opponent == opponent
    assert result.mean_reward == pytest.approx(sum(own for own, _ in rewards) / 3)


def test_environments_opponents_and_policies_are_summarised_apart_in_order():
    specs = plan([TWO, ALONE], [RANDOM, BASE], games=2)
    specs += plan([TWO], [BASE], policy=OTHER, games=2)
    results = summarise([played(spec, 1, 0) for spec in specs], step=4)
    assert [(r.env_id, r.opponent, r.policy_uid) for r in results] == [
        ("Two-v0", "random_legal", "step-4"),
        ("Two-v0", "base", "step-4"),
        ("Alone-v0", "none", "step-4"),
        ("Two-v0", "base", "openai:m"),
    ]


def test_failed_games_alone_say_nothing():
    [result] = summarise([failed(spec) for spec in plan(games=2)], step=4)
    assert (result.games, result.failed, result.win_rate) == (0, 2, 0.0)
    assert (result.mean_reward, result.invalid_rate) == (0.0, 0.0)
    assert result.ci95 == (0.0, 1.0)
    evaluation = opened()
    evaluation.close()
    assert (evaluation.over, evaluation.next_game(), evaluation.results()) == (True, None, [])


def test_training_games_cannot_be_summarised():
    [spec, _] = plan(games=2)
    record = dataclasses.replace(played(spec, 1), spec=dataclasses.replace(spec, focus=None))
    with pytest.raises(ValueError, match=f"{spec.game_id} is not an evaluation game"):
        summarise([record], step=4)


def test_environments_have_opponents_of_their_own_and_take_turns():
    tables = [
        Pairing(env=TWO, opponents=(BASE, OTHER)),
        Pairing(env=THREE, opponents=(RANDOM,)),
        Pairing(env=ALONE, opponents=(RANDOM, BASE)),
    ]
    specs = list(plan_evaluation(tables, POLICY, 4, step=4, seed=0, max_games=6))
    met = [(spec.env_id, opponent_of(spec)) for spec in specs if spec.focus == 0]
    first_round = [
        ("Two-v0", "base"),
        ("Two-v0", "openai:m"),
        ("Three-v0", "random_legal"),
        ("Alone-v0", NO_OPPONENT),
    ]
    assert met[:4] == first_round
    assert set(met) == set(first_round)
    # 6 games in Two are 3 rounds for 2 opponents, in Three 2 rounds.
    assert Counter(met) == dict(zip(first_round, (2, 1, 2, 4), strict=True))


def opened(max_games=None, envs=(TWO,), opponents=(RANDOM, BASE)):
    tables = pairings(envs, opponents)
    games = plan_evaluation(tables, POLICY, None, step=4, seed=0, max_games=max_games)
    return OpenEvaluation(games, POLICY, step=4)


@given(st.integers(1, 32), st.integers(0, 12))
def test_an_open_evaluation_deals_whole_rounds_until_it_is_closed(dealt_first, under_way):
    evaluation = opened()
    specs = [evaluation.next_game() for _ in range(dealt_first)]
    evaluation.close()
    while (spec := evaluation.next_game()) is not None:
        specs.append(spec)
    assert len(specs) == dealt_first + dealt_first % 2
    assert Counter(spec.focus for spec in specs) == {0: len(specs) // 2, 1: len(specs) // 2}
    assert specs == plan(opponents=(RANDOM, BASE), games=40)[: len(specs)]
    under_way = min(under_way, len(specs) - 1)
    for spec in specs[under_way:]:
        evaluation.add(played(spec, 1, -1))
    assert evaluation.over == (under_way == 0)
    for spec in specs[:under_way]:
        evaluation.add(failed(spec))
    assert evaluation.over
    results = evaluation.results()
    assert sum(result.games for result in results) == len(specs) - under_way
    assert {(result.step, result.policy_uid) for result in results} == {(4, "step-4")}


@pytest.mark.parametrize(("rivals", "expected"), [(2, 32), (20, 40)])
def test_an_open_evaluation_without_a_cap_has_32_games_or_one_from_every_seat(rivals, expected):
    evaluation = opened(opponents=[scripted(f"rival-{n}") for n in range(rivals)])
    specs = list(iter(evaluation.next_game, None))
    assert len(specs) == expected
    assert len(set(map(opponent_of, specs))) == rivals


def test_an_open_evaluation_ends_at_its_cap_in_each_environment():
    evaluation = opened(max_games=6, envs=(TWO, ALONE))
    specs = []
    while (spec := evaluation.next_game()) is not None:
        assert not evaluation.over
        specs.append(spec)
    assert Counter(spec.env_id for spec in specs) == {"Two-v0": 6, "Alone-v0": 6}
    assert sorted(Counter(map(opponent_of, specs)).values()) == [2, 4, 6]
    for spec in reversed(specs):
        evaluation.add(played(spec, 1, -1))
    assert evaluation.over
    assert [(one.env_id, one.opponent) for one in evaluation.results()] == [
        ("Two-v0", "random_legal"),
        ("Two-v0", "base"),
        ("Alone-v0", NO_OPPONENT),
    ]
