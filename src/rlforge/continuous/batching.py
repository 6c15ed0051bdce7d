"""From the scored decisions of a window to a batch, or to the reason why there is none.

Only decisions of the trained model can be learned from. Those of scripted traders and people have
no tokens: they are scored beside them, and compared with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rlforge.algorithms.advantages import is_constant
from rlforge.algorithms.base import Algorithm
from rlforge.config.continuous import ContinuousSettings
from rlforge.continuous.performance import is_ours, is_refused
from rlforge.trajectories.records import Decision
from rlforge.types import Completion, Step, TrainBatch, value

ENV_ID = "market"


@value
class Scored:
    """A decision with its score, None where the scorer failed, and its reward as it is learned."""

    decision: Decision
    score: float | None
    reward: float

    @property
    def completion(self) -> Completion:
        """The model's answer; only its own decisions have one."""
        assert self.decision.completion is not None
        return self.decision.completion

    @property
    def version(self) -> int:
        """Version that took the decision."""
        return self.completion.policy_version

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.completion.prompt_token_ids)


@value
class WindowBatch:
    """What a window gives to learn from.

    batch: None where nothing is trained; ``reason`` says why, and is empty otherwise. selected:
    decisions of the model above the threshold (the document's high scores), those left out for
    their age or length included. refused: answers that are no action, or none that was accepted,
    and that are learned from as such. unscored, stale, too_long: decisions of the model that are
    left out because the scorer failed on them, they are of a version too old, or their prompt
    leaves no room for an answer.
    """

    batch: TrainBatch | None
    reason: str
    selected: int = 0
    refused: int = 0
    unscored: int = 0
    stale: int = 0
    too_long: int = 0

    def figures(self) -> Mapping[str, int]:
        """Its counts, with how many decisions are learned from, ready for JSON."""
        steps = self.batch.steps if self.batch is not None else ()
        return {
            "selected": self.selected,
            "trained_decisions": len(steps),
            "refused": self.refused,
            "unscored": self.unscored,
            "stale": self.stale,
            "too_long": self.too_long,
        }


def build_window_batch(
    batch_id: str,
    decisions: Sequence[Decision],
    scores: Sequence[float | None],
    rewards: Sequence[float],
    settings: ContinuousSettings,
    algorithm: Algorithm,
    *,
    version: int,
    max_length: int | None,
) -> WindowBatch:
    """Select from complete ``decisions``, in order of time, with their ``scores``.

    rewards: theirs as they are learned, normalised where that is wished for. version: of the
    policy that is about to be trained. max_length: most tokens of prompt and answer. An agent's
    decisions of the batch are one episode: a critic sees them as consecutive, and ``window_grpo``
    as one group.
    """
    everybody = [
        Scored(decision=decision, score=score, reward=reward)
        for decision, score, reward in zip(decisions, scores, rewards, strict=True)
    ]
    own = [one for one in everybody if is_ours(one.decision)]
    lesson = settings.invalid_reward is not None
    refused = [lesson and is_refused(one.decision) for one in own]
    marked = list(zip(own, refused, strict=True))
    selected = [one for one, wrong in marked if not wrong and _selected(one, settings)]
    chosen = [one for one, wrong in marked if wrong or _selected(one, settings)]
    recent = [one for one in chosen if version - one.version <= settings.max_staleness]
    fitting = [one for one in recent if max_length is None or one.prompt_length < max_length]
    steps = _steps(batch_id, fitting, settings)
    reason = _obstacle(len(own), len(selected), steps, settings, algorithm)
    versions = [step.policy_version for step in steps]
    batch = TrainBatch(
        steps=tuple(steps),
        whole_episodes=True,
        min_version=min(versions, default=version),
        max_version=max(versions, default=version),
        dropped_stale=len(chosen) - len(recent),
    )
    return WindowBatch(
        batch=None if reason else batch,
        reason=reason,
        selected=len(selected),
        refused=sum(refused),
        unscored=sum(one.score is None for one in own),
        stale=len(chosen) - len(recent),
        too_long=len(recent) - len(fitting),
    )


def _selected(one: Scored, settings: ContinuousSettings) -> bool:
    """Above the threshold; what is learned as a score must have one."""
    if one.score is None and (settings.select_by == "score" or settings.train_on != "reward"):
        return False
    if settings.select_by == "all":
        return True
    measure = one.score if settings.select_by == "score" else one.reward
    return measure is not None and measure > settings.threshold


def trained_reward(one: Scored, settings: ContinuousSettings) -> float:
    """What is learned for one decision; a mix brings scores to the rewards' range, -1 to 1."""
    refused = settings.invalid_reward is not None and is_refused(one.decision)
    if settings.train_on == "reward" or refused:
        return one.reward
    assert one.score is not None
    if settings.train_on == "score":
        return one.score
    weight = settings.score_weight
    return (1 - weight) * one.reward + weight * (2 * one.score - 1)


def _steps(batch_id: str, chosen: Sequence[Scored], settings: ContinuousSettings) -> list[Step]:
    """One step per decision, agent after agent, each agent's in order of time."""
    by_agent: dict[str, list[Scored]] = {}
    for one in chosen:
        by_agent.setdefault(one.decision.agent_id, []).append(one)
    return [
        _step(batch_id, one, settings, index, index == len(own) - 1)
        for _, own in sorted(by_agent.items())
        for index, one in enumerate(own)
    ]


def _step(batch_id: str, one: Scored, settings: ContinuousSettings, index: int, last: bool) -> Step:
    decision, completion = one.decision, one.completion
    assert decision.reward is not None
    return Step(
        game_id=f"{batch_id}/{decision.agent_id}",
        env_id=ENV_ID,
        player_id=0,
        group_id=batch_id,
        turn_index=index,
        last_turn=last,
        observation=decision.observation,
        action=json.dumps(dict(decision.action)),
        prompt_token_ids=completion.prompt_token_ids,
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        raw_reward=decision.reward,
        reward=trained_reward(one, settings),
        policy_uid=completion.policy_uid,
        policy_version=completion.policy_version,
        info={"decision_id": decision.id, "agent_id": decision.agent_id, "score": one.score},
    )


def _obstacle(
    own: int,
    selected: int,
    steps: Sequence[Step],
    settings: ContinuousSettings,
    algorithm: Algorithm,
) -> str:
    """Why ``steps`` are not trained on; empty when they are."""
    if not own:
        return "no decision of the trained model is in it"
    if selected < settings.min_selected:
        return (
            f"{selected} of the model's {own} decisions are selected, and "
            f"continuous.min_selected is {settings.min_selected}"
        )
    if not steps:
        return f"all {selected} selected decisions are too old or too long"
    if is_constant([step.reward for step in steps]):
        return f"all {len(steps)} decisions have the same {settings.train_on}: there is no gradient"
    # A critic's advantages differ where rewards do not, so only its rewards can be looked at.
    if not algorithm.needs_values and not any(algorithm.targets(steps, None).advantages):
        return f"no decision differs from those that {settings.train_on}s are compared with"
    return ""
