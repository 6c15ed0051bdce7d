"""Several policies in one run: their configuration, and what is refused."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.harness.composed import composed

from rlforge.config.compose import compose
from rlforge.config.per_policy import longest_wait, of_policy, policy_names, trained_seats, turns
from rlforge.config.policies import PolicyEntry
from rlforge.config.schema import RunConfig
from rlforge.config.training import GrpoConfig, PpoConfig

QUICK = "+experiment=kuhn_nash"


def config_of(policies: str, *overrides: str) -> RunConfig:
    return composed(QUICK, f"policies={{{policies}}}", *overrides).config


def test_a_policy_has_the_settings_of_the_run_and_its_own():
    config = config_of(
        "main: {}, rival: {opponents: [main], learner: {batch_size: 128}, pool: {mode: random}}"
    )
    main, rival = (of_policy(config, name) for name in policy_names(config))
    for group in ("learner", "pool", "algorithm"):
        assert getattr(main, group) == getattr(config, group)
    assert rival.learner.batch_size == 128
    assert rival.learner.learning_rate == config.learner.learning_rate
    assert rival.pool.mode == "random"
    assert rival.policies == {}


def test_another_algorithm_comes_with_its_own_defaults():
    config = config_of(
        "main: {algorithm: {entropy_coef: 0.25}}, rival: {algorithm: {name: ppo, gamma: 0.5}}"
    )
    main, rival = (of_policy(config, name).algorithm for name in policy_names(config))
    assert isinstance(main, GrpoConfig)
    assert (main.entropy_coef, main.kl) == (0.25, config.algorithm.kl)
    assert rival == PpoConfig(gamma=0.5)


def test_a_policy_of_an_experiment_can_be_left_out():
    league = ["+experiment=blotto_league", "pool=mirror"]
    assert list(composed(*league).config.policies) == ["oracle"]
    assert composed(*league, "~policies.oracle").config.policies == {}
    assert compose(["prompts.terse.system=brief", "~prompts.terse"]).config.prompts == {}


def test_a_run_without_policies_trains_one_without_a_name():
    config = composed(QUICK).config
    assert policy_names(config) == ("",)
    assert of_policy(config, "") is config
    assert turns(config) == ("",)
    assert (longest_wait(config, ""), trained_seats(config, "")) == (1, 2)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_each_has_its_share_of_updates_evenly_spread(shares):
    names = [f"policy_{index}" for index in range(len(shares))]
    entries = {name: PolicyEntry(share=share) for name, share in zip(names, shares, strict=True)}
    config = RunConfig(policies=entries)
    order = turns(config)
    assert Counter(order) == dict(zip(names, shares, strict=True))
    for name, share in zip(names, shares, strict=True):
        # Between two updates of a policy no other one gets more than about its part of them.
        assert longest_wait(config, name) <= sum(-(-other // share) + 1 for other in shares)


def test_only_self_play_trains_every_seat():
    config = config_of("main: {}, rival: {opponents: [main]}, past: {pool: {mode: random}}")
    assert [trained_seats(config, name) for name in policy_names(config)] == [2, 1, 1]
