"""Log-probabilities of sampled tokens under a model, from as few logits as possible.

Only positions that predict an answer token go through the output head, and of those only as many
at a time as keep the logits small: for a vocabulary of 150,000 words the logits of one long answer
would outweigh the model. Any Hugging Face causal language model works: where decoder and head
alone do not reproduce the model's own logits, its whole forward runs, with the head narrowed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlforge.learner.batching import MicroBatch
from rlforge.types import value

#: Most logits held at once while scoring (float32: 256 MiB); beyond it they are recomputed.
MAX_LOGITS = 2**26


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
        value_head: nn.Module | None = None,
        max_logits: int = MAX_LOGITS,
    ) -> None:
        """``model``: a transformers causal LM, adapters included where it carries any."""
        self._model = model
        self._decoder = model.get_decoder()
        self._head = model.get_output_embeddings()
        self._temperature = temperature
        self._use_cache = use_cache
        self._autocast = autocast
        self._value_head = value_head
        text_config = model.config.get_text_config()
        self._softcap: float | None = getattr(text_config, "final_logit_softcapping", None)
        self._chunk = max(1, max_logits // text_config.vocab_size)
        self.decoder_and_head = self._reproduces_model()

    def score(self, micro: MicroBatch, *, entropy: bool = False) -> Scores:
        """Log-probs of the answer tokens; values and entropy with gradient where it is enabled."""
        with self._precision():
            if self.decoder_and_head:
                hidden = self._hidden(micro.input_ids)
                logprobs, entropies = self._score_chunks(
                    hidden.index_select(0, micro.positions), micro.token_ids, entropy
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
                hidden = self._hidden(micro.input_ids)
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

    def _hidden(self, input_ids: Tensor) -> Tensor:
        """Hidden states in front of the head [B * L, H]."""
        output = self._decoder(input_ids=input_ids, use_cache=self._use_cache)
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

    def _score_chunks(
        self, hidden: Tensor, token_ids: Tensor, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        if len(token_ids) <= self._chunk:
            return self._score_hidden(hidden, token_ids, entropy)
        # Each chunk's logits are freed after its scores and computed again for the gradient.
        run: Callable[..., tuple[Tensor, Tensor | None]] = self._score_hidden
        pieces = [
            checkpoint(run, part, ids, entropy, use_reentrant=False)
            for part, ids in zip(
                torch.split(hidden, self._chunk), torch.split(token_ids, self._chunk), strict=True
            )
        ]
        logprobs = torch.cat([piece[0] for piece in pieces])
        return logprobs, torch.cat([piece[1] for piece in pieces]) if entropy else None

    def _score_hidden(
        self, hidden: Tensor, token_ids: Tensor, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        return self._score_logits(self._logits(hidden), token_ids, entropy)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head(hidden)
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

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
    def _reproduces_model(self) -> bool:
        """Whether decoder, head and soft cap give the model's own logits, tried on a few tokens.

        Some models scale hidden states or logits by factors of their own (Granite, Cohere,
        MiniCPM); their forward pass is the only description of it.
        """
        was_training = self._model.training
        self._model.eval()
        ids = torch.arange(4, device=self._model.device)[None]
        with self._precision():
            expected = self._model(input_ids=ids, use_cache=False).logits
            output = self._decoder(input_ids=ids, use_cache=False)
            hidden = getattr(output, "last_hidden_state", None)
            actual = None if hidden is None else self._logits(hidden)
        self._model.train(was_training)
        # The same operations on the same shapes: rounding gives no room for doubt.
        return actual is not None and torch.allclose(actual, expected, rtol=1e-5, atol=1e-6)
