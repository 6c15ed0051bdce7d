"""An algorithm: advantages of a batch, with settings of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlforge import AlgorithmConfig, Positive, Reinforce, Step, Targets


@dataclass
class RlooConfig(AlgorithmConfig):
    """Settings of RLOO: those of every algorithm, and one more."""

    #: Largest advantage, of either sign.
    clip: Positive = 5.0


class Rloo(Reinforce):
    """Each reward against the mean of the others in its batch (Kool et al. 2019)."""

    config_class = RlooConfig
    config: RlooConfig

    def targets(self, steps: Sequence[Step], values: Sequence[float] | None) -> Targets:
        """The advantages; the loss is that of REINFORCE."""
        total, others, clip = sum(s.reward for s in steps), max(1, len(steps) - 1), self.config.clip
        raw = [step.reward - (total - step.reward) / others for step in steps]
        clipped = sum(abs(advantage) > clip for advantage in raw) / len(raw)
        advantages = tuple(max(-clip, min(clip, advantage)) for advantage in raw)
        return Targets(advantages=advantages, metrics={"clipped_advantages": clipped})
