"""Log-probabilities of sampled tokens under a model, from as few logits as possible.

Only positions that predict an answer token go through the output head, ``MAX_LOGITS`` logits at a
time. Each shorter way is tried on a few rows first (``rlforge.learner.trial``). Where decoder and
head do not give the model's logits, its own forward pass does, with the head narrowed to those
positions; where that fails, too, each row has a plain pass of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from rlforge.errors import ConfigError
from rlforge.learner.attention import NAME, gathered, packed_calls
from rlforge.learner.batching import MicroBatch, collate, rows_of, sums_of, whole
from rlforge.learner.logprobs import (
    Head,
    Reading,
    chunked_logprobs,
    logprobs_of,
    recomputed_logprobs,
)
from rlforge.learner.packing import Segments
from rlforge.learner.partition import parts, segments
from rlforge.learner.trial import Trial
from rlforge.models.devices import is_lost
from rlforge.models.last_layer import LastLayer, difference, evaluating, predicts_the_same
from rlforge.system.limits import MAX_LOGITS
from rlforge.types import value

log = logging.getLogger(__name__)

T = TypeVar("T")

#: So small that tanh(x) = x, and a power of two: multiplying by it does not round.
_SMALL = 2.0**-13


@value
class Scores:
    """Scores of a micro-batch.

    Attributes:
        logprobs [N]: Answer tokens.
        entropy [N]: In nats, if asked for.
        values [B]: With a value head.
        unread: Positions that the last layer left out (``rlforge.models.last_layer``).
        legal_logprobs [N, K]: Tokens with which a legal answer goes on, padded with minus infinity;
            None where the micro-batch has none.
    """

    logprobs: Tensor
    entropy: Tensor | None
    values: Tensor | None
    unread: int = 0
    legal_logprobs: Tensor | None = None


@value
class ScorerOptions:
    """How logits are computed.

    Attributes:
        use_cache: Build a KV cache in padded passes.
        autocast: Dtype that layers compute in; None: that of their weights.
        fp32_head: The head computes in float32 in any case.
        narrow: The last layer computes only positions that are read, where outputs stay the same;
            not for compiled or recomputed layers.
    """

    temperature: float
    use_cache: bool = False
    autocast: torch.dtype | None = None
    fp32_head: bool = False
    narrow: bool = False
    max_logits: int = MAX_LOGITS


class Scorer:
    """Scores answer tokens of micro-batches at the temperature they were sampled at.

    Log-probs are log softmax(logits / temperature) in float32, the distribution that the engine
    draws from when ``top_p`` is 1 and ``top_k`` and ``min_p`` are 0.
    """

    def __init__(
        self,
        model: Any,
        options: ScorerOptions,
        value_head: nn.Module | None = None,
        trial: Trial | None = None,
    ) -> None:
        """Take a transformers causal LM with its adapters; ``trial``: of the model before changes.

        Raises ConfigError for ``fp32_head`` if only the model's own forward pass gives its logits.
        """
        self._model = model
        self._decoder = model.get_decoder()
        self._head = model.get_output_embeddings()
        self._options = options
        self._value_head = value_head
        self._chunk = max(1, options.max_logits // model.config.get_text_config().vocab_size)
        self._last_layer: LastLayer | None = None
        #: Most rows of a pass; None: any number.
        self.most_rows: int | None = None
        name = type(model).__name__
        with self._precision():
            self._trial = self._run(lambda: Trial.of(model)) if trial is None else trial
        self._reading = self._run(self._find_reading)
        if self._reading is not None and (problem := self._problem()):
            log.warning("%s: its decoder and head, one after the other, %s", name, problem)
            self._reading = None
        if self._reading is None:
            if options.fp32_head:
                raise ConfigError(
                    f"learner.fp32_head: the logits of {name} come only from its whole forward "
                    "pass; switch it off"
                )
            log.warning("%s computes the logits of all answers of a pass at once", name)
            # The model's own pass may still compute padded rows differently.
            if problem := self._problem():
                self.most_rows = 1
                log.warning("%s reads each sequence by itself: a padded pass %s", name, problem)
        with self._precision():
            narrow = options.narrow and self._reading is not None and predicts_the_same(model)
        self._last_layer = LastLayer(self._decoder) if narrow else None

    @property
    def narrowed(self) -> tuple[nn.Module, ...]:
        return () if self._last_layer is None else self._last_layer.modules

    @property
    def decoder_and_head(self) -> bool:
        """Whether these two give the logits; otherwise only the model's own forward pass does."""
        return self._reading is not None

    def score(self, micro: MicroBatch, *, entropy: bool = False) -> Scores:
        """Log-probs of the answer tokens, entropy and values, with gradient where it is enabled."""
        return self._score(micro, entropy=entropy)

    def _run(self, function: Callable[[], T]) -> T:
        """Run the model by ``function``; a spread model needs a pass around it."""
        return function()

    def _score(self, micro: MicroBatch, *, entropy: bool) -> Scores:
        unread, legal = 0, micro.legal_ids
        token_ids = micro.token_ids
        if legal is not None:
            # Absent tokens, -1, are no index: they are scored as token 0, and masked below.
            token_ids = torch.cat([token_ids[:, None], legal.clamp(min=0)], dim=1)
        with self._precision():
            if self._reading is not None:
                hidden, unread = self._hidden(micro)
                logprobs, entropies = self._by_chunks(
                    gathered(hidden, micro.positions), token_ids, self._reading, entropy
                )
            else:
                hidden, logits = self._by_model(micro.input_ids, micro.positions)
                reading = Reading(temperature=self._options.temperature)
                logprobs, entropies = logprobs_of(logits, token_ids, reading, entropy=entropy)
        if legal is not None:
            logprobs = torch.cat(
                [logprobs[:, :1], logprobs[:, 1:].masked_fill(legal < 0, -math.inf)], dim=1
            )
        if micro.copies is not None:
            logprobs = logprobs.index_select(0, micro.copies)
            entropies = None if entropies is None else entropies.index_select(0, micro.copies)
        return Scores(
            logprobs=logprobs if legal is None else logprobs[:, 0],
            legal_logprobs=None if legal is None else logprobs[:, 1:],
            entropy=entropies,
            values=self._values(hidden, micro.last_prompt),
            # ``Operations`` does not count padding, so padding cannot save any.
            unread=max(unread - micro.padding, 0),
        )

    def values(self, micro: MicroBatch) -> Tensor:
        """Critic's estimate [B] at the last prompt token; no logits are computed."""
        with self._precision():
            if self.decoder_and_head:
                hidden, _ = self._hidden(micro)
            else:
                hidden, _ = self._by_model(micro.input_ids, micro.last_prompt[:0])
        values = self._values(hidden, micro.last_prompt)
        assert values is not None
        return values

    def _precision(self) -> AbstractContextManager[Any]:
        if self._options.autocast is None:
            return nullcontext()
        return torch.autocast(self._model.device.type, dtype=self._options.autocast)

    def _values(self, hidden: Tensor, last_prompt: Tensor) -> Tensor | None:
        if self._value_head is None:
            return None
        values: Tensor = self._value_head(gathered(hidden, last_prompt).float())
        return values.squeeze(-1)

    def _hidden(self, micro: MicroBatch) -> tuple[Tensor, int]:
        """Decoder's last hidden states [R * L, H], and how many of them are not computed."""
        options: dict[str, Any] = {"use_cache": self._options.use_cache}
        if micro.packing is not None:
            options = {
                "position_ids": micro.packing.position_ids,
                "packing": micro.packing,
                "use_cache": False,
            }
        layer, total = self._last_layer, micro.input_ids.numel()
        with nullcontext(0) if layer is None else layer.read_at(micro.reads, total) as unread:
            output = self._decoder(input_ids=micro.input_ids, **options)
        # States at micro.reads are computed; the others may hold anything.
        hidden: Tensor = output.last_hidden_state
        return hidden.flatten(0, 1), unread

    def _by_model(self, input_ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [B * L, H], and logits [N, V] by the model's own forward pass."""
        seen: list[Tensor] = []
        # A pass of one row stays plain: it is the last resort, where all else differed.
        narrows = self.most_rows is None

        def narrow(_head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            seen.append(inputs[0].flatten(0, 1))
            return (seen[0].index_select(0, positions)[None], *inputs[1:]) if narrows else None

        with self._head.register_forward_pre_hook(narrow):
            logits = self._model(input_ids=input_ids, use_cache=self._options.use_cache).logits
        return seen[0], logits[0] if narrows else logits[0].index_select(0, positions)

    def _by_chunks(
        self, hidden: Tensor, token_ids: Tensor, reading: Reading, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        if type(self._head) is not nn.Linear:
            return recomputed_logprobs(
                hidden, token_ids, self._whole_head(), reading, self._chunk, entropy=entropy
            )
        weight, options = self._head.weight, self._options
        head = Head(
            weight=weight,
            bias=self._head.bias,
            dtype=torch.float32 if options.fp32_head else options.autocast or weight.dtype,
            reading=reading,
            chunk=self._chunk,
        )
        return chunked_logprobs(hidden, token_ids, head, entropy=entropy)

    def _whole_head(self) -> Callable[[Tensor], Tensor]:
        head: nn.Module = self._head
        if not self._options.fp32_head:
            return head
        weights = {name: parameter.float() for name, parameter in head.named_parameters()}

        def in_float32(hidden: Tensor) -> Tensor:
            with torch.autocast(hidden.device.type, enabled=False):
                outputs: Tensor = functional_call(head, weights, (hidden.float(),))
            return outputs

        return in_float32

    @torch.no_grad()
    def can_pack(self) -> bool:
        """Switch to packing attention if the log-probs stay the same; returns whether they do."""
        # Tried, not looked up: a model may cap or bias its attention or count positions unasked,
        # and a card may lack the kernel.
        layers: list[Any] = []
        # The cache raises AttributeError for a model in parts, which counts no layers (BLT).
        with contextlib.suppress(AttributeError):
            layers = DynamicCache(config=self._model.config).layers
        own = self._model.config._attn_implementation
        rows = self._trial.rows
        if not self.decoder_and_head:
            problem = "needs logits that come from decoder and head"
        elif not layers or any(type(layer) is not DynamicLayer for layer in layers):
            problem = "needs layers that attend to all tokens before, without a window"
        else:
            try:
                self._model.set_attn_implementation(NAME)
            # A model that knows only its own attention refuses ours.
            except ValueError as error:
                problem = f"fails with {error!r}"
            else:
                with packed_calls() as calls:
                    problem = self._problem(whole(rows)) or self._problem(segments(rows))
                # Rounding in bfloat16 may hide that the model's own attention ran, without packing.
                problem = problem or ("" if calls else "reaches none of its layers")
            if problem:
                self._model.set_attn_implementation(own)
        if problem:
            log.warning("sequences are padded, not packed: packing %s", problem)
        return not problem

    @torch.no_grad()
    def _problem(self, made: Segments | None = None) -> str:
        """Text on how the scores of the trial's rows fail or differ; "" if they do neither.

        ``made`` are the rows as segments, packed; None: they are padded.
        """
        expected = self._trial.scores(self._options.temperature)
        rows = self._trial.rows
        micro = collate(rows, 0, self._model.device, made, distinct=made is None)

        def scores() -> Tensor:
            found = self._score(micro, entropy=True)
            assert found.entropy is not None
            return torch.empty_like(expected).index_copy(
                1, micro.flat, torch.stack([found.logprobs, found.entropy])
            )

        with evaluating(self._model), self._precision():
            exact = self._trial.exact
            return self._run(lambda: difference(scores, lambda: expected, exact))

    @torch.no_grad()
    def _find_reading(self) -> Reading | None:
        """How the model computes its logits from the head's outputs, tried on a few tokens.

        Known numbers replace the head's output, so that the logits show scaling (Granite, Cohere)
        and soft caps (Gemma). None if the model does anything else, e.g. scales hidden states first
        (MiniCPM).
        """
        ids = torch.arange(4, device=self._model.device)[None]
        read: list[Tensor] = []
        marks: list[Tensor] = []

        def mark(_head: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
            # A soft cap shows only in large outputs: it hardly changes small ones.
            values = torch.linspace(-30.0, 30.0, outputs.numel(), device=outputs.device)
            values[0] = _SMALL
            read.append(inputs[0])
            marks.append(values.view(outputs.shape))
            return marks[0].clone()

        try:
            with evaluating(self._model), self._precision():
                hidden = self._decoder(input_ids=ids, use_cache=False)
                with self._head.register_forward_hook(mark):
                    logits = self._model(input_ids=ids, use_cache=False).logits
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            if is_lost(error):
                raise
            # A decoder that does not run by itself leaves only the model's own pass.
            return None
        hidden = getattr(hidden, "last_hidden_state", None)
        if hidden is None or hidden.shape != read[0].shape or logits.shape != marks[0].shape:
            return None
        # The same operations on the same shapes round alike, so the tolerance can be small.
        if not torch.allclose(read[0], hidden, rtol=1e-5, atol=1e-6):
            return None
        text_config = self._model.config.get_text_config()
        reading = Reading(
            # A cap does not change an output this small, so the quotient is the scale.
            scale=float(logits.flatten()[0]) / _SMALL,
            softcap=getattr(text_config, "final_logit_softcapping", None),
        )
        if not torch.allclose(reading.logits(marks[0]), logits.float(), rtol=1e-5, atol=1e-6):
            return None
        return dataclasses.replace(reading, temperature=self._options.temperature)


@torch.no_grad()
def answer_logprobs(
    model: Any,
    options: ScorerOptions,
    answers: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    pad_token_id: int,
    most_tokens: int = 4096,
) -> list[float]:
    """Log-probs of whole answers given their prompts, from pairs of both.

    A forward pass has at most ``most_tokens``.
    """
    rows, total = rows_of(answers)
    logprobs = torch.zeros(total)
    scorer = Scorer(model, options)
    for part in parts(rows, scorer.most_rows, most_tokens, "distinct"):
        micro = collate(part, pad_token_id, model.device, distinct=True)
        logprobs[micro.flat.cpu()] = scorer.score(micro).logprobs.cpu()
    return sums_of(rows, logprobs)
