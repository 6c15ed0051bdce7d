"""Log-probabilities of sampled tokens under a model, from as few logits as possible.

Only positions that predict an answer token go through the output head, and of those only as many
at a time as keep the logits small. Any Hugging Face causal language model works: where decoder and
a plain linear head do not reproduce the model's own logits, its whole forward runs, with the head
narrowed to those positions.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from rlforge.learner.attention import NAME
from rlforge.learner.batching import MicroBatch, Row, collate
from rlforge.learner.logprobs import Head, chunked_logprobs
from rlforge.learner.prefixes import segments
from rlforge.types import value

log = logging.getLogger(__name__)

#: Most logits that exist at once while scoring (float32: 128 MiB).
MAX_LOGITS = 2**25


@value
class Scores:
    """logprobs [N], entropy [N] in nats (if asked for), values [B] (with a value head)."""

    logprobs: Tensor
    entropy: Tensor | None
    values: Tensor | None


class Scorer:
    """Scores the answer tokens of micro-batches at the temperature they were sampled at.

    Log-probs are natural and in float32: log softmax(logits / temperature) at the token, the
    distribution the engine draws from when ``top_p`` is 1.
    """

    def __init__(
        self,
        model: Any,
        *,
        temperature: float,
        use_cache: bool = False,
        autocast: torch.dtype | None = None,
        fp32_head: bool = False,
        value_head: nn.Module | None = None,
        max_logits: int = MAX_LOGITS,
    ) -> None:
        """``model``: a transformers causal LM, adapters included where it carries any.

        autocast: dtype that layers compute in, None: that of their weights. fp32_head: logits are
        computed in float32 all the same.
        """
        self._model = model
        self._decoder = model.get_decoder()
        self._head = model.get_output_embeddings()
        self._temperature = temperature
        self._use_cache = use_cache
        self._autocast = autocast
        self._fp32_head = fp32_head
        self._value_head = value_head
        text_config = model.config.get_text_config()
        self._softcap: float | None = getattr(text_config, "final_logit_softcapping", None)
        self._chunk = max(1, max_logits // text_config.vocab_size)
        self.decoder_and_head = self._reproduces_model()

    def score(self, micro: MicroBatch, *, entropy: bool = False) -> Scores:
        """Log-probs of the answer tokens; values and entropy with gradient where it is enabled."""
        with self._precision():
            if self.decoder_and_head:
                hidden = self._hidden(micro)
                logprobs, entropies = chunked_logprobs(
                    hidden.index_select(0, micro.positions),
                    micro.token_ids,
                    self._linear_head(),
                    entropy=entropy,
                )
            else:
                hidden, logits = self._narrowed(micro.input_ids, micro.positions)
                logprobs, entropies = self._score_logits(logits, micro.token_ids, entropy)
        return Scores(
            logprobs=logprobs, entropy=entropies, values=self._values(hidden, micro.last_prompt)
        )

    def values(self, micro: MicroBatch) -> Tensor:
        """The critic's estimate [B] at the last prompt token; no logits are computed."""
        with self._precision():
            if self.decoder_and_head:
                hidden = self._hidden(micro)
            else:
                hidden, _ = self._narrowed(micro.input_ids, micro.last_prompt[:0])
        values = self._values(hidden, micro.last_prompt)
        assert values is not None
        return values

    def _precision(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._model.device.type, dtype=self._autocast)

    def _values(self, hidden: Tensor, last_prompt: Tensor) -> Tensor | None:
        if self._value_head is None:
            return None
        values: Tensor = self._value_head(hidden.index_select(0, last_prompt).float())
        return values.squeeze(-1)

    def _hidden(self, micro: MicroBatch) -> Tensor:
        """Hidden states in front of the head [B * L, H]."""
        if micro.packing is not None:
            output = self._decoder(
                input_ids=micro.input_ids,
                position_ids=micro.packing.position_ids,
                packing=micro.packing,
                use_cache=False,
            )
        else:
            output = self._decoder(input_ids=micro.input_ids, use_cache=self._use_cache)
        hidden: Tensor = output.last_hidden_state
        return hidden.flatten(0, 1)

    def _narrowed(self, input_ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [B * L, H], and logits [N, V] by the model's own forward pass."""
        seen: list[Tensor] = []

        def narrow(_head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            seen.append(inputs[0].flatten(0, 1))
            return (seen[0].index_select(0, positions)[None], *inputs[1:])

        hook = self._head.register_forward_pre_hook(narrow)
        try:
            output = self._model(input_ids=input_ids, use_cache=self._use_cache)
        finally:
            hook.remove()
        return seen[0], output.logits[0]

    def _linear_head(self) -> Head:
        dtype = torch.float32 if self._fp32_head else self._autocast or self._head.weight.dtype
        return Head(
            weight=self._head.weight,
            bias=self._head.bias,
            dtype=dtype,
            softcap=self._softcap,
            temperature=self._temperature,
            chunk=self._chunk,
        )

    def _score_logits(
        self, logits: Tensor, token_ids: Tensor, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """From logits [n, V]: log-probs [n], and H = log Z - sum_v p_v l_v [n] if asked for."""
        logits = logits.float()
        if self._temperature != 1.0:
            logits = logits / self._temperature
        normaliser = logits.logsumexp(-1)
        chosen = logits.gather(-1, token_ids[:, None]).squeeze(-1)
        if not entropy:
            return chosen - normaliser, None
        probabilities = (logits - normaliser[:, None]).exp()
        return chosen - normaliser, normaliser - (probabilities * logits).sum(-1)

    @torch.no_grad()
    def can_pack(self) -> bool:
        """Switch to attention that packs, if the model then says the same as before.

        Tried on a few tokens: a model may cap or bias its attention, and a card may lack the
        kernel. Where it differs or fails, the model keeps the attention it came with.
        """
        # No sliding windows, no recurrent states: layers that look at all keys and values.
        layers = DynamicCache(config=self._model.config).layers
        plain = bool(layers) and all(type(layer) is DynamicLayer for layer in layers)
        if not (self.decoder_and_head and plain):
            return False
        was_training = self._model.training
        self._model.eval()
        device, own = self._model.device, self._model.config._attn_implementation
        rows = [Row(step=0, prompt=tuple(range(n)), answer=()) for n in (4, 6, 9)]
        padded = collate(rows, 0, device)
        with self._precision():
            expected = self._hidden(padded)[padded.last_prompt]
        self._model.set_attn_implementation(NAME)
        packed = collate(rows, 0, device, segments(rows))
        try:
            with self._precision():
                actual = self._hidden(packed)[packed.last_prompt]
            error = float((actual - expected).float().norm() / expected.float().norm())
            exact = self._autocast is None and actual.dtype == torch.float32
            same = error < (1e-4 if exact else 0.05)
        except (RuntimeError, TypeError, ValueError) as problem:
            log.warning("sequences are padded, not packed: %s", problem)
            same = False
        if not same:
            self._model.set_attn_implementation(own)
        self._model.train(was_training)
        return same

    @torch.no_grad()
    def _reproduces_model(self) -> bool:
        """Whether decoder, head and soft cap give the model's own logits, tried on a few tokens.

        Some models scale hidden states or logits by factors of their own (Granite, Cohere,
        MiniCPM); their forward pass is the only description of it.
        """
        was_training = self._model.training
        self._model.eval()
        ids = torch.arange(4, device=self._model.device)[None]
        actual = None
        with self._precision():
            expected = self._model(input_ids=ids, use_cache=False).logits
            output = self._decoder(input_ids=ids, use_cache=False)
            if type(self._head) is nn.Linear and hasattr(output, "last_hidden_state"):
                actual = self._head(output.last_hidden_state)
                if self._softcap is not None:
                    actual = torch.tanh(actual / self._softcap) * self._softcap
        self._model.train(was_training)
        # The same operations on the same shapes: rounding gives no room for doubt.
        return actual is not None and torch.allclose(actual, expected, rtol=1e-5, atol=1e-6)
