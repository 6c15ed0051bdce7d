"""Memory of the learner: weights, states, and the tensors of one forward and backward pass.

Bytes are counted operation by operation. Notation: n positions in a pass; H, F, V the
widths of hidden states, feed-forward and vocabulary; Q and K those of queries and keys; r the rank;
a the bytes of a number in the layers' products (2 in bfloat16, else 4), s those of the residual
stream. A bfloat16 model computes under autocast, which makes a copy of every float32 tensor that a
weight multiplies; inputs of adapted layers are bfloat16 already.
"""

from __future__ import annotations

from rlforge.config.model import LoraConfig
from rlforge.models.shape import ModelShape
from rlforge.system.limits import MAX_LOGITS, merging_lora_pays
from rlforge.types import value


@value
class LearnerJob:
    """One forward and backward pass and its model.

    tokens: positions computed; length: those of the longest row. answers: positions whose log-probs
    are taken. lora: None trains every weight. bf16: the model was loaded in bfloat16.
    layer_checkpoints and module_checkpoints: ``gradient_checkpointing`` and
    ``activation_checkpointing``. reference: a frozen copy of the model is held too. fp32_head,
    entropy: as configured. ranks: among which the weights are divided.
    """

    shape: ModelShape
    lora: LoraConfig | None
    tokens: int
    length: int
    answers: int
    bf16: bool
    layer_checkpoints: bool = False
    module_checkpoints: bool = False
    reference: bool = False
    fp32_head: bool = False
    entropy: bool = False
    ranks: int = 1

    @property
    def compute_bytes(self) -> int:
        """Of a number in the layers' products: a."""
        return 2 if self.bf16 else 4

    @property
    def stream_bytes(self) -> int:
        """Of a number in the residual stream: s, as of the weights in a pass."""
        return 2 if self.bf16 and not self.mixed else 4

    @property
    def mixed(self) -> bool:
        """Whether layers compute in bfloat16 with float32 weights, which all trained weights are.

        Weights divided over ranks are gathered in bfloat16 (``rlforge.learner.sharding``).
        """
        return self.bf16 and self.lora is None and self.ranks == 1


def adapted(job: LearnerJob, *names: str) -> int:
    """How many of the linear layers ``names`` carry an adapter."""
    return 0 if job.lora is None else len(set(names) & set(job.shape.adapted(job.lora)))


# ---------------------------------------------------------------- weights and states


def weight_bytes(job: LearnerJob) -> int:
    """The model in the dtype it was loaded in, or in float32 where all of it is trained.

    Divided over ranks (FSDP2, ``rlforge.learner.sharding``), a rank holds its part of everything
    and gathers whole the weights outside the layers, the running layer and the next one.
    """
    shape, held = job.shape, 4 if job.lora is None else job.compute_bytes
    model = shape.parameters * held
    if job.ranks > 1:
        layer = shape.linear_parameters // shape.layers
        outside = shape.parameters - shape.linear_parameters
        model = model // job.ranks + (outside + 2 * layer) * job.compute_bytes
    return model * (2 if job.reference else 1)


def trained_parameters(job: LearnerJob) -> int:
    """Number of trained parameters: those of the adapter, or all."""
    if job.lora is None:
        return job.shape.parameters
    return job.shape.adapter_parameters(job.lora)


def adapter_bytes(job: LearnerJob) -> int:
    """The adapter, in float32."""
    return 0 if job.lora is None else 4 * trained_parameters(job)


def gradient_bytes(job: LearnerJob) -> int:
    """One float32 number per trained parameter, kept over the passes of an update.

    Divided over ranks: a part of it, and one layer's gradient before it is divided; an adapter is
    whole on every rank.
    """
    own = 4 * trained_parameters(job)
    if job.ranks == 1 or job.lora is not None:
        return own
    return own // job.ranks + 4 * job.shape.linear_parameters // job.shape.layers


def optimizer_bytes(job: LearnerJob) -> int:
    """AdamW's two moments in float32 (Loshchilov and Hutter 2019), from the first step on."""
    return 8 * trained_parameters(job) // (job.ranks if job.lora is None else 1)


# ---------------------------------------------------------------- kept for the backward pass


def _norm(job: LearnerJob, width: int, groups: int, input_bytes: int) -> int:
    """Per position: the input and 1 / rms (``rlforge.learner.kernels``).

    With a float32 gain after a layer in bfloat16: the input in float32, and the gain's factor.
    """
    mixed = job.mixed and input_bytes == 2
    return (4 + input_bytes if mixed else input_bytes) * width + 4 * groups


def _inputs(job: LearnerJob, width: int, *names: str, is_kept: bool) -> int:
    """Per position: bytes that linear layers ``names`` keep of their common input.

    A frozen layer keeps none. Adapted ones share the tensor itself, which costs nothing where
    another operation keeps it (``is_kept``); so do trained ones, but under autocast each has a
    copy unless the input is bfloat16 already. Each adapter keeps r numbers, A x.
    """
    if job.lora is None:
        copies = 0 if is_kept else len(names) if job.mixed else 1
        return job.compute_bytes * width * copies
    count = adapted(job, *names)
    low_rank = sum(job.lora.rank for name in names if adapted(job, name) and not merges(job, name))
    dropped = count if job.lora.dropout > 0 else 0  # each dropout makes a tensor of its own
    shared = 1 if count and not dropped and not is_kept else 0
    return job.compute_bytes * (width * (shared + 2 * dropped) + low_rank)


def attention_bytes(job: LearnerJob, *, input_is_kept: bool = False) -> int:
    """Per position, kept by one attention module.

    Inputs of q, k and v; head norms; queries, keys, values, output and one log-sum-exp per head
    (FlashAttention-2, Dao 2023: no score matrix), which is o's input.
    """
    shape, a = job.shape, job.compute_bytes
    kept = _inputs(job, shape.hidden, "q_proj", "k_proj", "v_proj", is_kept=input_is_kept)
    if shape.head_norms:
        kept += _norm(job, shape.query, shape.heads, a) + _norm(job, shape.key, shape.kv_heads, a)
    kept += a * (2 * shape.query + 2 * shape.key) + 4 * shape.heads
    return kept + _inputs(job, shape.query, "o_proj", is_kept=True)


def feed_forward_bytes(job: LearnerJob, *, input_is_kept: bool = False) -> int:
    """Per position, kept by one feed-forward module: silu(g), g and u, and inputs of its layers."""
    shape, a = job.shape, job.compute_bytes
    kept = _inputs(job, shape.hidden, "gate_proj", "up_proj", is_kept=input_is_kept)
    kept += 3 * a * shape.ffn
    if job.lora is None:
        return kept + a * shape.ffn  # the product is made in the layers' dtype: no copy
    return kept + _inputs(job, shape.ffn, "down_proj", is_kept=False)


def layer_bytes(job: LearnerJob, *, input_is_kept: bool = False) -> int:
    """Per position, kept by one decoder layer without checkpointing.

    input_is_kept: the residual stream is kept anyway; its norm then keeps nothing new.
    """
    shape = job.shape
    norms = 2 * _norm(job, shape.hidden, 1, job.stream_bytes)
    if input_is_kept:
        norms -= job.stream_bytes * shape.hidden
    return norms + attention_bytes(job) + feed_forward_bytes(job)


def merges(job: LearnerJob, name: str) -> bool:
    """Whether ``rlforge.learner.kernels`` computes W + s B A for the linear layer ``name``."""
    if job.lora is None or job.bf16 or job.lora.dropout > 0 or not adapted(job, name):
        return False
    head = (job.shape.hidden, job.shape.vocab)
    inputs, outputs = head if name == "lm_head" else job.shape.linears[name]
    return merging_lora_pays(inputs, outputs, job.lora.rank)


def made_weights(job: LearnerJob) -> int:
    """Bytes of weights that a pass makes for one layer and keeps, for any number of tokens.

    Autocast keeps a bfloat16 copy of each float32 weight, adapter or all; layers with a merged
    adapter keep the sum in float32.
    """
    linears = job.shape.linears
    if job.lora is None:
        return sum(2 * i * o for i, o in linears.values()) if job.mixed else 0
    if job.bf16:
        return sum(2 * job.lora.rank * (i + o) for n, (i, o) in linears.items() if adapted(job, n))
    return sum(4 * i * o for name, (i, o) in linears.items() if merges(job, name))


def kept_bytes(job: LearnerJob) -> int:
    """All decoder layers, after the forward pass.

    ``gradient_checkpointing`` keeps the input of each layer, ``activation_checkpointing`` the
    inputs of its two norms and two modules; both together the input of each layer and of its
    attention. With a frozen embedding the first layer's input needs no gradient, so its norm keeps
    nothing. A KV cache (``use_trainer_cache``) holds the tensors that attention
    keeps anyway. The rotation's sines and cosines are shared by all layers.
    """
    shape, n = job.shape, job.tokens
    stream, rotation = job.stream_bytes * shape.hidden, 2 * job.stream_bytes * shape.head_dim
    if job.layer_checkpoints:
        inputs = shape.layers * (2 if job.module_checkpoints else 1)
        return inputs * stream * n + rotation * job.length
    if job.module_checkpoints:
        inputs = 4 * shape.layers - (0 if job.lora is None else 1)
        return inputs * stream * n + rotation * job.length
    kept = shape.layers * (layer_bytes(job) * n + made_weights(job))
    if job.lora is not None:
        kept -= (stream + 4) * n
    return kept + rotation * job.length


# ---------------------------------------------------------------- workspace


def final_bytes(job: LearnerJob) -> int:
    """The last norm, and the hidden states of answer tokens that the head reads."""
    hidden = job.shape.hidden
    answers = job.answers * (hidden * job.stream_bytes + 16)
    return _norm(job, hidden, 1, job.stream_bytes) * job.tokens + answers


def logits_bytes(job: LearnerJob) -> int:
    """While one chunk of logits exists (``rlforge.learner.logprobs``).

    Per logit 4 bytes, and 4 more inside log-sum-exp or, with entropy, 8 more; the gradient of a
    bytes per logit fits into the same room. An adapted head runs as a module: its outputs, their
    float32 copy and 4 more bytes exist together, with or without entropy. Models whose logits of a
    pass all exist at once (``not Scorer.decoder_and_head``) are not in ``shape.FAMILIES`` and have
    no plan.
    """
    chunk = min(job.answers, max(1, MAX_LOGITS // job.shape.vocab))
    each = 12 if job.entropy else 8
    if adapted(job, "lm_head"):
        each = 8 + _head_number(job)
    return chunk * job.shape.vocab * each


def head_bytes(job: LearnerJob) -> int:
    """Workspace of the head besides its logits.

    Its weights cast to another dtype and, where they are trained, their gradient, made in float32
    besides the one that is kept. For an adapter its copy in bfloat16, or W + s B A where it merges.
    """
    inputs, outputs = job.shape.hidden, job.shape.vocab
    held = 4 if job.lora is None else job.compute_bytes
    each = 0 if held == _head_number(job) else _head_number(job)
    each += 4 if job.lora is None else 0
    if merges(job, "lm_head"):
        each += 4
    adapter = 0
    if job.lora is not None and adapted(job, "lm_head") and _head_number(job) == 2:
        adapter = 2 * job.lora.rank * (inputs + outputs)
    return inputs * outputs * each + adapter


def _head_number(job: LearnerJob) -> int:
    """Bytes of a number in the head's product."""
    return 4 if job.fp32_head else job.compute_bytes


def layer_workspace(job: LearnerJob) -> int:
    """Temporaries while one layer's gradient is computed, at their peak in down_proj.

    Adapter: gradients of the product by both paths (2 a F), and of the stream and the output.
    All weights: gradients of the product and its factors (2 a F). Counted from the tensors alive
    in the learner's passes (tests/preflight/memory/test_learner.py measures them).
    """
    shape = job.shape
    if job.lora is None:
        wide, narrow = 2 * job.compute_bytes, 3 * job.stream_bytes // 2
    else:
        wide, narrow = 2 * job.compute_bytes, job.compute_bytes
    return (wide * shape.ffn + narrow * shape.hidden) * job.tokens


def attention_workspace(job: LearnerJob) -> int:
    """The same for an attention module: gradients of queries, keys, values, output and rotation.

    Negative terms: by then the inputs of later modules are freed, so this module needs less than
    the peak.
    """
    shape = job.shape
    if not job.bf16:
        wide, narrow = 12, -6
    elif job.lora is None:  # the rotation is float32, and so are the norms of heads
        wide, narrow = (13 if shape.head_norms else 10), -1
    else:
        wide, narrow = (10, -6) if shape.head_norms else (4, 2)
    return (wide * shape.query + narrow * shape.hidden) * job.tokens


def in_layer_bytes(job: LearnerJob) -> int:
    """While the last layer's gradient is computed: its recomputed tensors and temporaries.

    Checkpoints recompute the tensors of a layer, or of one module at a time with
    ``activation_checkpointing``.
    """
    n, stream = job.tokens, job.stream_bytes * job.shape.hidden
    if job.module_checkpoints:
        # Linear layers keep the module's input, which is held anyway, unless they cast it.
        held = not job.mixed
        attention = attention_bytes(job, input_is_kept=held) * n + attention_workspace(job)
        feed_forward = feed_forward_bytes(job, input_is_kept=held) * n + layer_workspace(job)
        inputs = 2 * stream * n if job.layer_checkpoints else 0
        return inputs + made_weights(job) + max(attention, feed_forward)
    if job.layer_checkpoints:
        kept = layer_bytes(job, input_is_kept=True) * n + made_weights(job)
        return kept + layer_workspace(job)
    return layer_workspace(job)


def pass_bytes(job: LearnerJob) -> tuple[int, int]:
    """(bytes kept for the backward pass, most bytes besides) of one pass.

    The peak comes at the head, with everything kept, or in the backward pass of the last layer.
    """
    head = logits_bytes(job) + head_bytes(job)
    # Around the last norm: five float32 tensors [n, H], one of them for the layers.
    last_norm = 20 * job.shape.hidden * job.tokens
    at_head = final_bytes(job) + max(head, last_norm)
    return kept_bytes(job), max(at_head, in_layer_bytes(job))
