"""Group relative policy optimisation on the decisions of a time window."""

from __future__ import annotations

from collections.abc import Sequence

from rlforge.algorithms.advantages import is_constant, standardize
from rlforge.algorithms.base import LossInputs, Targets
from rlforge.algorithms.losses import TokenLoss, clipped_loss
from rlforge.algorithms.policy_gradient import PolicyGradient
from rlforge.config.schema import WindowGrpoConfig
from rlforge.types import Step

ADVANTAGES = ("documented", "group_relative")


class WindowGrpo(PolicyGradient):
    """The clipped objective on advantages of decisions that are grouped by agent.

    An agent's group is what it decided in the batch: the steps of one (game, player), which need
    not be a whole game. With ``kl.to: previous`` the objective is the document's,
    E[log pi(a | s) A] - beta KL(pi || pi_old), as far as the ratio stays within its clip: there the
    gradient of pi / pi_old is that of log pi.
    """

    def __init__(self, config: WindowGrpoConfig, max_tokens: int) -> None:
        super().__init__(config, max_tokens)
        self._window = config

    def targets(self, steps: Sequence[Step], values: Sequence[float] | None) -> Targets:
        rewards = [step.reward for step in steps]
        groups = agents(steps)
        # r - r_agent + (r_agent - r_all) is r - r_all: the whole batch is the group there.
        compared = [list(range(len(steps)))] if self._window.advantage == "documented" else groups
        advantages = [0.0] * len(steps)
        for group in compared:
            relative = standardize([rewards[i] for i in group], self._window.normalize_std)
            for index, advantage in zip(group, relative, strict=True):
                advantages[index] = advantage
        constant = sum(is_constant([rewards[i] for i in group]) for group in groups)
        return Targets(
            advantages=tuple(advantages),
            metrics={"groups": float(len(groups)), "constant_groups": float(constant)},
        )

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return clipped_loss(
            inputs,
            self._window.importance_cap,
            self._window.clip_low,
            self._window.clip_high,
            self._window.dual_clip,
        )


def agents(steps: Sequence[Step]) -> list[list[int]]:
    """Where each agent's steps are in ``steps``, agents in order of their first."""
    groups: dict[tuple[str, int], list[int]] = {}
    for index, step in enumerate(steps):
        groups.setdefault((step.game_id, step.player_id), []).append(index)
    return list(groups.values())
