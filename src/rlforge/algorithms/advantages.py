"""Advantages of samples from their rewards. Plain Python, no tensors."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from rlforge.algorithms.base import Algorithm, Targets
from rlforge.errors import RunError
from rlforge.rewards.sampling import is_constant
from rlforge.samples import Sample

Formula = Callable[[Sequence[float]], Sequence[float]]
"""Scores of a group's episodes to their advantages."""


#: Advantages nearer to 0 than this are rounding errors of a baseline.
_ROUNDING = 1e-9


def steps_anyway(algorithm: Algorithm) -> bool:
    """Whether ``algorithm`` declares a ``moving_reference``; one that says nothing has none."""
    return bool(getattr(algorithm, "moving_reference", False))


def has_signal(
    algorithm: Algorithm, samples: Sequence[Sample], advantages: Sequence[float]
) -> bool:
    """Whether a batch says which answers are better, so that the policy may step.

    Without a critic it does where an advantage is not 0: normalising leaves equal rewards at 0.
    With one it does where returns differ (``reward_spread``): else the advantages are errors of the
    critic, or baselines of seats. A KL penalty or an entropy bonus alone is no reason to step, as
    the optimizer makes a step of usual size of whatever is left, unless the algorithm declares a
    ``moving_reference``, towards which it goes on purpose.

    Args:
        samples: The whole batch.
        advantages: Advantages of the samples that are trained on; not read with a critic.

    Example:
        >>> from rlforge.algorithms import make_algorithm
        >>> from rlforge.config.training import AlgorithmConfig
        >>> has_signal(make_algorithm(AlgorithmConfig(), max_tokens=2), (), advantages=(0.0, 0.0))
        False
    """
    if steps_anyway(algorithm):
        return True
    # Not ``>``: what is not a number has to reach the optimizer, which reports it.
    if algorithm.needs_values:
        return reward_spread(algorithm, samples) != 0
    return not all(abs(advantage) <= _ROUNDING for advantage in advantages)


def reward_spread(algorithm: Algorithm, samples: Sequence[Sample]) -> float:
    """Largest less least return of a batch that is trained on; 0 where they are all the same.

    With a critic a return is the outcome of the game with what this turn and later ones are paid
    on top of it, else the reward of the turn. A transform that ``is_baseline`` lags behind, and so
    differs from game to game: with one, returns are the same where those of each seat before it
    are.
    """
    if not samples:
        return 0.0
    whole = algorithm.needs_values
    trained = _returns(samples, [sample.outcome_reward for sample in samples], whole)
    earned = [sample.before_baseline for sample in samples]
    outcomes = [
        sample.outcome_reward if before is None else before
        for sample, before in zip(samples, earned, strict=True)
    ]
    compared: dict[tuple[str, int] | None, list[float]] = defaultdict(list)
    for sample, gained in zip(samples, _returns(samples, outcomes, whole), strict=True):
        based = sample.before_baseline is not None
        compared[(sample.env_id, sample.player_id) if based else None].append(gained)
    if is_constant(trained) or all(is_constant(gained) for gained in compared.values()):
        return 0.0
    return max(trained) - min(trained)


def _returns(
    samples: Sequence[Sample], outcomes: Sequence[float], rest_of_game: bool
) -> list[float]:
    """Outcome of each sample's game, with what its turn, and later ones, are paid on top."""
    paid: dict[tuple[str, int], float] = defaultdict(float)
    returns = list[float]()
    for sample, outcome in zip(reversed(samples), reversed(outcomes), strict=True):
        extra = sample.reward - sample.outcome_reward
        paid[sample.episode] = extra + (paid[sample.episode] if rest_of_game else 0.0)
        returns.append(outcome + paid[sample.episode])
    return returns[::-1]


def standardize(values: Sequence[float], divide: bool = True) -> list[float]:
    """(x - mean) / std, or x - mean without ``divide``; exactly 0 where all values are equal.

    std is the population standard deviation.

    Example:
        >>> standardize([0.0, 2.0])
        [-1.0, 1.0]
    """
    if not values or is_constant(values):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    centred = [x - mean for x in values]
    if not divide:
        return centred
    std = math.sqrt(math.fsum(x * x for x in centred) / len(values))
    return [x / std for x in centred]


def leave_one_out(scores: Sequence[float]) -> list[float]:
    """R_i minus the mean of the others; exactly 0 where all are equal, or for a single one.

    RLOO (Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740, eq. 9). The baseline does not
    depend on the sample itself, so the gradient is unbiased.

    Example:
        >>> leave_one_out([3.0, 0.0, 0.0])
        [3.0, -1.5, -1.5]
    """
    # R_i - mean of the others = n / (n - 1) (R_i - mean)
    factor = len(scores) / max(1, len(scores) - 1)
    return [factor * x for x in standardize(scores, divide=False)]


def max_rl(scores: Sequence[float]) -> list[float]:
    """(R_i - mean) / mean; 0 where the mean is 0. Raises ValueError for a negative score.

    MaxRL (Tajwar et al. 2026, arXiv:2602.02710, Algorithm 1). For scores of 0 and 1 with success
    probability p, the mean of A_i grad log pi over n samples estimates without bias the gradient of
    the first n - 1 terms of log p = -sum_k (1 - p)^k / k.

    Example:
        >>> max_rl([1.0, 0.0, 0.0, 0.0])
        [3.0, -1.0, -1.0, -1.0]
    """
    if min(scores, default=0.0) < 0:
        raise ValueError(f"a score is {min(scores):g}, and max_rl needs scores of 0 or more")
    centred = standardize(scores, divide=False)
    mean = math.fsum(scores) / max(1, len(scores))
    return [x / mean for x in centred] if any(centred) else centred


def in_groups(samples: Sequence[Sample], formula: Formula) -> Targets:
    """Advantages of episodes by ``formula`` of the scores of their group.

    A group is one player (role) in the games of a ``group_id``. The score of an episode is the mean
    reward of its samples, all of which get its advantage. With ``standardize`` this is GRPO (Shao
    et al. 2024, section 4.1.2), without its division Dr. GRPO. Raises RunError for a sample without
    a group and for scores that ``formula`` refuses.
    """
    rewards: dict[tuple[str, int], dict[str, list[float]]] = {}
    for sample in samples:
        if sample.group_id is None:
            raise RunError(
                f"grpo: game {sample.origin} belongs to no group; group-relative advantages need "
                "games in groups and buffer.kind=episode"
            )
        # Roles are compared apart, because seats may differ in expected reward.
        group = rewards.setdefault((sample.group_id, sample.player_id), {})
        group.setdefault(sample.origin, []).append(sample.reward)
    advantages: dict[tuple[str, int], float] = {}
    constant = 0
    for (_, player_id), games in rewards.items():
        # Every sample holds the outcome, which a sum, not a mean, would count once per turn.
        scores = [math.fsum(of_game) / len(of_game) for of_game in games.values()]
        constant += is_constant(scores)
        try:
            found = formula(scores)
        except ValueError as error:
            raise RunError(f"games {', '.join(games)}, player {player_id}: {error}") from error
        for origin, advantage in zip(games, found, strict=True):
            advantages[origin, player_id] = advantage
    return Targets(
        advantages=tuple(advantages[sample.episode] for sample in samples),
        metrics=group_metrics(len(rewards), constant),
    )


def group_metrics(groups: int, constant: int) -> dict[str, float]:
    """Metrics of ``groups``, of which ``constant`` have equal scores only."""
    return {"groups": float(groups), "constant_groups": float(constant)}


def episodes_of(samples: Sequence[Sample]) -> Iterable[slice]:
    """Slices of ``samples``, one per episode.

    Raises RunError where an episode is not complete, adjacent and in order.
    """
    start = 0
    for index, sample in enumerate(samples):
        same = sample.episode == samples[start].episode
        if not same or sample.turn_index != index - start:
            raise RunError(_broken(sample))
        if sample.last_turn:
            yield slice(start, index + 1)
            start = index + 1
    if start < len(samples):
        raise RunError(_broken(samples[-1]))


def _broken(sample: Sample) -> str:
    return (
        f"game {sample.origin}, player {sample.player_id}: the episode is not whole at turn "
        f"{sample.turn_index}; a critic needs whole episodes, buffer.kind=episode"
    )


def turn_rewards(samples: Sequence[Sample]) -> list[float]:
    """Reward of each turn of one episode: its feedback, plus the outcome on the last turn."""
    # Every ``reward`` includes the outcome: summed over turns it would count once per turn.
    paid = [sample.reward - sample.outcome_reward for sample in samples[:-1]]
    return [*paid, samples[-1].reward]


def generalized_advantages(
    rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float
) -> list[float]:
    """GAE (Schulman et al. 2016, eq. 16) over the T turns of one finished episode.

    A_t = sum_k (gamma * lam)^k delta_{t+k} with delta_t = r_t + gamma V_{t+1} - V_t, V_T = 0.

    Example:
        >>> generalized_advantages([0.0, 1.0], values=[0.5, 0.75], gamma=1.0, lam=1.0)
        [0.5, 0.25]
    """
    advantages = [0.0] * len(rewards)
    following_value = following_advantage = 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * following_value - values[t]
        advantages[t] = delta + gamma * lam * following_advantage
        following_value, following_advantage = values[t], advantages[t]
    return advantages


def explained_variance(values: Sequence[float], returns: Sequence[float]) -> float:
    """1 - Var(R - V) / Var(R): 1 for a perfect critic, 0 for a constant one or constant R."""
    if not returns or is_constant(returns):
        return 0.0
    return 1.0 - _variance([r - v for r, v in zip(returns, values, strict=True)]) / _variance(
        returns
    )


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((x - mean) ** 2 for x in values) / len(values)
