"""From the scored decisions of a window to a batch, or to the reason why there is none."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from rlforge.algorithms.advantages import has_signal, steps_anyway
from rlforge.algorithms.base import Algorithm
from rlforge.continuous.config.continuous import ContinuousSettings
from rlforge.continuous.decisions.records import Decision, grouped
from rlforge.continuous.decisions.reward import returns_to_go
from rlforge.continuous.loop.performance import is_ours
from rlforge.rewards.sampling import is_constant
from rlforge.rollout.episode import seed_of
from rlforge.samples import Sample, TrainBatch
from rlforge.types import OTHER_RUN, Completion, value


@value
class Scored:
    """A decision with its score, None where the scorer failed, and its normalised reward."""

    decision: Decision
    score: float | None
    reward: float
    # The discounted sum of this and the agent's later rewards; only for train_on=return.
    to_go: float | None = None

    @property
    def completion(self) -> Completion:
        assert self.decision.completion is not None
        return self.decision.completion


#: Counts of a window's decisions. selected: by ``continuous.select_by``, with those dropped for age
#: or length. trained_decisions: those of the batch. refused: answers without an accepted action; 0
#: where ``invalid_reward`` is None. unscored: on which the scorer failed. stale, too_long, crowded:
#: dropped for their version's age, their prompt's length, or their agent's share.
COUNTS = ("selected", "trained_decisions", "refused", "unscored", "stale", "too_long", "crowded")


@value
class WindowBatch:
    """The decisions of a window to learn from, or the ``reason`` why there are none."""

    batch: TrainBatch | None
    reason: str
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))


def largest_share(counts: Sequence[int], share: float) -> int:
    """The most that each count may keep so that none exceeds ``share`` of what is left."""
    highest = max(counts, default=0)
    return next(
        (
            most
            for most in range(highest, 0, -1)
            if most <= share * sum(min(count, most) for count in counts)
        ),
        0,
    )


@value
class WindowFilter:
    """The rules by which decisions become a batch.

    version: the one to be trained. max_staleness: None for decisions of another run. max_length:
    tokens of prompt and answer. foreign: deployments whose decisions are not the model's own.
    """

    settings: ContinuousSettings
    algorithm: Algorithm
    version: int
    max_staleness: int | None
    max_length: int | None
    foreign: Collection[str] = ()
    gamma: float = 1.0

    def build_window_batch(
        self, batch_id: str, decisions: Sequence[Scored], why_unscored: str = ""
    ) -> WindowBatch:
        """A batch of the selected decisions; why_unscored: what the scorer says of the others."""
        ours = [
            one
            for one in decisions
            if is_ours(one.decision) and one.completion.policy_uid not in self.foreign
        ]
        if self.settings.train_on == "return":
            agents, rewards = [one.decision.agent_id for one in ours], [one.reward for one in ours]
            sums = returns_to_go(agents, rewards, self.gamma)
            ours = [
                dataclasses.replace(one, to_go=to_go) for one, to_go in zip(ours, sums, strict=True)
            ]
        # Refused answers always count, else scores would hide from the model that they fail.
        chosen = [one for one in ours if self._punished(one) or self._selected(one)]
        oldest = -math.inf if self.max_staleness is None else self.version - self.max_staleness
        fresh = [one for one in chosen if one.completion.policy_version >= oldest]
        room = math.inf if self.max_length is None else self.max_length
        fitting = [one for one in fresh if len(one.completion.prompt_token_ids) < room]
        samples = self._samples(batch_id, self._shared(batch_id, fitting))
        punished = sum(self._punished(one) for one in ours)
        unscored = sum(one.score is None for one in ours)
        stale, too_long = len(chosen) - len(fresh), len(fresh) - len(fitting)
        batch = TrainBatch(samples=tuple(samples), whole_episodes=True, dropped_stale=stale)
        reason = self._obstacle(decisions, len(ours), len(chosen), too_long, batch)
        if reason and unscored and why_unscored:
            reason = f"{reason}; {unscored} have no score: {why_unscored}"
        counts = {
            "selected": len(chosen) - punished,
            "trained_decisions": 0 if reason else len(samples),
            "refused": punished,
            "unscored": unscored,
            "stale": stale,
            "too_long": too_long,
            "crowded": len(fitting) - len(samples),
        }
        return WindowBatch(batch=None if reason else batch, reason=reason, counts=counts)

    # ------------------------------------------------------------ one decision

    def _punished(self, one: Scored) -> bool:
        return self.settings.invalid_reward is not None and one.decision.refused

    def _selected(self, one: Scored) -> bool:
        settings = self.settings
        scored = settings.selects_by == "score" or settings.train_on in ("score", "mix")
        # A decision without a score is selected only where none is used.
        if one.score is None and scored:
            return False
        if settings.selects_by == "all":
            return True
        measure = one.score if settings.selects_by == "score" else one.reward
        return measure is not None and measure > settings.threshold

    def _shared(self, batch_id: str, decisions: list[Scored]) -> list[Scored]:
        counts = Counter(one.decision.agent_id for one in decisions)
        most = largest_share(list(counts.values()), self.settings.max_agent_share)
        if most >= max(counts.values(), default=0):
            return decisions
        # Drawn by a seed of the window, so that a resumed run leaves out the same decisions.
        order = sorted(decisions, key=lambda one: seed_of(f"{batch_id}/{one.decision.id}"))
        taken: Counter[str] = Counter()
        kept = set()
        for one in order:
            agent = one.decision.agent_id
            if taken[agent] < most:
                taken[agent] += 1
                kept.add(one.decision.id)
        return [one for one in decisions if one.decision.id in kept]

    def _trained_reward(self, one: Scored) -> float:
        if one.to_go is not None:
            return one.to_go
        if self.settings.train_on == "reward" or self._punished(one):
            return one.reward
        assert one.score is not None
        if self.settings.train_on == "score":
            return one.score
        weight = self.settings.score_weight
        # Scores of 0 to 1 are stretched to the range of rewards, -1 to 1.
        return (1 - weight) * one.reward + weight * (2 * one.score - 1)

    # ------------------------------------------------------------ the batch

    def _samples(self, batch_id: str, decisions: Sequence[Scored]) -> list[Sample]:
        agents = grouped(decisions, lambda one: one.decision.agent_id)
        return [
            self._sample(batch_id, one, index, last=index == len(own) - 1)
            for _, own in sorted(agents.items())
            for index, one in enumerate(own)
        ]

    def _sample(self, batch_id: str, one: Scored, index: int, *, last: bool) -> Sample:
        decision, completion = one.decision, one.completion
        assert decision.reward is not None
        about = {"decision_id": decision.id, "agent_id": decision.agent_id, "score": one.score}
        return Sample(
            # A critic takes an agent's decisions for one episode; a whole window is one group.
            origin=f"{batch_id}/{decision.agent_id}",
            env_id=self.settings.source,
            group_id=batch_id,
            turn_index=index,
            last_turn=last,
            observation=decision.observation,
            action=json.dumps(dict(decision.action)),
            prompt_token_ids=completion.prompt_token_ids,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            raw_reward=decision.reward,
            reward=self._trained_reward(one),
            policy_uid=completion.policy_uid,
            policy_version=OTHER_RUN if self.max_staleness is None else completion.policy_version,
            info=about,
        )

    def _obstacle(
        self, decisions: Sequence[Scored], ours: int, chosen: int, too_long: int, batch: TrainBatch
    ) -> str:
        settings, samples = self.settings, batch.samples
        if not ours:
            uids = {one.completion.policy_uid for one in decisions if is_ours(one.decision)}
            if uids:
                return (
                    f"its decisions are of {', '.join(sorted(uids))}, deployed from elsewhere; "
                    "rlforge rollback lets the run's own version act again"
                )
            return "no decision of the trained model is in it"
        if chosen < settings.min_selected:
            return (
                f"{chosen} of the model's {ours} decisions are selected, and "
                f"continuous.min_selected is {settings.min_selected}"
            )
        if not samples:
            left_out = []
            if batch.dropped_stale:
                left_out.append(
                    f"{batch.dropped_stale} are of more than continuous.max_staleness="
                    f"{self.max_staleness} versions ago"
                )
            if too_long:
                left_out.append(
                    f"{too_long} have prompts of learner.max_train_len="
                    f"{self.max_length} tokens or more"
                )
            if not left_out:
                left_out.append(
                    "there are too few agents for continuous.max_agent_share="
                    f"{settings.max_agent_share:g}"
                )
            return f"no selected decision can be learned from: {', '.join(left_out)}"
        if steps_anyway(self.algorithm):
            return ""
        if is_constant([sample.reward for sample in samples]):
            same = f"all {len(samples)} decisions have the same {settings.train_on}"
            return f"{same}: there is no gradient"
        critic = self.algorithm.needs_values
        advantages = () if critic else self.algorithm.targets(samples, None).advantages
        if not has_signal(self.algorithm, samples, advantages):
            return "every advantage is 0: no decision differs from those that it is compared with"
        return ""
