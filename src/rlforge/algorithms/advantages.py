"""One advantage per step from the rewards of a batch's steps. Plain Python, no tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rlforge.errors import RunError
from rlforge.types import Step, value


@value
class GroupAdvantages:
    """advantages: one per step. groups: their number. constant: groups of equal scores."""

    advantages: tuple[float, ...]
    groups: int
    constant: int


def standardize(values: Sequence[float], divide: bool = True) -> list[float]:
    """(x - mean) / std, or only x - mean; exactly 0 where all values are equal.

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


def is_constant(values: Sequence[float]) -> bool:
    """Whether all are equal up to rounding errors, which division by std would magnify."""
    low, high = min(values), max(values)
    return high - low <= 1e-9 * max(1.0, abs(low), abs(high))


def group_relative(steps: Sequence[Step], normalize_std: bool) -> GroupAdvantages:
    """GRPO's advantage (Shao et al. 2024, section 4.1.2): (R_i - mean R) / std R over the group.

    A group is the episodes of one player (role) in the games of one ``group_id``. The score R_i of
    an episode is the mean reward of its steps: the outcome, which every step carries, plus the mean
    feedback on its turns. All steps of an episode get its advantage. ``normalize_std`` false leaves
    out the division (Dr. GRPO). Raises RunError on a step without a group.
    """
    rewards: dict[tuple[str, int], dict[str, list[float]]] = {}
    for step in steps:
        if step.group_id is None:
            raise RunError(
                f"grpo: game {step.game_id} belongs to no group; group-relative advantages need "
                "games in groups and buffer.kind=episode"
            )
        group = rewards.setdefault((step.group_id, step.player_id), {})
        group.setdefault(step.game_id, []).append(step.reward)
    advantages: dict[tuple[str, int, str], float] = {}
    constant = 0
    for (group_id, player_id), games in rewards.items():
        scores = [math.fsum(of_game) / len(of_game) for of_game in games.values()]
        constant += is_constant(scores)
        for game_id, advantage in zip(games, standardize(scores, normalize_std), strict=True):
            advantages[group_id, player_id, game_id] = advantage
    return GroupAdvantages(
        advantages=tuple(
            advantages[step.group_id or "", step.player_id, step.game_id] for step in steps
        ),
        groups=len(rewards),
        constant=constant,
    )


def episodes_of(steps: Sequence[Step]) -> Iterable[slice]:
    """The slice of ``steps`` that holds each episode.

    Raises RunError where the turns of one (game, player) are not complete, adjacent and in order.
    """
    start = 0
    for index, step in enumerate(steps):
        first = steps[start]
        same = (step.game_id, step.player_id) == (first.game_id, first.player_id)
        if not same or step.turn_index != index - start:
            raise RunError(_broken(step))
        if step.last_turn:
            yield slice(start, index + 1)
            start = index + 1
    if start < len(steps):
        raise RunError(_broken(steps[-1]))


def _broken(step: Step) -> str:
    return (
        f"game {step.game_id}, player {step.player_id}: the episode is not whole at turn "
        f"{step.turn_index}; a critic needs whole episodes, buffer.kind=episode"
    )


def turn_rewards(steps: Sequence[Step]) -> list[float]:
    """Reward of each turn of one episode: its feedback, plus the outcome on the last turn.

    The ``reward`` of every step includes ``outcome_reward``; summed over the turns, the outcome
    would count once per turn.
    """
    paid = [step.reward - step.outcome_reward for step in steps[:-1]]
    return [*paid, steps[-1].reward]


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
