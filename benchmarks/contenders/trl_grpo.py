"""TRL's GRPO trainer: its own ``training_step``, loss and optimizer on answers made beforehand.

What it would generate and score is handed to it, padded as it pads: prompts on the left and answers
on the right, to the longest of the batch, before the clock starts. Its settings are the best case
for this work: no reference model (``beta`` 0), no gradient checkpointing (its default is on),
float32 (its default is bfloat16). ``dr_grpo`` at ratio 1 has the gradient of REINFORCE. Its loss
computes the entropy of every answer token too with any settings.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from .work import Work


class Precomputed(GRPOTrainer):
    """The trainer with ``batch`` in place of what it would generate and score."""

    def __init__(self, batch: dict[str, Tensor], **options: Any) -> None:
        super().__init__(**options)
        self._batch = batch

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Tensor]:
        return dict(self._batch)


class Contender:
    """``count`` turns in each of its ``training_step`` calls, and one optimizer step."""

    packages = ("trl", "accelerate", "peft")

    def __init__(self, work: Work, count: int) -> None:
        if len(work.turns) % count:
            raise ValueError(f"{len(work.turns)} turns cannot be cut into parts of {count}")
        self._parts = len(work.turns) // count
        base = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32)
        settings = GRPOConfig(
            output_dir=tempfile.mkdtemp(prefix="trl-"),
            per_device_train_batch_size=count,
            gradient_accumulation_steps=self._parts,
            num_generations=2,
            max_completion_length=work.longest_answer,
            loss_type="dr_grpo",
            beta=0.0,
            learning_rate=work.learning_rate,
            max_grad_norm=work.grad_clip,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
        )
        trainer = Precomputed(
            batch=_batch(work),
            model=PeftModel.from_pretrained(base, work.adapter, is_trainable=True),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=settings,
            train_dataset=Dataset.from_list([{"prompt": turn.prompt} for turn in work.turns]),
            processing_class=AutoTokenizer.from_pretrained(work.model),
        )
        trainer.create_optimizer()
        # As its training loop does before the first step.
        self._model, trainer.optimizer = trainer.accelerator.prepare(
            trainer.model, trainer.optimizer
        )
        trainer.current_gradient_accumulation_steps = self._parts
        self._trainer = trainer

    def update(self) -> None:
        trainer = self._trainer
        for _ in range(self._parts):
            trainer.training_step(self._model, {}, None)
        trainer.accelerator.clip_grad_norm_(self._model.parameters(), trainer.args.max_grad_norm)
        trainer.optimizer.step()
        self._model.zero_grad()


def _batch(work: Work) -> dict[str, Tensor]:
    """The tensors the trainer makes after generation."""
    widest = max(len(turn.prompt_ids) for turn in work.turns)
    rows, pad = len(work.turns), work.pad_token_id
    prompts = torch.full((rows, widest), pad)
    answers = torch.full((rows, work.longest_answer), pad)
    prompt_mask, answer_mask = torch.zeros_like(prompts), torch.zeros_like(answers)
    for row, turn in enumerate(work.turns):
        prompts[row, widest - len(turn.prompt_ids) :] = torch.tensor(turn.prompt_ids)
        prompt_mask[row, widest - len(turn.prompt_ids) :] = 1
        answers[row, : len(turn.answer_ids)] = torch.tensor(turn.answer_ids)
        answer_mask[row, : len(turn.answer_ids)] = 1
    return {
        "prompt_ids": prompts,
        "prompt_mask": prompt_mask,
        "completion_ids": answers,
        "completion_mask": answer_mask,
        "advantages": torch.tensor([turn.advantage for turn in work.turns]),
        "num_items_in_batch": answer_mask.sum(),
    }
