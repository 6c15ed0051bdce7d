"""An algorithm: advantages of a batch, with settings of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlforge import AlgorithmConfig, Positive, Reinforce, Sample, Targets


@dataclass
class BatchMeanConfig(AlgorithmConfig):
    """Settings of BatchMean: those of every algorithm, and one more."""

    #: Largest advantage, of either sign.
    clip: Positive = 5.0


class BatchMean(Reinforce):
    """REINFORCE with each reward against the mean of its batch, cut at ``clip``."""

    config_class = BatchMeanConfig
    config: BatchMeanConfig

    def targets(self, samples: Sequence[Sample], values: Sequence[float] | None) -> Targets:
        """The advantages; the loss is that of REINFORCE."""
        clip, mean = self.config.clip, sum(sample.reward for sample in samples) / len(samples)
        raw = [sample.reward - mean for sample in samples]
        clipped = sum(abs(advantage) > clip for advantage in raw) / len(raw)
        advantages = tuple(max(-clip, min(clip, advantage)) for advantage in raw)
        return Targets(advantages=advantages, metrics={"clipped_advantages": clipped})
