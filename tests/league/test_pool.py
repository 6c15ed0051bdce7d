import dataclasses
import functools
import json
from collections import Counter

import pytest
import trueskill
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import game_record, game_spec, scripted, seat, turn

from rlforge.config.plugins import MODES
from rlforge.config.pool import ApiConfig, PoolConfig
from rlforge.errors import RunError
from rlforge.league.budget import ApiBudget
from rlforge.league.exploration import ExplorationTracker
from rlforge.league.matchmaking import Matchmaking
from rlforge.league.payoff import Results
from rlforge.league.pool import RECENT_GAMES, ModelPool
from rlforge.record.results import ApiUsage, PoolSnapshot
from rlforge.system.values import from_json, to_json
from rlforge.types import Checkpoint, EnvSpec, GameRecord, PolicyRef

RANDOM, MINIMAX = scripted("random_legal"), scripted("minimax")
BASE = PolicyRef(uid="base", kind="checkpoint")


def checkpoint(version: int, name: str = "step", parent: int | None = -1) -> Checkpoint:
    """A version of the policy; parent: the version before it, unless one is named or None."""
    parent = version - 1 if parent == -1 else parent
    return Checkpoint(
        uid=f"{name}-{version}",
        version=version,
        path=f"checkpoints/{name}-{version}" if version else None,
        parent_uid=f"{name}-{parent}" if version and parent is not None else None,
        name="" if name == "step" else name,
        metrics={"loss": 0.5},
    )


def pool_of(versions: int, fixed=(RANDOM, MINIMAX), seed=7, **config) -> ModelPool:
    pool = ModelPool(PoolConfig(**config), fixed, seed)
    for version in range(versions):
        pool.add_checkpoint(checkpoint(version))
    return pool


def record(
    policies, rewards, *, trained=None, purpose="train", actions="abc", env_id="Game-v0", error=None
) -> GameRecord:
    """A game of ``policies``; trained None means the seats of the first policy's uid."""
    trained = [p.uid == policies[0].uid for p in policies] if trained is None else trained
    seats = [
        seat(place, policy, trained=trained[place] and purpose == "train")
        for place, policy in enumerate(policies)
    ]
    env = EnvSpec(id=env_id, num_players=len(seats))
    ended = {"end_reason": "error", "error": error} if error else {}
    return game_record(
        game_spec("g", env, seats, purpose=purpose),
        [turn(place % len(seats), action) for place, action in enumerate(actions)],
        {} if error else dict(enumerate(rewards)),
        **ended,
    )


def entries(pool: ModelPool) -> dict[str, dict]:
    return {entry.uid: dataclasses.asdict(entry) for entry in pool.snapshot().entries}


def rating(pool: ModelPool, uid: str) -> tuple[float, float]:
    entry = entries(pool)[uid]
    return entry["mu"], entry["sigma"]


def test_the_newest_checkpoints_are_active_and_fixed_opponents_always_are():
    pool = pool_of(5, max_active_lora=3)
    assert pool.current() == checkpoint(4)
    assert [c.uid for c in pool.active()] == ["step-4", "step-3", "step-2"]
    assert pool.fixed() == [RANDOM, MINIMAX]
    assert pool.policy("step-0") == PolicyRef(uid="step-0", kind="checkpoint")
    active = {uid for uid, entry in entries(pool).items() if entry["active"]}
    assert active == {"step-4", "step-3", "step-2", "random_legal", "minimax"}


def test_games_under_way_need_their_opponents_and_every_version_since_they_began():
    pool = pool_of(9, max_active_lora=2)
    active = {"step-8", "step-7"}
    assert pool.needed([]) == active
    lagged = record([checkpoint(5).policy(), checkpoint(2).policy()], [1, -1]).spec
    assert pool.needed([lagged]) == active | {"step-2", "step-5", "step-6"}
    scripted = record([checkpoint(7).policy(), RANDOM], [1, -1]).spec
    assert pool.needed([scripted]) == active
    assert pool.needed([scripted, lagged]) == pool.needed([lagged])


def test_before_the_first_checkpoint_there_is_no_current_one():
    pool = pool_of(0)
    assert pool.active() == []
    assert pool.snapshot().current is None
    for ask in (pool.current, lambda: pool.opponents(1)):
        with pytest.raises(RunError, match="no checkpoint yet"):
            ask()


def test_registering_again_is_harmless_but_another_under_the_same_uid_is_refused():
    pool = pool_of(3)
    pool.add_checkpoint(checkpoint(1))
    assert pool.current().uid == "step-2"
    with pytest.raises(RunError, match="step-1"):
        pool.add_checkpoint(dataclasses.replace(checkpoint(1), path="elsewhere"))
    with pytest.raises(RunError, match="random_legal"):
        pool.add_fixed(dataclasses.replace(RANDOM, path_or_name="elsewhere"))
    with pytest.raises(RunError, match="step-1"):
        pool.add_fixed(checkpoint(1).policy())
    with pytest.raises(RunError, match=r"'step-41'.*parent first"):
        pool.add_checkpoint(checkpoint(42))
    with pytest.raises(RunError, match="did you mean step-1"):
        pool.policy("step-11")


@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 3), st.integers(0, 3))
def test_lagged_opponents_are_active_and_within_the_lag_where_any_is(versions, active, low, width):
    """A lag counts registered versions and not updates."""
    lag_range = [low, low + width]
    pool = pool_of(0, mode="lagged", max_active_lora=active, lag_range=lag_range, history="newest")
    for place in range(versions):
        pool.add_checkpoint(checkpoint(10 * place, parent=None))
    lags = {versions - 1 - policy.version // 10 for policy in pool.opponents(20)}
    there = range(min(active, versions))
    wanted = {lag for lag in there if low <= lag <= low + width}
    assert lags <= (wanted or {there[-1]})


def test_the_learner_is_one_player_whose_newest_versions_count():
    pool = pool_of(1)
    old = pool.current().policy()
    for _ in range(RECENT_GAMES):
        pool.push_outcome(record([old, RANDOM], [-1, 1]))
        pool.push_outcome(record([old, MINIMAX], [-1, 1]))
    pool.add_checkpoint(checkpoint(1))
    middle = pool.current().policy()
    for _ in range(3):
        pool.push_outcome(record([middle, MINIMAX], [0, 0]))
    pool.add_checkpoint(checkpoint(2))
    new = pool.current().policy()
    for _ in range(RECENT_GAMES):
        pool.push_outcome(record([new, RANDOM], [1, -1]))
    pool.push_outcome(record([new, MINIMAX], [1, -1]))
    assert pool.learner_results("random_legal") == Results(wins=RECENT_GAMES)
    assert pool.learner_results("minimax") == Results(wins=1, draws=3, losses=RECENT_GAMES)


def test_games_that_a_version_played_while_it_was_current_are_not_the_learners_against_it():
    pool = pool_of(2)
    pool.push_outcome(record([checkpoint(1).policy(), checkpoint(0).policy()], [1, -1]))
    assert pool.learner_results("step-0") == Results(wins=1)
    pool.add_checkpoint(checkpoint(2))
    assert pool.learner_results("step-1") == Results()
    pool.push_outcome(record([checkpoint(2).policy(), checkpoint(1).policy()], [-1, 1]))
    assert pool.learner_results("step-1") == Results(losses=1)
    assert pool.learner_results("step-2") == Results()


def test_prioritized_draws_those_that_beat_the_learner():
    pool = pool_of(2, mode="prioritized")
    current = pool.current().policy()
    for _ in range(8):
        pool.push_outcome(record([current, RANDOM], [1, -1]))
        pool.push_outcome(record([current, MINIMAX], [-1, 1]))
    assert pool.weights() == pytest.approx(
        {"random_legal": 0.01 / 1.07, "minimax": 0.81 / 1.07, "step-0": 0.25 / 1.07}
    )
    even = pool_of(2, mode="prioritized", weighting="even")
    even.load_state_dict(pool.state_dict())
    assert even.weights() == pytest.approx(
        {"random_legal": 0.09 / 0.43, "minimax": 0.09 / 0.43, "step-0": 0.25 / 0.43}
    )


@pytest.mark.parametrize("mode", ["nash", "alpha_rank"])
def test_meta_strategies_take_the_games_between_members(mode):
    pool = pool_of(3, mode=mode, fixed=())
    for _ in range(20):
        pool.push_outcome(record([checkpoint(1).policy(), checkpoint(0).policy()], [1, -1]))
    assert pool.weights() == pytest.approx({"step-0": 0, "step-1": 1}, abs=1e-9)


def test_versions_between_those_that_stay_play_while_they_are_current():
    pool = pool_of(0, mode="random", fixed=(), keep_every=3, max_active_lora=3)
    for version in range(12):
        pool.add_checkpoint(checkpoint(version))
        current = pool.current()
        assert current.version == version
        pool.push_outcome(record([current.policy(), *pool.opponents(1)], [1, -1]))
    assert [c.version for c in pool.active()] == [11, 9, 6]
    assert set(pool.weights()) == {"step-9", "step-6"}
    assert entries(pool)["step-10"]["active"] is False
    assert entries(pool)["step-10"]["rated_games"] == 1
    mu, sigma = rating(pool, "step-11")
    pool.add_checkpoint(checkpoint(12))
    assert rating(pool, "step-12") == (mu, min(25 / 3, 2 * sigma))


def test_the_strongest_and_the_most_diverse_stay():
    pools = [pool_of(3, history=history, max_active_lora=3) for history in ("strongest", "diverse")]
    for pool in pools:
        for version, reward in [(0, 1), (1, -1), (2, 0)] * 9:
            met = [checkpoint(version).policy(), RANDOM]
            pool.push_outcome(record(met, [reward, -reward], purpose="eval"))
        pool.add_checkpoint(checkpoint(3))
    strongest, diverse = ([c.version for c in pool.active()] for pool in pools)
    assert strongest == [3, 2, 0]  # without the one that lost
    assert diverse == [3, 1, 0]  # without the one as even as the current one, which has not played


def test_draws_follow_the_weights():
    pool = pool_of(3, mode="ts_dist", temperature=2.0)
    for _ in range(3):
        pool.push_outcome(record([checkpoint(2).policy(), RANDOM], [1, -1]))
    weights = pool.weights()
    assert weights["random_legal"] < weights["minimax"]
    draws = Counter(policy.uid for policy in pool.opponents(20_000))
    for uid, weight in weights.items():
        assert draws[uid] / 20_000 == pytest.approx(weight, abs=0.02)
    first, again, other = (pool_of(3, mode="random", seed=seed).opponents(30) for seed in (1, 1, 2))
    assert first == again != other  # and the seed


def test_match_quality_and_exploration_look_at_what_was_played():
    quality = pool_of(1, mode="match_quality", temperature=0.1)
    current = quality.current().policy()
    for _ in range(4):
        quality.push_outcome(record([current, RANDOM], [1, -1]))
        quality.push_outcome(record([current, MINIMAX], [0, 0]))
    assert quality.weights()["minimax"] > quality.weights()["random_legal"]
    explore = pool_of(2, mode="exploration", temperature=0.1)
    current = explore.current().policy()
    explore.push_outcome(record([current, RANDOM], [1, -1], actions="aaaaaaaa"))
    explore.push_outcome(record([current, MINIMAX], [1, -1], actions="abcdefgh"))
    weights = explore.weights()
    assert weights["minimax"] == pytest.approx(weights["step-0"])  # never met: hoped for the most
    assert weights["random_legal"] < weights["minimax"]


def test_training_and_evaluation_games_rate_and_count():
    pool = pool_of(2)
    current = pool.current().policy()
    pool.push_outcome(record([current, RANDOM], [1, -1]))
    mine, theirs = trueskill.rate_1vs1(trueskill.Rating(), trueskill.Rating())
    pool.push_outcome(record([RANDOM, current], [0, 0], purpose="eval"))
    theirs, mine = trueskill.rate_1vs1(theirs, mine, drawn=True)
    assert rating(pool, "step-1") == pytest.approx((mine.mu, mine.sigma))
    assert rating(pool, "random_legal") == pytest.approx((theirs.mu, theirs.sigma))
    met = pool.snapshot().matches
    assert met == {"step-1": {"random_legal": 2}, "random_legal": {"step-1": 2}}
    pool.push_outcome(record([current, current], [1, -1]))
    assert pool.snapshot().results == {
        "step-1": {"random_legal": [1, 1, 0]},
        "random_legal": {"step-1": [0, 1, 1]},
    }
    assert entries(pool)["step-1"]["games"] == 3


#: A version, its past and two players, as rated after some updates.
RATED = {"step-9": 27.0, "step-8": 26.0, "step-7": 23.0, "random_legal": 19.0, "minimax": 37.0}


def rated_pool(**config) -> ModelPool:
    pool = pool_of(0, max_active_lora=3, **config)
    for version in range(7, 10):
        pool.add_checkpoint(checkpoint(version, parent=None))
    state = pool.state_dict()
    state["ratings"]["own"] = {uid: [mu, 1.0] for uid, mu in RATED.items()}
    pool.load_state_dict(state)
    return pool


@pytest.mark.parametrize("mode", ["match_quality", "ts_dist"])
def test_by_default_near_opponents_are_preferred_and_far_ones_are_rare(mode):
    weights = rated_pool(mode=mode).weights()
    near, middle, weak, strong = (
        weights[uid] for uid in ("step-8", "step-7", "random_legal", "minimax")
    )
    assert 0.4 < near < 0.75
    assert near > 1.3 * middle > 1.3 * 1.3 * weak > 0
    assert 0.02 < weak < 0.2
    assert strong < weak
    assert "step-9" not in weights
    assert rated_pool(mode=mode, include_current=True).weights()["step-9"] > 0.3
    flat = rated_pool(mode=mode, temperature=1000.0).weights()
    assert flat == pytest.approx(dict.fromkeys(flat, 0.25), abs=0.01)


def test_games_count_once_and_are_rated_against_other_policies_only():
    pool = pool_of(2)
    current = pool.current().policy()
    pool.push_outcome(record([current, current], [1, -1]))
    pool.push_outcome(record([current, current, current], [1, 0, 0]))
    assert rating(pool, "step-1") == rating(pool, "step-0") == (25.0, 8.333333333333334)
    pool.push_outcome(record([current], [1]))  # of a single player: no match
    assert pool.snapshot().matches == {"step-1": {"step-1": 2}}
    pool.push_outcome(record([current, RANDOM], [1, -1], purpose="eval"))
    pool.push_outcome(record([current, RANDOM, RANDOM], [1, 0, -1], purpose="eval"))
    rated = {uid: entry["rated_games"] for uid, entry in entries(pool).items()}
    assert rated == {"step-0": 0, "step-1": 2, "random_legal": 2, "minimax": 0}
    assert entries(pool)["step-1"]["games"] == 5


def test_games_of_many_count_each_pair_once():
    pool = pool_of(1)
    current = pool.current().policy()
    pool.push_outcome(record([current, RANDOM, RANDOM, MINIMAX], [3, 2, 1, 0]))
    assert pool.snapshot().matches == {
        "step-0": {"random_legal": 1, "minimax": 1},
        "random_legal": {"step-0": 1, "random_legal": 1, "minimax": 1},
        "minimax": {"step-0": 1, "random_legal": 1},
    }
    assert rating(pool, "step-0") > rating(pool, "random_legal") > rating(pool, "minimax")


def test_opponents_met_only_in_evaluations_are_rated_but_never_drawn():
    pool = pool_of(1, mode="random")
    current = pool.current().policy()
    with pytest.raises(RunError, match="'base', which the pool does not know"):
        pool.push_outcome(record([current, BASE], [1, -1]))
    pool.push_outcome(record([current, BASE], [1, -1], purpose="eval"))
    base = entries(pool)["base"]
    assert (base["role"], base["active"], base["games"]) == ("guest", False, 1)
    assert base["mu"] < 25
    assert "base" not in pool.weights()
    rated = rating(pool, "base")
    pool.add_fixed(BASE)
    assert rating(pool, "base") == rated
    assert "base" in pool.weights()


def test_exploration_counts_training_games_by_opponent(monkeypatch):
    single = functools.partial(ExplorationTracker, ngram=1)
    monkeypatch.setattr("rlforge.league.pool.ExplorationTracker", single)
    pool = pool_of(2)
    current = pool.current().policy()
    pool.push_outcome(record([current, RANDOM], [1, -1], actions="aab"))
    pool.push_outcome(record([current, current], [1, -1], actions="ab"))
    pool.push_outcome(record([current, MINIMAX], [1, -1], actions="ab", purpose="eval"))
    exploration = pool.snapshot().exploration
    assert exploration["opponents"]["random_legal"]["Game-v0"]["coverage"] == pytest.approx(2 / 3)
    assert exploration["opponents"]["step-1"]["Game-v0"]["unique"] == 2
    assert set(exploration["opponents"]) == {"random_legal", "step-1"}
    assert exploration["envs"]["Game-v0"]["ngrams"] == 5
    # A version that retires keeps its rating and loses its window.
    small, old, newer = pool_of(2, max_active_lora=2), *(checkpoint(n).policy() for n in (0, 1))
    for active in ({"step-0"}, set()):
        small.push_outcome(record([newer, old], [1, -1]))
        assert set(small.snapshot().exploration["opponents"]) == active
        small.add_checkpoint(checkpoint(2))
    assert entries(small)["step-0"]["games"] == 2


def test_the_ladder_takes_the_start_under_all_its_names_as_one_member_at_zero():
    pool = pool_of(2, fixed=(BASE,))
    first, second = (checkpoint(version).policy() for version in (0, 1))
    for _ in range(30):
        pool.push_outcome(record([second, first], [1, -1], purpose="eval"))
        pool.push_outcome(record([second, BASE], [1, -1], purpose="eval"))
        pool.push_outcome(record([first, BASE], [1, -1], purpose="eval"))
    best, start = pool.snapshot().ladder
    assert (best.uids, best.games) == (("step-1",), 60)
    assert (start.uids, start.elo) == (("step-0", "base"), 0.0)
    assert 0 < best.low < best.elo < best.high


def test_a_mode_that_was_changed_draws_from_the_past_and_survives_a_resume():
    pool = pool_of(4, mode="mirror", max_active_lora=3, fixed=())
    assert set(pool.weights()) == {"step-3"}
    pool.use_mode("fictitious")
    assert set(pool.weights()) > {"step-1", "step-2"}
    resumed = pool_of(4, mode="mirror", max_active_lora=3, fixed=())
    resumed.load_state_dict(json.loads(json.dumps(pool.state_dict())))
    assert resumed.weights() == pool.weights()
    assert resumed.snapshot().mode == "fictitious"
    other = pool_of(4, mode="random", max_active_lora=3, fixed=())
    other.load_state_dict(pool_of(4, mode="mirror", max_active_lora=3, fixed=()).state_dict())
    assert other.snapshot().mode == "random", "the configuration's, which was not changed"


def test_games_with_the_past_are_counted_for_the_newer_version():
    pool = pool_of(3)
    old, middle, new = (checkpoint(version).policy() for version in range(3))
    pool.push_outcome(record([new, old], [1, -1]))
    pool.push_outcome(record([old, middle], [0, 0]))
    pool.push_outcome(record([middle, new], [1, -1]))
    pool.push_outcome(record([new, RANDOM], [1, -1]))
    pool.push_outcome(record([new, new], [1, -1]))
    assert pool.games_with_past() == (3, 1.5)
    before = pool.state_dict()
    pool.push_outcome(record([new, BASE], [], error="timed out"))
    assert pool.state_dict() == before  # a failed game changes nothing


@settings(max_examples=30)
@given(
    st.sampled_from(MODES.names()),
    st.sampled_from(["newest", "spaced", "strongest", "diverse"]),
    st.integers(1, 2),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([-1, 0, 1])), max_size=10),
    st.integers(0, 2**32),
)
def test_a_resumed_pool_goes_on_like_one_that_never_stopped(mode, history, keep, games, seed):
    config = {"mode": mode, "history": history, "keep_every": keep, "max_active_lora": 3}

    def play(pool: ModelPool) -> list[PolicyRef]:
        met = pool.opponents(5)
        for index, reward in games:
            opponent = met[index]
            actions = f"{reward}{index}ab"
            pool.push_outcome(
                record([pool.current().policy(), opponent], [reward, -reward], actions=actions)
            )
        return met + pool.opponents(5)

    pool = pool_of(4, seed=seed, **config)
    play(pool)
    resumed = ModelPool(PoolConfig(**config), (RANDOM, MINIMAX), seed=0)
    resumed.load_state_dict(json.loads(json.dumps(pool.state_dict())))
    for each in (pool, resumed):
        each.add_checkpoint(checkpoint(4))
    assert play(resumed) == play(pool)
    snapshot = pool.snapshot()
    written = json.loads(json.dumps(to_json(snapshot)))
    assert resumed.snapshot() == snapshot == from_json(PoolSnapshot, written)
    assert (snapshot.current, snapshot.mode) == ("step-4", mode)
    assert snapshot.unrated_out_of_range == 0
    assert written["entries"][0].keys() >= {"kind", "path_or_name", "version", "name", "sigma"}
    assert resumed.state_dict() == pool.state_dict()


# ---------------------------------------------------------------- several policies


def league(rival_mode: str = "random") -> ModelPool:
    """A main policy in self-play, and one that meets its versions and a fixed opponent."""
    drawn = PoolConfig(mode=rival_mode, max_active_lora=2)
    policies = {
        "main": Matchmaking(config=PoolConfig(), fixed=(), meets=("main",)),
        "rival": Matchmaking(config=drawn, fixed=(RANDOM,), meets=("main",)),
    }
    pool = ModelPool(PoolConfig(), [], 7, policies)
    for name in ("main", "rival"):
        pool.add_checkpoint(checkpoint(0, name))
    for name, version, parent in (("main", 1, 0), ("rival", 2, 0), ("main", 3, 1), ("rival", 4, 2)):
        pool.add_checkpoint(checkpoint(version, name, parent))
    return pool


def test_each_policy_has_its_versions_its_opponents_and_its_mode():
    pool = league()
    assert pool.current().uid == pool.current("main").uid == "main-3"
    assert [c.uid for c in pool.active("rival")] == ["rival-4", "rival-2"]
    assert pool.weights("main") == {"main-3": 1.0}
    assert set(pool.weights("rival")) == {"random_legal", "main-3", "main-1", "main-0"}
    assert len(set(pool.weights("rival").values())) == 1
    assert league("mirror").weights("rival") == {"main-3": 1.0}


def test_policies_share_ratings_and_results():
    pool = league("prioritized")
    rival, main = pool.current("rival").policy(), pool.current("main").policy()
    for _ in range(30):
        pool.push_outcome(record([rival, main], [1, -1]))
        pool.push_outcome(record([rival, RANDOM], [-1, 1]))
    assert rating(pool, "rival-4") > rating(pool, "main-3")
    weights = pool.weights("rival")
    assert weights["random_legal"] > weights["main-1"] > weights["main-3"]
    assert pool.score("rival", since=4) == (60, 0.5)
    assert pool.score("rival", since=5) == (0, 0.0)
    assert pool.games_with_past() == (0, 0.0)
    again = league("prioritized")
    again.load_state_dict(json.loads(json.dumps(pool.state_dict())))
    assert again.snapshot() == pool.snapshot()
    assert again.opponents(20, "rival") == pool.opponents(20, "rival")
    assert json.loads(json.dumps(again.state_dict())) == json.loads(json.dumps(pool.state_dict()))


def test_games_under_way_keep_the_versions_of_their_policy():
    pool = league()
    game = record([checkpoint(2, "rival").policy(), RANDOM], [1, -1]).spec
    for version in range(5, 25, 2):
        pool.add_checkpoint(checkpoint(version, "main", None))
    assert {"rival-2", "rival-4"} <= pool.needed([game])
    assert not {"main-1", "main-3", "main-5"} & pool.needed([game])


API = PolicyRef(uid="openai:m", kind="api")


def paid_pool(versions=3, fixed=(RANDOM, API), **config) -> tuple[ModelPool, ApiBudget]:
    """A pool with an API player, and the budget of one dollar that closes it."""
    budget = ApiBudget(ApiConfig(max_cost=1.0))
    pool = ModelPool(PoolConfig(**config), fixed, seed=7, budget=budget)
    for version in range(versions):
        pool.add_checkpoint(checkpoint(version))
    return pool, budget


@pytest.mark.parametrize("mode", ["random", "fixed", "match_quality", "prioritized", "nash"])
def test_once_their_budget_is_used_api_players_are_not_drawn(mode):
    pool, budget = paid_pool(mode=mode)
    before = pool.weights()
    assert before["openai:m"] > 0
    budget.spend([ApiUsage(uid="openai:m", cost=1.0)])
    after = pool.weights()
    assert "openai:m" not in after
    kept = 1 - before["openai:m"]
    assert after == pytest.approx(
        {uid: weight / kept for uid, weight in before.items() if uid != "openai:m"}
    )


@pytest.mark.parametrize(("versions", "drawn"), [(1, {"step-0"}), (3, {"step-0", "step-1"})])
def test_a_mode_that_draws_api_players_only_falls_back_to_all_others(versions, drawn):
    pool, budget = paid_pool(versions, fixed=(API,), mode="fixed", fixed_opponents=["openai:m"])
    assert pool.weights() == {"openai:m": 1.0}
    budget.spend([ApiUsage(uid="openai:m", cost=1.0)])
    assert pool.weights() == pytest.approx(dict.fromkeys(drawn, 1 / len(drawn)))
