"""Signals from records: which condition holds at which figures, when it begins and when it ends."""

from __future__ import annotations

import re
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from rlforge.config.compose import compose
from rlforge.config.overrides import assignment, key_of, parse_overrides
from rlforge.config.plugins import SIGNALS
from rlforge.config.schema import RunConfig
from rlforge.errors import ConfigError
from rlforge.record.judge import Judge, judged
from rlforge.record.signals import (
    Condition,
    Finding,
    Seen,
    Signal,
    causes,
    ranked,
    verdict,
    with_times,
)
from rlforge.statistics import wilson_interval
from rlforge.types import EvalResult

ENV = "SimpleTak-v0-train"

#: A line of metrics.jsonl of a run that learns.
HEALTHY = {
    "games": 400,
    "failed_games": 0,
    "samples": 384,
    "samples_too_long": 0.0,
    "moved": 0.01,
    "grad_norm": 0.7,
    "lr": 1e-3,
    "nonfinite_steps": 0.0,
    "skipped_no_signal": 0.0,
    "no_advantage_share": 0.1,
    "reward_spread": 2.0,
    "logprob_gap_mean": 5e-7,
    "importance_weight_mean": 0.99,
    "importance_capped_fraction": 0.01,
    "clip_fraction": 0.1,
    "entropy_share": 0.3,
    "seat_share_max": 0.5,
    "opponent_share_max": 0.5,
    "answer_entropy": 1.5,
    "info/legal_actions": 5.5,
    "learner_share": 0.6,
    "idle_share": 0.2,
    "lost_share": 0.05,
    f"collection-{ENV}/turn_limit_rate": 0.02,
    f"collection-{ENV}/timeout_rate": 0.0,
    f"collection-{ENV}/context_limit_rate": 0.0,
    f"collection-{ENV}/failed_rate": 0.0,
    f"collection-{ENV}/truncated_rate": 0.1,
    f"collection-{ENV}/format_success": 0.95,
    f"collection-{ENV}/invalid_rate": 0.1,
}


def row(step: int, **figures: float) -> dict[str, float]:
    games = {
        f"collection-{ENV}/{name[6:]}": x for name, x in figures.items() if name[:5] == "games"
    }
    others = {name: x for name, x in figures.items() if not name.startswith("games_")}
    others |= {name: x for name, x in figures.items() if name == "games_without_batch"}
    return {"step": step, **HEALTHY, **others, **games}


def evaluation(step: int, wins: int, draws: int = 0, games: int = 100) -> EvalResult:
    return EvalResult(
        step=step,
        env_id=ENV,
        opponent="base",
        policy_uid=f"step-{step}",
        games=games,
        wins=wins,
        draws=draws,
        losses=games - wins - draws,
        win_rate=wins / games,
        ci95=wilson_interval(wins, games),
        mean_reward=0.0,
        invalid_rate=0.0,
    )


def config(**settings) -> RunConfig:
    return RunConfig(**settings)


def names_after(judge: Judge, number: int, first: int = 1, **figures: float) -> list[str]:
    for step in range(first, first + number):
        judge.add(row(step, **figures))
    return [signal.name for signal in judge.open]


CASES = [
    ("turn_limit", 1, {"games_turn_limit_rate": 1.0}, "final"),
    ("turn_limit", 1, {"games_turn_limit_rate": 0.6}, "slow"),
    ("time_limit", 1, {"games_timeout_rate": 1.0}, "barren"),
    ("context_limit", 1, {"games_context_limit_rate": 1.0}, "final"),
    ("failed_games", 1, {"games_failed_rate": 0.3}, "slow"),
    ("cut_answers", 1, {"games_truncated_rate": 0.89}, "slow"),
    ("format", 1, {"games_format_success": 0.0}, "barren"),
    ("illegal_moves", 1, {"games_invalid_rate": 0.95}, "slow"),
    ("no_batch", 1, {"games_without_batch": 1024, "buffer_size": 0}, "final"),
    ("no_batch", 1, {"games_without_batch": 1024, "buffer_size": 3}, "slow"),
    ("no_advantage", 1, {"no_advantage_share": 1.0}, "barren"),
    ("equal_rewards", 1, {"reward_spread": 0.0}, "barren"),
    ("no_gradient", 1, {"grad_norm": 0.0}, "barren"),
    ("skipped_steps", 10, {"skipped_no_signal": 1.0}, "barren"),
    ("nan_steps", 1, {"nonfinite_steps": 1.0}, "slow"),
    ("nan_steps", 1, {"nonfinite_steps": 4.0, "grad_norm": float("nan")}, "final"),
    ("not_moved", 10, {"moved": 2.7e-8}, "barren"),
    ("moved_far", 1, {"moved": 3.0}, "slow"),
    ("logprob_gap", 1, {"logprob_gap_mean": 0.05}, "slow"),
    ("importance", 1, {"importance_weight_mean": 1.8}, "slow"),
    ("importance", 1, {"importance_weight_mean": 0.2}, "slow"),
    ("clipped", 1, {"clip_fraction": 0.8}, "slow"),
    ("low_entropy", 1, {"answer_entropy": 0.2}, "slow"),
    ("high_entropy", 1, {"entropy_share": 0.99}, "slow"),
    ("one_seat", 1, {"seat_share_max": 1.0}, "slow"),
    ("waiting", 3, {"learner_share": 0.01}, "slow"),
    ("idle", 10, {"idle_share": 0.97}, "slow"),
    ("thrown_away", 10, {"lost_share": 0.7}, "slow"),
    ("too_long", 1, {"samples": 0, "samples_too_long": 30.0}, "final"),
]


@pytest.mark.parametrize(("name", "updates", "figures", "weight"), CASES)
def test_a_condition_is_named_after_so_many_updates_with_its_figures(
    name, updates, figures, weight
):
    judge = Judge(config())
    assert name not in names_after(judge, updates - 1, **figures)
    names_after(judge, 1, updates, **figures)
    [signal] = [one for one in judge.open if one.name == name]
    assert (signal.step, signal.weight) == (updates, weight)
    assert ";" not in signal.text
    # The last lines of ``why`` list what to change without the sentences above.
    assert not signal.mend.startswith(("raise it", "lower it"))


def in_order(*names: str) -> list[str]:
    """Names of signals of the same update, as they are ranked."""
    about = {"step": 1, "text": "", "mend": "", "weight": "barren"}
    return [one.name for one in ranked(Signal(name=name, **about) for name in names)]


def test_a_cause_stands_before_what_it_brings_about():
    assert in_order("equal_rewards", "no_advantage", "turn_limit") == [
        *("turn_limit", "equal_rewards", "no_advantage")
    ]
    assert in_order("illegal_moves", "format", "high_entropy")[0] == "high_entropy"


def test_what_begins_later_or_is_of_another_policy_is_no_cause():
    about = {"text": "", "mend": "", "weight": "slow"}
    late = [Signal(name="turn_limit", step=5, **about), Signal(name="one_seat", step=1, **about)]
    assert causes(late) == {}
    assert [one.name for one in ranked(late)] == ["turn_limit", "one_seat"]
    of = [Signal(name=f"a/{name}", step=1, **about) for name in ("low_entropy", "equal_rewards")]
    other = Signal(name="b/equal_rewards", step=1, **about)
    assert causes([*of, other]) == {"a/equal_rewards": ["a/low_entropy"]}


def test_a_light_cause_weighs_what_it_brings_about_and_is_what_the_run_ends_with():
    slow = Signal(name="high_entropy", step=1, text="random", mend="load", weight="slow")
    barren = Signal(name="format", step=1, text="no form", mend="teach", weight="barren")
    other = Signal(name="idle", step=10, text="rests", mend="play", weight="slow")
    assert [one.name for one in ranked([other, barren, slow])] == ["high_entropy", "idle", "format"]
    assert verdict([other, barren, slow]) == "but nothing was learned: random; load"


def test_causes_are_conditions_and_none_brings_itself_about():
    direct = {name: {*SIGNALS.find(name).explains} for name in SIGNALS.own}
    assert set().union(*direct.values()) <= {*direct}
    whole = {name: {*names} for name, names in direct.items()}
    for _ in direct:
        whole = {name: names.union(*(whole[one] for one in names)) for name, names in whole.items()}
    assert [name for name, names in whole.items() if name in names] == []


def test_a_run_that_learns_has_no_signal():
    judge = Judge(config())
    judge.add(evaluation(0, wins=50))
    names_after(judge, 40)
    for step in (10, 20, 30, 40):
        judge.add(evaluation(step, wins=47))
    assert judge.signals == []


def test_every_condition_of_rlforge_can_hold():
    evaluated = {"below_start", "one_opponent", "warmup"}
    assert {name for name, *_ in CASES} | evaluated == set(SIGNALS.own)


def test_three_evaluations_below_the_start_are_named_and_two_are_not():
    judge = Judge(config())
    for step, wins in ((0, 50), (10, 20), (20, 18), (20, 15)):
        assert judge.add(evaluation(step, wins)) == []
    [signal] = judge.add(evaluation(30, wins=18))
    assert (signal.name, signal.text.count("18% wins instead of 50%")) == ("below_start", 1)


def test_games_against_one_opponent_of_several_are_named():
    pool = {"mode": "fixed", "fixed_opponents": ["random_legal", "win_block"]}
    judge = Judge(RunConfig(pool=type(RunConfig().pool)(**pool)))
    assert names_after(judge, 9, opponent_share_max=1.0) == []
    assert names_after(judge, 1, 10, opponent_share_max=1.0) == ["one_opponent"]
    assert names_after(Judge(config()), 10, opponent_share_max=1.0) == []


def test_a_rate_that_rises_in_most_updates_is_named_at_once_and_not_in_a_trial():
    for total, names in ((20, ["warmup"]), (9, [])):
        judge = Judge(asked(f"learner.total_updates={total}", "learner.warmup_updates=15"))
        assert judge.add(evaluation(0, wins=50)) == []
        assert names_after(judge, 1) == names


def asked(*overrides: str) -> RunConfig:
    return compose([*overrides]).config


def all_signals(config: RunConfig, number: int, **figures: float) -> dict[str, Signal]:
    judge = Judge(config)
    names_after(judge, number, **figures)
    return {one.name: one for one in judge.open}


def test_a_policy_that_stands_in_a_warm_up_is_mended_by_the_warm_up_alone():
    still = {"moved": 1e-9, "lr": 2e-8}
    long = asked("learner.total_updates=11", "learner.warmup_updates=100000")
    found = all_signals(long, 11, **still)
    assert {*found} == {"warmup", "not_moved"}
    assert found["not_moved"].weight == "barren"
    assert all(one.change == {"learner.warmup_updates": 1} for one in found.values())
    short = asked("learner.total_updates=100", "learner.warmup_updates=20")
    assert all_signals(short, 11, **still) == {}


def test_a_policy_that_stands_as_its_rate_ends_is_no_signal():
    ends = asked("learner.schedule=linear", "learner.learning_rate=1e-3")
    assert all_signals(ends, 12, moved=1e-8, lr=1e-5) == {}
    assert {*all_signals(ends, 12, moved=1e-8, lr=1e-3)} == {"not_moved"}


def test_a_gradient_that_is_cut_away_is_mended_by_its_bound_alone():
    found = all_signals(asked("learner.grad_clip=1e-12"), 12, moved=1e-9)["not_moved"]
    assert [*found.change] == ["learner.grad_clip"]
    assert "learner.grad_clip=1e-12" in found.text


@pytest.mark.parametrize("setting", ["top_k=1", "top_p=0.1", "min_p=0.9", "temperature=0.01"])
def test_answers_that_the_engines_make_alike_are_mended_by_what_makes_them_so(setting):
    alike = {"answer_entropy": 0.0, "reward_spread": 0.0, "no_advantage_share": 1.0}
    found = all_signals(asked(f"engine.{setting}"), 10, **alike, skipped_no_signal=1.0)
    assert {*found} == {"low_entropy", "equal_rewards", "no_advantage", "skipped_steps"}
    for one in found.values():
        assert [*one.change] == [f"engine.{setting.partition('=')[0]}"]
        assert f"engine.{setting}" in one.mend


def test_a_gap_of_log_probs_is_by_design_where_engines_leave_tokens_out():
    assert all_signals(asked("engine.top_p=0.8"), 1, logprob_gap_mean=0.2) == {}
    far = {"importance_weight_mean": 1.9, "clip_fraction": 0.8}
    found = all_signals(asked("engine.top_p=0.8"), 1, **far)
    assert {*found} == {"importance", "clipped"}
    assert all(one.change == {"engine.top_p": 1.0} for one in found.values())


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("overrides", "figures", "name", "change"),
    [
        (
            ["pool=fixed", "pool.fixed_opponents=[minimax]"],
            {"reward_spread": 0.0},
            "equal_rewards",
            {"pool.mode": "mirror"},
        ),
        (
            ["policies={main: {seats: [1]}}", "pool=fixed", "pool.fixed_opponents=[minimax]"],
            {"seat_share_max": 1.0},
            "one_seat",
            {"policies.main.seats": None},
        ),
        (
            ["engine=vllm"],
            {"logprob_gap_mean": 0.05},
            "logprob_gap",
            {"engine.name": "transformers"},
        ),
        (["learner.learning_rate=2"], {"moved": 5.6}, "moved_far", {"learner.learning_rate": 4e-3}),
        (
            ["learner.learning_rate=2e-6"],
            {"moved": 5e-8},
            "not_moved",
            {"learner.learning_rate": 9e-5},
        ),
    ],
)
def test_a_change_is_of_the_cause_and_composes(overrides, figures, name, change):
    found = all_signals(asked(*overrides), 10, **figures)[name]
    assert found.change == change
    asked(*overrides, *(assignment(key, new) for key, new in change.items()))


def test_a_reward_of_another_package_is_left_out_where_evaluations_fall():
    own = {"name": "role_advantage", "decay": 0.5}
    rewards = {"final": [{"name": "mine:Turned"}, own]}
    judge = Judge(config(rewards=type(RunConfig().rewards)(**rewards)))
    for step, wins in ((0, 50), (10, 20), (20, 18), (30, 15)):
        judge.add(evaluation(step, wins))
    [signal] = judge.open
    assert signal.change == {"rewards.final": [own]}


def test_steps_of_another_package_that_are_not_finite_are_mended_by_a_person():
    judge = Judge(config(algorithm=type(RunConfig().algorithm)(name="mine:Loss")))
    names_after(judge, 2, nonfinite_steps=4.0, grad_norm=float("nan"))
    [signal] = judge.open
    assert signal.change == {}
    assert "algorithm.name=mine:Loss" in signal.mend


def test_games_that_all_players_win_together_need_no_other_opponents():
    for overrides, mend in (
        (["env=openspiel_tiny_hanabi"], "sft"),
        (["env.train=[{id: Sudoku-v0-train, num_players: 1}]"], "sft"),
        ([], "opponents"),
    ):
        assert mend in all_signals(asked(*overrides), 1, reward_spread=0.0)["equal_rewards"].mend


def test_rewards_that_make_different_games_equal_are_what_is_mended():
    found = all_signals(asked(), 1, reward_spread=0.0, raw_reward_spread=2.0)["equal_rewards"]
    assert "rewards" in found.mend
    assert "opponents" not in found.mend


def in_games(figure: str, **shares: float) -> Signal | None:
    """The signal of three games with these shares; underscores stand for hyphens."""
    judge = Judge(asked("env=multi"))
    games = {f"collection-{env.replace('_v0_', '-v0-')}/{figure}": x for env, x in shares.items()}
    for step in (1, 2):
        judge.add({"step": step, "games": 400, **games})
    return next(iter(judge.open), None)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("figure", "worst"),
    [
        ("turn_limit_rate", 1.0),
        ("timeout_rate", 1.0),
        ("context_limit_rate", 1.0),
        ("failed_rate", 1.0),
        ("truncated_rate", 1.0),
        ("invalid_rate", 1.0),
        ("format_success", 0.0),
    ],
)
def test_what_holds_in_some_of_the_games_leaves_the_others_to_learn_from(figure, worst):
    one = {"TicTacToe_v0_train": worst}
    others = {"SimpleTak_v0_train": 1 - worst, "kuhn_poker": 1 - worst}
    some = in_games(figure, **one, **others)
    assert some is not None
    assert some.weight == "slow"
    unseen = in_games(figure, **one)
    assert unseen is not None
    assert unseen.weight == "slow"
    each = in_games(figure, **dict.fromkeys((*one, *others), worst))
    assert each is not None
    assert each.weight in ("barren", "final")
    assert each.text.endswith(", and 1 more")


def test_each_environment_that_is_cut_is_named_and_mended():
    found = in_games("turn_limit_rate", TicTacToe_v0_train=1.0, kuhn_poker=0.8)
    assert found is not None
    assert found.change == {"env.train.1.max_turns": 200, "env.train.2.max_turns": 200}
    assert found.text == (
        "all games of TicTacToe-v0-train are cut at max_turns=20, and 80% of all games of "
        "kuhn_poker are cut at max_turns=10"
    )


def test_a_signal_is_told_once_when_it_begins_and_once_when_it_ends():
    judge = Judge(config())
    assert [one.name for one in judge.add(row(1, reward_spread=0.0))] == ["equal_rewards"]
    assert judge.add(row(2, reward_spread=0.0)) == []
    assert judge.add(row(3)) == judge.add(row(4)) == []
    [ended] = judge.add(row(5))
    assert (ended.step, ended.until) == (1, 5)
    assert judge.open == []


def test_what_is_played_without_a_batch_adds_to_the_update_before_and_ends_no_signal():
    judge = Judge(config())
    cut = {f"collection-{ENV}/context_limit_rate": 1.0}
    wait = {"step": 0, "games": 512, **cut, "games_without_batch": 512, "buffer_size": 0}
    assert [(one.name, one.step) for one in judge.add(wait)] == [("context_limit", 0)]
    assert judge.final == []  # until it is shown again
    assert [one.name for one in judge.add({**wait, "games_without_batch": 1024})] == ["no_batch"]
    assert [one.name for one in judge.final] == ["context_limit"]
    names_after(judge, 2)
    assert judge.final == []  # the newest batch does not show it
    for _ in range(5):
        assert judge.add(row(2) | {"games": 900}) == []
    assert [one.until for one in judge.add(row(3))] == [3, 3]


def test_thresholds_of_the_configuration_replace_those_of_the_condition_and_null_switches_off():
    figures = {"games_turn_limit_rate": 0.6, "reward_spread": 0.0}
    judge = Judge(config(signals={"turn_limit": 0.7, "equal_rewards": None}))
    assert names_after(judge, 1, **figures) == []


def test_an_unknown_signal_is_refused_with_a_near_name():
    problems = dict(config(signals={"turn_limits": 1.0}).clashes())
    assert "did you mean turn_limit" in problems["signals.turn_limits"]


@pytest.fixture
def own(monkeypatch):
    """A user's module with two conditions, of which the second fails."""

    def slow(seen: Seen, threshold: float) -> Finding | None:
        games = seen.now("games")
        return None if games is None or games > threshold else Finding(text="few", mend="more")

    def broken(seen: Seen, threshold: float) -> Finding | None:
        raise ZeroDivisionError("of mine")

    module = types.ModuleType("own_signals")
    module.FEW = Condition("few games", 500, ("games",), slow)
    module.BROKEN = Condition("broken", 1, (), broken)
    monkeypatch.setitem(sys.modules, "own_signals", module)


def test_conditions_of_users_are_judged_and_one_that_fails_is_named_and_left_out(own):
    judge = Judge(config(signals={"own_signals:FEW": 450, "own_signals:BROKEN": None}))
    assert names_after(judge, 1) == ["own_signals:FEW"]
    judge = Judge(config(signals={"own_signals:BROKEN": 1}))
    names_after(judge, 2)
    [signal] = judge.signals
    assert "fails: ZeroDivisionError: of mine" in signal.text
    assert names_after(judge, 3, 3) == ["own_signals:BROKEN"]


@pytest.fixture
def judge_of(own, monkeypatch):
    """Makes a judge by checks, each of a condition called by its name, and a healthy one behind."""

    def made(*checks) -> Judge:
        # Modules are imported once: each has a name of its own.
        names = [f"own_{check.__name__}_{id(check)}" for check in checks]
        for name, check in zip(names, checks, strict=True):
            module = types.ModuleType(name)
            module.OWN = Condition("own", 1, (), check)
            monkeypatch.setitem(sys.modules, name, module)
        return Judge(
            config(signals={f"{name}:OWN": 1 for name in names} | {"own_signals:FEW": 500})
        )

    return made


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("few", "returns str, and not a Finding"),
        (True, "returns bool"),
        (Finding(text=5, mend=""), "text is no text"),
        (Finding(text="", mend=None), "mend is no text"),
        (Finding(text="", mend="", weight="bad"), "weight is none of slow, barren, final"),
        (Finding(text="", mend="", change=["name"]), "change is no mapping"),
        (Finding(text="", mend="", change={"pool.mod": 1}), "to change 'pool.mod', which"),
        (Finding(text="", mend="", change={"env.train.9.max_turns": 1}), "to change 'env.train.9"),
        (Finding(text="", mend="", change={"name": object()}), "value of name that is none: Obj"),
        (Finding(text="", mend="", change={"name": float("nan")}), "value of name that is none"),
    ],
)
def test_a_wrong_finding_is_named_once_and_left_out_and_later_conditions_are_judged(
    judge_of, returned, said
):
    asked = []

    def wrong(seen: Seen, threshold: float) -> Finding | None:
        asked.append(seen.step)
        return returned

    judge = judge_of(wrong)
    names_after(judge, 5)
    named, healthy = judge.signals
    assert named.text.startswith("signal 'own_wrong")
    assert said in named.text
    assert healthy.name == "own_signals:FEW"
    assert asked == [1]


def test_what_a_signal_says_is_one_line_and_no_zero_is_negative(judge_of):
    def lines(seen: Seen, threshold: float) -> Finding | None:
        raise ValueError("one\n\n  two")

    def zeros(seen: Seen, threshold: float) -> Finding | None:
        text = f"{-0.0:g} nats,\n{-1e-9:.0%}, {-0.04:.1f} of -0.5 and 1-0"
        return Finding(text=text, mend="a\nb")

    judge = judge_of(lines, zeros)
    names_after(judge, 1)
    failed, told, _ = judge.signals
    assert "ValueError: one two (" in failed.line
    assert told.line == "0 nats, 0%, 0.0 of -0.5 and 1-0; a b"


def test_a_condition_of_wrong_parts_is_refused_where_it_is_made():
    with pytest.raises(ConfigError, match="a number as threshold"):
        Condition("few", "many", (), lambda seen, threshold: None)
    with pytest.raises(ConfigError, match="names in a tuple"):
        Condition("few", 1, "moved", lambda seen, threshold: None)


def two_policies() -> Judge:
    second = "policies.second={opponents: [first], learner: {learning_rate: 1e-12}}"
    return Judge(compose(["policies.first={opponents: [second]}", second]).config)


def take_turns(judge: Judge, updates: int, **figures: float) -> None:
    """Give updates of the first policy, which learns, and of the second, by turns."""
    shared = {"samples", *(name for name in HEALTHY if "/" in name or name.endswith("games"))}
    for step in range(1, updates + 1):
        line = row(step)
        if step % 2 == 0:
            own = {**{name: x for name, x in line.items() if name not in shared}, **figures}
            line = {name: x for name, x in line.items() if name in {"step", *shared}}
            line |= {f"policies/second/{name}": x for name, x in own.items() if name != "step"}
        judge.add(line)


def test_each_policy_is_judged_by_its_own_figures_and_named_with_its_own_keys():
    judge = two_policies()
    take_turns(judge, 19, moved=0.0)
    assert judge.signals == []
    take_turns(judge, 26, moved=0.0)
    [signal] = judge.signals
    assert (signal.name, signal.condition, signal.policy) == (
        "second/not_moved",
        "not_moved",
        "second",
    )
    assert signal.text.startswith("policy second: ")
    assert "policies.second.learner.learning_rate" in signal.mend
    assert [*signal.change] == ["policies.second.learner.learning_rate"]
    assert signal.weight == "slow", "the other policy learns"


def test_what_all_policies_play_is_told_once_and_the_first_is_named_by_its_own_figures():
    judge = two_policies()
    take_turns(judge, 20)
    assert judge.signals == []
    names_after(judge, 1, 21, games_turn_limit_rate=1.0, reward_spread=0.0)
    take = {f"collection-{ENV}/turn_limit_rate": 1.0, "games": 900}
    judge.add({"step": 22, **take, "policies/second/reward_spread": 0.0})
    found = {one.name: (one.text.partition(":")[0], one.weight) for one in judge.open}
    assert found.pop("turn_limit")[1] == "final"
    assert found["second/equal_rewards"] == ("policy second", "barren")
    assert found["equal_rewards"][0] == "policy first"
    assert len(found) == 2


def test_files_give_the_signals_of_the_run():
    rows = [row(step, reward_spread=0.0 if step < 3 else 1.0) for step in range(1, 7)]
    found = judged(config(), rows, [evaluation(step, 10) for step in (0, 2, 4)])
    assert [(one.name, one.step, one.until) for one in found] == [("equal_rewards", 1, 5)]


def test_each_name_is_told_once_with_all_its_times_as_far_as_there_is_room():
    times = [(one, one + 2) for one in range(10, 70, 10)]
    again = [
        Signal(name="x", step=step, until=end, text="", mend="", weight="slow")
        for step, end in times
    ]
    still = Signal(name="y", step=3, text="", mend="", weight="barren")
    assert [(one.name, one.step, when) for one, when in with_times([*again, still])] == [
        ("y", 3, "since update 3"),
        ("x", 60, "updates 30 to 32, 40 to 42, 50 to 52, 60 to 62 and 2 times before, ended"),
    ]


def signal(weight: str, until: int | None = None) -> Signal:
    return Signal(name="x", step=1, text="it stands", mend="push it", weight=weight, until=until)


@pytest.mark.parametrize(
    ("signals", "clause"),
    [
        ([], ""),
        ([signal("barren", until=3)], ""),
        ([signal("slow")], "but it stands; push it"),
        (
            [replace(signal("slow"), name="y"), signal("final")],
            "but nothing was learned: it stands; push it",
        ),
    ],
)
def test_the_verdict_is_on_signals_that_still_hold(signals, clause):
    assert verdict(signals) == clause


def test_the_page_lists_every_condition_with_its_threshold():
    page = (Path(__file__).parents[2] / "docs/signals.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+)` \|.*\| (\S+) \|$", page, re.MULTILINE))
    assert listed == {name: f"{SIGNALS.find(name).threshold:g}" for name in SIGNALS.own}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "updates", "figures", "weight"), CASES)
def test_what_a_signal_proposes_to_change_is_a_configuration(name, updates, figures, weight):
    judge = Judge(config())
    names_after(judge, updates, **figures)
    [signal] = [one for one in judge.open if one.name == name]
    lines = [assignment(key, given) for key, given in signal.change.items()]
    changed = compose(["algorithm=grpo", *lines]).config
    assert all(key_of(one) in signal.change for one in parse_overrides(lines))
    assert changed != compose(["algorithm=grpo"]).config or not lines


def test_the_turn_limit_is_raised_where_it_is_set_and_figures_that_are_no_numbers_say_nothing():
    judge = Judge(config())
    names_after(judge, 1, games_turn_limit_rate=1.0, kl="much")
    [signal] = judge.open
    assert signal.change == {"env.train.0.max_turns": 400}
