"""The market can be learned: a linear fit to the results of random decisions earns money."""

import random
import statistics
from collections import defaultdict

from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.market.compact import Compact
from rlforge.continuous.market.traders import Crowd
from rlforge.continuous.market.world import World

CONFIG = MarketConfig()
COMPACT = Compact(CONFIG)


def verb(answer):
    return answer.strip("[]123")


def play(seed, policy, agents):
    """Two episodes of ``agents`` together with the scripted traders.

    Returns the world and, for each decision with money at stake, text, answer and what was gained,
    relative to the stake and cut to -1 … 1.
    """
    world = World(CONFIG, seed)
    crowd = Crowd(world, seed)
    names = [f"agent-{number}" for number in range(agents)]
    for name in names:
        world.join(name)
    asked, outcomes = {}, []
    for _ in range(2 * CONFIG.episode_ticks):
        for name in names:
            state = world.state(name)
            focus = COMPACT.focus(state)
            text = COMPACT.text(state, focus)
            answer = policy(text, COMPACT.actions(state, focus))
            receipt = world.decide(name, COMPACT.action(answer, state, focus))
            asked[receipt.ticket] = text, answer
        crowd.act()
        for settled in world.tick():
            if settled.ticket in asked and settled.investment:
                gain = max(-1.0, min(1.0, settled.pnl / settled.investment))
                outcomes.append((*asked[settled.ticket], gain))
    return world, outcomes


def fit(outcomes):
    """Ridge regression of the gain on the words of the text, one per verb."""
    rows = defaultdict(list)
    for text, answer, gain in outcomes:
        rows[verb(answer)].append((text, gain))
    return {
        name: make_pipeline(CountVectorizer(token_pattern=r"\S+"), Ridge(5)).fit(
            *zip(*row, strict=True)
        )
        for name, row in rows.items()
    }


def test_a_model_fitted_to_settled_decisions_earns_more_than_noise_and_momentum_traders():
    rng = random.Random(0)
    outcomes = []
    for seed in range(10):
        outcomes += play(seed, lambda _, answers: rng.choice(answers), 6)[1]
    model = fit(outcomes)

    def learned(text, answers):
        """The best answer, with the largest stake, if it promises to gain anything."""
        hopes = {"[hold]": 0.05}
        for answer in answers:
            if answer[-2] not in "12" and verb(answer) in model:
                (hopes[answer],) = model[verb(answer)].predict([text])
        return max(hopes, key=hopes.get)

    profits = defaultdict(list)
    for seed in range(100, 106):
        world, _ = play(seed, learned, 1)
        for name in world.agent_ids:
            profits[name.partition("-")[0]] += world.episode_profits(name)
    means = {name: statistics.mean(earned) for name, earned in profits.items()}
    assert means["noise"] < 0
    assert means["agent"] > 1.5 * means["momentum"] > 0
