"""``rlforge.learner.Learner.update`` with the options of conf/learner; needs no Ray."""

from __future__ import annotations

import torch

from rlforge.config.model import LoraConfig, ModelConfig
from rlforge.config.schema import RunConfig
from rlforge.config.training import GameLearnerConfig, ReinforceConfig
from rlforge.learner import make_learner
from rlforge.learner.ranks import Ranks
from rlforge.samples import Sample, TrainBatch

from .work import Turn, Work


class Contender:
    """REINFORCE, aggregated as every contender does it; the learner cuts its own micro-batches."""

    packages = ("rlforge",)

    def __init__(self, work: Work, count: int) -> None:
        config = RunConfig(
            model=ModelConfig(
                kind="hf",
                name=work.model,
                dtype="float32",
                lora=LoraConfig(
                    rank=work.rank, alpha=work.alpha, target_modules=list(work.target_modules)
                ),
            ),
            algorithm=ReinforceConfig(
                importance_cap=None,
                loss_aggregation="constant",
                max_generation_len=work.longest_answer,
            ),
            learner=GameLearnerConfig(
                **work.learner,
                initial_adapter=work.adapter,
                learning_rate=work.learning_rate,
                grad_clip=work.grad_clip,
            ),
        )
        self._learner = make_learner(config, torch.device("cpu"), Ranks())
        self._batch = TrainBatch(
            samples=tuple(_sample(turn) for turn in work.turns), whole_episodes=False
        )

    def update(self) -> None:
        self._learner.update(self._batch)


def _sample(turn: Turn) -> Sample:
    return Sample(
        origin=f"game-{turn.game}",
        env_id="SimpleTak-v0-train",
        player_id=turn.player,
        group_id=None,
        turn_index=turn.index,
        last_turn=turn.last,
        observation=turn.prompt,
        action=turn.answer,
        prompt_token_ids=turn.prompt_ids,
        token_ids=turn.answer_ids,
        logprobs=turn.logprobs,
        raw_reward=turn.advantage,
        reward=turn.advantage,
        policy_uid="step-0",
        policy_version=0,
    )
