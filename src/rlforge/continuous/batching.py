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
from rlforge.continuous.performance import is_ours
from rlforge.trajectories.records import Decision
from rlforge.types import Step, TrainBatch, value

ENV_ID = "market"


@value
class Harvest:
    """What a window gives to learn from.

    batch: None where nothing is trained; ``reason`` says why, and is empty otherwise. selected:
    decisions of the model above the threshold (the document's high scores), those left out for
    their age or length included. unscored, stale, too_long: decisions of the model that are left
    out because the scorer failed on them, they are of a version too old, or their prompt leaves no
    room for an answer.
    """

    batch: TrainBatch | None
    reason: str
    selected: int
    unscored: int
    stale: int
    too_long: int

    def metrics(self) -> Mapping[str, float]:
        """Its counts, with how many decisions are learned from."""
        steps = self.batch.steps if self.batch is not None else ()
        return {
            "trained_decisions": float(len(steps)),
            "unscored": float(self.unscored),
            "stale": float(self.stale),
            "too_long": float(self.too_long),
        }


def harvest(
    batch_id: str,
    decisions: Sequence[Decision],
    scores: Sequence[float | None],
    settings: ContinuousSettings,
    algorithm: Algorithm,
    *,
    version: int,
    max_length: int | None,
) -> Harvest:
    """Select from ``decisions``, in order of time, with their ``scores``.

    version: of the policy that is about to be trained. max_length: most tokens of prompt and
    answer. An agent's decisions of the batch are one episode: a critic sees them as consecutive,
    and ``window_grpo`` as one group.
    """
    own = [(d, s) for d, s in zip(decisions, scores, strict=True) if is_ours(d) and d.complete]
    chosen = [(d, s) for d, s in own if _selected(d, s, settings)]
    recent = [(d, s) for d, s in chosen if version - _version(d) <= settings.max_staleness]
    fitting = [(d, s) for d, s in recent if max_length is None or _prompt_length(d) < max_length]
    steps = _steps(batch_id, fitting, settings)
    reason = _obstacle(len(own), steps, settings, algorithm)
    versions = [step.policy_version for step in steps]
    batch = TrainBatch(
        steps=tuple(steps),
        whole_episodes=True,
        min_version=min(versions, default=version),
        max_version=max(versions, default=version),
        dropped_stale=len(chosen) - len(recent),
    )
    return Harvest(
        batch=None if reason else batch,
        reason=reason,
        selected=len(chosen),
        unscored=sum(score is None for _, score in own),
        stale=len(chosen) - len(recent),
        too_long=len(recent) - len(fitting),
    )


def _selected(decision: Decision, score: float | None, settings: ContinuousSettings) -> bool:
    """Above the threshold; what is learned as a score must have one."""
    if score is None and (settings.select_by == "score" or settings.train_on != "reward"):
        return False
    if settings.select_by == "all":
        return True
    measure = score if settings.select_by == "score" else decision.reward
    assert measure is not None
    return measure > settings.threshold


def _version(decision: Decision) -> int:
    assert decision.completion is not None
    return decision.completion.policy_version


def _prompt_length(decision: Decision) -> int:
    assert decision.completion is not None
    return len(decision.completion.prompt_token_ids)


def trained_reward(reward: float, score: float | None, settings: ContinuousSettings) -> float:
    """What is learned for one decision; a mix brings scores to the rewards' range, -1 to 1."""
    if settings.train_on == "reward":
        return reward
    assert score is not None
    if settings.train_on == "score":
        return score
    weight = settings.score_weight
    return (1 - weight) * reward + weight * (2 * score - 1)


def _steps(
    batch_id: str,
    chosen: Sequence[tuple[Decision, float | None]],
    settings: ContinuousSettings,
) -> list[Step]:
    """One step per decision, agent after agent, each agent's in order of time."""
    by_agent: dict[str, list[tuple[Decision, float | None]]] = {}
    for decision, score in chosen:
        by_agent.setdefault(decision.agent_id, []).append((decision, score))
    return [
        _step(batch_id, decision, score, settings, index, index == len(own) - 1)
        for _, own in sorted(by_agent.items())
        for index, (decision, score) in enumerate(own)
    ]


def _step(
    batch_id: str,
    decision: Decision,
    score: float | None,
    settings: ContinuousSettings,
    index: int,
    last: bool,
) -> Step:
    completion, reward = decision.completion, decision.reward
    assert completion is not None
    assert reward is not None
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
        raw_reward=reward,
        reward=trained_reward(reward, score, settings),
        policy_uid=completion.policy_uid,
        policy_version=completion.policy_version,
        info={"decision_id": decision.id, "agent_id": decision.agent_id, "score": score},
    )


def _obstacle(
    own: int, steps: Sequence[Step], settings: ContinuousSettings, algorithm: Algorithm
) -> str:
    """Why ``steps`` are not trained on; empty when they are."""
    if not own:
        return "no decision of the trained model is in it"
    if len(steps) < settings.min_selected:
        return (
            f"{len(steps)} of the model's {own} decisions can be learned from, and "
            f"continuous.min_selected is {settings.min_selected}"
        )
    if is_constant([step.reward for step in steps]):
        return f"all {len(steps)} decisions have the same {settings.train_on}: there is no gradient"
    # A critic's advantages differ where rewards do not, so only its rewards can be looked at.
    if not algorithm.needs_values and not any(algorithm.targets(steps, None).advantages):
        return f"no decision differs from those that {settings.train_on}s are compared with"
    return ""
