"""Measures the versions of a run exactly while it trains (``eval.exploitability``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlforge.config.schema import RunConfig
from rlforge.errors import RunError
from rlforge.models.files import AVERAGE
from rlforge.record.results import ExactResult
from rlforge.rollout.lineup import eval_envs
from rlforge.run.lifecycle import RunContext
from rlforge.run.observers import Observer
from rlforge.types import Checkpoint, EnvSpec, PolicyRef

# Both modules load torch, which the controller does without.
if TYPE_CHECKING:
    from rlforge.lab.exact.table import Questions
    from rlforge.learner.learner import Learner


class ExactMeasure(Observer):
    """Lets the learner score the answers to every decision of the games of evaluation."""

    def __init__(self, context: RunContext[RunConfig]) -> None:
        self._config, self._note = context.config, context.note
        self._learner, self._envs = context.actors.learner, eval_envs(context.config)

    async def evaluating(self, checkpoint: Checkpoint) -> Sequence[ExactResult]:
        if not self._config.eval.exploitability:
            return ()
        policy = checkpoint.policy()
        given = self._config, policy, self._envs
        try:
            results: list[ExactResult] = await self._learner.apply(measured, policy.name, *given)
        except RunError as error:
            # Without any legal answer at a decision there is no measure, and training goes on.
            self._note(f"{checkpoint.uid}: {error}")
            return ()
        return results


def measured(
    learner: Learner,
    rank: int,
    kept: dict[str, Any],
    config: RunConfig,
    policy: PolicyRef,
    envs: Sequence[EnvSpec],
) -> list[ExactResult]:
    """The exact measure in each of ``envs`` of the present weights, which ``policy`` names.

    With ``learner.result=average`` that of their average.
    """
    from rlforge.lab.exact.table import Questions
    from rlforge.models.load import load_tokenizer

    # Made once, because the whole tree of a game is walked for them.
    if "questions" not in kept:
        tokenizer = load_tokenizer(config.model)
        kept["questions"] = [Questions(env, config, tokenizer) for env in envs]
    questions: list[Questions] = kept["questions"]
    averaged = config.learner.result == AVERAGE
    if averaged:
        policy = replace(policy, uid=f"{policy.uid}-{AVERAGE}")
    scored = [
        learner.answer_logprobs([(a.prompt, a.tokens) for a in asked.answers], averaged=averaged)
        for asked in questions
    ]
    # Other ranks only take part in scoring; rank 0 has the result.
    if rank:
        return []
    pairs = zip(questions, scored, strict=True)
    return [asked.measure(asked.table(logprobs), policy) for asked, logprobs in pairs]
