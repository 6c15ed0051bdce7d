"""TRL's GRPO trainer, end to end: its own ``train()``, its own generation, loss and optimizer.

A row of it is one prompt and one completion, here one turn of a game. Of the three ways in which
TRL 1.16 brings in a game, ``rollout_func`` is the one that can play these: a plain prompt with a
reward function has one turn, and ``environment_factory`` calls the game as a tool, which takes a
chat model that calls tools. The function plays the games in lockstep and asks the trainer's own
``_generate_single_turn`` (``generate`` of transformers, left-padded), since the helpers that TRL
has for rollouts need vLLM.

Its settings are the best case for this work: one group over all rows of an update and rewards not
scaled, so that the advantage is the reward less the mean; no reference model (``beta`` 0), no
gradient checkpointing (its default is on), float32 (its default is bfloat16), no logs, no saves.
``dr_grpo`` at ratio 1 has the gradient of REINFORCE. It computes the entropy of answers, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from .selfplay import SelfPlay
from .work import Work

PACKAGES = ("trl", "accelerate", "peft")


class AfterEachStep(TrainerCallback):
    """Calls ``updated`` after each optimizer step."""

    def __init__(self, updated: Callable[[], None]) -> None:
        self._updated = updated

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._updated()


def run(work: Work, updated: Callable[[], None]) -> SelfPlay:
    """``work.updates`` updates of ``work.turns`` turns."""
    if work.turns % work.turns_at_a_time:
        raise ValueError(f"{work.turns} turns cannot be cut into {work.turns_at_a_time} at a time")
    tokenizer = AutoTokenizer.from_pretrained(work.model)
    games = SelfPlay(work, tokenizer)

    def rollout(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        def generate(asked: list[Any]) -> list[list[int]]:
            answers: list[list[int]] = trainer._generate_single_turn(asked, None, {}, 1)[0]
            return answers

        turns = games.play(len(prompts), generate)
        return {
            "prompt_ids": [list(turn.prompt_ids) for turn in turns],
            "completion_ids": [turn.answer_ids for turn in turns],
            "logprobs": None,
            "outcome": [turn.reward for turn in turns],
        }

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32),
        reward_funcs=lambda outcome, **_: outcome,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(prefix="trl-"),
            max_steps=work.updates,
            per_device_train_batch_size=work.turns_at_a_time,
            gradient_accumulation_steps=work.turns // work.turns_at_a_time,
            num_generations=work.turns,
            max_completion_length=work.max_tokens,
            loss_type="dr_grpo",
            scale_rewards="none",
            beta=0.0,
            learning_rate=work.learning_rate,
            lr_scheduler_type="constant",
            max_grad_norm=work.grad_clip,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            seed=work.seed,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        ),
        # One prompt stands for an update: the games are played in the rollout.
        train_dataset=Dataset.from_list([{"prompt": work.env_id}] * work.updates),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=work.rank,
            lora_alpha=work.alpha,
            target_modules=list(work.target_modules),
            layers_to_transform=list(work.layers),
            task_type="CAUSAL_LM",
        ),
        callbacks=[AfterEachStep(updated)],
        rollout_func=rollout,
    )
    trainer.train()
    return games
