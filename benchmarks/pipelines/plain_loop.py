"""The loop that one writes first: ``generate`` of transformers, then a step of REINFORCE with PEFT.

Games in lockstep with one padded ``generate`` a round, then padded micro-batches with full logits;
one after the other in one process. Prompts are padded on the left to play, on the right to learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from .selfplay import Ids, SelfPlay, Turn
from .work import Work

PACKAGES = ("peft",)


def run(work: Work, updated: Callable[[], None]) -> SelfPlay:
    """``work.updates`` updates of ``work.turns`` turns."""
    base = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32)
    lora = LoraConfig(
        r=work.rank,
        lora_alpha=work.alpha,
        target_modules=list(work.target_modules),
        layers_to_transform=list(work.layers),
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, lora)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=work.learning_rate, weight_decay=0.0)
    games = SelfPlay(work, AutoTokenizer.from_pretrained(work.model))

    def generate(prompts: list[Ids]) -> list[list[int]]:
        width = max(map(len, prompts))
        rows = [[work.pad_token_id] * (width - len(ids)) + list(ids) for ids in prompts]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        with torch.inference_mode():
            out = model.generate(
                input_ids=torch.tensor(rows),
                attention_mask=torch.tensor(mask),
                do_sample=True,
                top_k=0,
                max_new_tokens=work.max_tokens,
                eos_token_id=list(work.stop_token_ids),
                pad_token_id=work.pad_token_id,
            )
        return [until_stop(answer, work.stop_token_ids) for answer in out[:, width:].tolist()]

    for _ in range(work.updates):
        model.eval()
        turns = games.play(work.turns, generate)
        model.train()
        mean = sum(turn.reward for turn in turns) / len(turns)
        for start in range(0, len(turns), work.turns_at_a_time):
            part = turns[start : start + work.turns_at_a_time]
            (
                policy_loss(model, part, mean, work.pad_token_id) / (len(turns) * work.max_tokens)
            ).backward()
        torch.nn.utils.clip_grad_norm_(trained, work.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        updated()
    return games


def until_stop(answer: list[int], stop: Sequence[int]) -> list[int]:
    """The answer up to its first stop token, which belongs to it."""
    ends = (index for index, token in enumerate(answer) if token in stop)
    return answer[: next(ends, len(answer)) + 1]


def policy_loss(model: torch.nn.Module, turns: Sequence[Turn], mean: float, pad: int) -> Tensor:
    """-sum(advantage * log-prob) over the answer tokens of ``turns``."""
    ids = [torch.tensor([*turn.prompt_ids, *turn.answer_ids]) for turn in turns]
    width = max(map(len, ids))
    input_ids = torch.full((len(ids), width), pad)
    attention = torch.zeros((len(ids), width), dtype=torch.long)
    weights = torch.zeros((len(ids), width))
    for row, turn in enumerate(turns):
        length = len(ids[row])
        input_ids[row, :length] = ids[row]
        attention[row, :length] = 1
        weights[row, len(turn.prompt_ids) : length] = turn.reward - mean
    logits = model(input_ids=input_ids, attention_mask=attention, use_cache=False).logits
    logprobs = torch.log_softmax(logits[:, :-1], dim=-1)
    chosen = logprobs.gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    return -(chosen * weights[:, 1:]).sum()
