"""REINFORCE as written first: transformers and PEFT, padded micro-batches, full logits."""

from __future__ import annotations

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from .work import Turn, Work


class Contender:
    """``count`` turns at a time, in the order they come, padded on the right to their longest."""

    packages = ("peft",)

    def __init__(self, work: Work, count: int) -> None:
        base = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32)
        self._model = PeftModel.from_pretrained(base, work.adapter, is_trainable=True).train()
        self._trained = [p for p in self._model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(self._trained, lr=work.learning_rate, weight_decay=0.0)
        self._work = work
        self._count = count

    def update(self) -> None:
        turns = self._work.turns
        for start in range(0, len(turns), self._count):
            self._loss(turns[start : start + self._count]).backward()
        torch.nn.utils.clip_grad_norm_(self._trained, self._work.grad_clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _loss(self, turns: tuple[Turn, ...]) -> Tensor:
        ids = [torch.tensor(turn.prompt_ids + turn.answer_ids) for turn in turns]
        width = max(map(len, ids))
        input_ids = torch.full((len(ids), width), self._work.pad_token_id)
        attention = torch.zeros((len(ids), width), dtype=torch.long)
        answer = torch.zeros((len(ids), width))
        for row, turn in enumerate(turns):
            input_ids[row, : len(ids[row])] = ids[row]
            attention[row, : len(ids[row])] = 1
            answer[row, len(turn.prompt_ids) : len(ids[row])] = 1.0
        logits = self._model(input_ids=input_ids, attention_mask=attention, use_cache=False).logits
        logprobs = torch.log_softmax(logits[:, :-1], dim=-1)
        chosen = logprobs.gather(-1, input_ids[:, 1:, None]).squeeze(-1)
        advantages = torch.tensor([turn.advantage for turn in turns])
        total = (chosen * answer[:, 1:] * advantages[:, None]).sum()
        return -total / (len(self._work.turns) * self._work.longest_answer)
