"""The parts of a continuous run: policy side, source of decisions, and learning side.

source    ──prompts──▶  policy    ──completions──▶  source
source    ──windows──▶  learning  ──checkpoints──▶  policy
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from rlforge.algorithms import make_algorithm
from rlforge.algorithms.base import Algorithm
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.decisions.reward import DecisionReward
from rlforge.continuous.loop.journal import Journal, ScoreFiles
from rlforge.continuous.loop.learner import Update, WindowLearner
from rlforge.continuous.loop.policy_side import PolicySide, policy_side
from rlforge.continuous.loop.sources import Source, source_of
from rlforge.continuous.ruler.base import DecisionScorer
from rlforge.continuous.ruler.judge_backends import LocalModel
from rlforge.continuous.ruler.scorer import make_scorer
from rlforge.record.digests import DigestChain, facts
from rlforge.run.actors.calls import ActorCalls
from rlforge.run.actors.colocation import update_in_turn
from rlforge.run.lifecycle import RunContext
from rlforge.types import PolicyRef, value


@value
class Assembly:
    """All parts of a run that is ready to begin."""

    policy: PolicySide
    source: Source
    learner: WindowLearner
    scorer: DecisionScorer
    reward: DecisionReward
    algorithm: Algorithm
    journal: Journal
    scores: ScoreFiles
    digests: DigestChain


@contextlib.asynccontextmanager
async def assembled(
    context: RunContext[ContinuousConfig], stop: asyncio.Event
) -> AsyncIterator[Assembly]:
    """Make all parts over the actors of a run, in the state that its directory holds.

    Raises ConfigError, CheckpointError, EngineError or RunError when a part cannot be made.
    """
    config, actors, run_dir = context.config, context.actors, context.run_dir
    update: Update = actors.learner.update
    if context.hardware.alternate:
        # Engine and learner share a device, so they take turns.
        calls = ActorCalls(actors, context.note, elastic=False)
        update = partial(update_in_turn, actors, calls.call)
    async with contextlib.AsyncExitStack() as stack:
        # The journal is opened first, because the source goes on where it ends.
        journal = stack.enter_context(contextlib.closing(Journal(run_dir / "journal.sqlite")))
        policy = await stack.enter_async_context(policy_side(context))
        scorer = _scorer(config, run_dir, policy)
        stack.push_async_callback(scorer.close)
        source = await stack.enter_async_context(source_of(context, policy, journal.last(), stop))
        digests = DigestChain(run_dir)
        if digests.begun:
            # A process that died may have left the line of a window that is not done.
            digests.rewind(journal.done())
        else:
            digests.append(0, {"computed": facts(config, context.hardware)})
        yield Assembly(
            policy=policy,
            source=source,
            learner=WindowLearner(
                actors.learner, run_dir / "checkpoints", config.keep_checkpoints, update
            ),
            scorer=scorer,
            reward=DecisionReward(config.decision_reward),
            algorithm=make_algorithm(config.algorithm, config.engine.max_tokens),
            journal=journal,
            scores=ScoreFiles(run_dir),
            digests=digests,
        )


def _scorer(config: ContinuousConfig, run_dir: Path, policy: PolicySide) -> DecisionScorer:
    ruler = config.ruler
    # A resumed run goes on with what its scorer has learned.
    if ruler.model_path is None:
        ruler = dataclasses.replace(ruler, model_path=str(run_dir / "ruler"))
    local = LocalModel(
        generator=policy.engine,
        tokenizer=policy.tokenizer,
        # The base model judges, because it does not change during training.
        policy=PolicyRef(uid="base", kind="checkpoint"),
        stop_token_ids=policy.params.stop_token_ids,
    )
    return make_scorer(ruler, seed=config.seed, local=local)
