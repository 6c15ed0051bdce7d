"""unstable-rl's REINFORCE learner: its ``__init__``, ``initialize_algorithm`` and ``_update``.

The class and every line it computes with are the package's own. What is different from a run of it:

- The package's ``__init__`` is not executed, because it imports vLLM for the actors; the learner's
  modules are imported one by one. The class is taken out of its Ray actor.
- ``ray.get`` returns what it is given, so that a stand-in for the tracker can name two folders.
- In the learner's modules ``torch.bfloat16`` reads ``torch.float32`` and ``torch.autocast`` does
  nothing. It knows no other precision, and bfloat16 would make it slower by a large factor on a CPU
  without instructions for it.
- Checkpointing, on by default, is off, dropout is 0, and the adapter is the common one (its own
  option for an initial adapter calls a function that release 0.2.2 does not define).

It tokenises texts in every update, as it does in its runs; ``mini_batch_size`` is 1.
"""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from types import SimpleNamespace
from typing import Any

import torch
from peft import set_peft_model_state_dict
from safetensors.torch import load_file

from .unstable_package import register_package
from .work import Work


class Float32Torch:
    """``torch`` as the learner's modules see it."""

    bfloat16 = torch.float32

    @staticmethod
    def autocast(**_: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class Contender:
    """``count`` is its ``mini_batch_size``."""

    packages = ("unstable-rl", "ray", "peft")

    def __init__(self, work: Work, count: int) -> None:
        register_package()
        base, helpers, reinforce = (
            importlib.import_module(f"unstable.learners.{name}")
            for name in ("base", "utils", "reinforce_learner")
        )
        for module in (base, helpers, reinforce):
            module.torch = Float32Torch()  # type: ignore[attr-defined]
        base.ray = SimpleNamespace(get=lambda value: value, get_gpu_ids=list)  # type: ignore[attr-defined]
        folder = SimpleNamespace(remote=lambda: tempfile.mkdtemp(prefix="unstable-rl-"))
        learner = reinforce.REINFORCELearner.__ray_metadata__.modified_class(
            model_name=work.model,
            lora_cfg={
                "lora_rank": work.rank,
                "lora_alpha": work.alpha,
                "lora_dropout": 0.0,
                "target_modules": list(work.target_modules),
            },
            batch_size=len(work.turns),
            mini_batch_size=count,
            learning_rate=work.learning_rate,
            grad_clip=work.grad_clip,
            buffer=None,
            tracker=SimpleNamespace(get_log_dir=folder, get_checkpoints_dir=folder),
            model_registry=None,
            activation_checkpointing=False,
            gradient_checkpointing=False,
        )
        longest = max(len(turn.prompt_ids) + len(turn.answer_ids) for turn in work.turns)
        learner.initialize_algorithm(max_train_len=longest, max_generation_len=work.longest_answer)
        set_peft_model_state_dict(
            learner.policy_model, load_file(f"{work.adapter}/adapter_model.safetensors")
        )
        _check_tokens(learner.tokenizer, work)
        step = importlib.import_module("unstable._types").Step
        self._steps = [
            step(
                pid=turn.player,
                obs=turn.prompt,
                act=turn.answer,
                reward=turn.advantage,
                env_id="SimpleTak-v0-train",
                step_info={},
            )
            for turn in work.turns
        ]
        self._learner = learner

    def update(self) -> None:
        self._learner._update(self._steps)


def _check_tokens(tokenizer: Any, work: Work) -> None:
    """It reads texts where the others read ids: they must be the same."""
    for turn in work.turns:
        if tokenizer(turn.prompt + turn.answer).input_ids != [*turn.prompt_ids, *turn.answer_ids]:
            raise ValueError(f"game {turn.game}, turn {turn.index}: text and ids differ")
