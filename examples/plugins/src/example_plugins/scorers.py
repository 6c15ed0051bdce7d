"""A scorer: how good each decision of a time window is, relative to the others."""

from collections.abc import Mapping, Sequence

from rlforge import Decision, DecisionScores, TrainingWindow


class RankScorer:
    """The rank of a decision's reward: 0 for the lowest of the window, 1 for the highest."""

    def __init__(self, config: object, seed: int, local: object) -> None:
        pass  # the group ruler of the configuration, a seed, and the model behind a judge

    async def score(self, decisions: Sequence[Decision]) -> DecisionScores:
        rewards = sorted(d.reward for d in decisions if d.reward is not None)
        most = max(1, len(rewards) - 1)
        values = tuple(
            None if d.reward is None else min(1.0, rewards.index(d.reward) / most)
            for d in decisions
        )
        why = tuple("" if v is None else f"above {v:.0%} of the others" for v in values)
        return DecisionScores(values=values, explanations=why, metrics={"scored": len(rewards)})

    def learn(self, windows: Sequence[TrainingWindow]) -> Mapping[str, float]:
        return {}  # ranks need no memory

    async def close(self) -> None:
        pass
