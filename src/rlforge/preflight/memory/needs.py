"""Memory of a learner and of an engine, part by part, from the shape of the model.

What a pass keeps is one coefficient for each kind of layer, fitted to the tensors of real passes
and to peaks of a card (``benchmarks/results/memory.json``).
"""

from __future__ import annotations

import math

from rlforge.config.model import LoraConfig
from rlforge.models.shape import ModelShape
from rlforge.system.limits import MAX_LOGITS, merging_lora_pays
from rlforge.types import value

GIB = 2**30

#: Parts that outlast the turn of an engine or learner, and can wait on the host for the next one.
LASTING = frozenset({"weights", "versions", "other models", "adapter", "AdamW states"})


#: Most bytes, and share of a pass, that the allocator of a CPU keeps in pieces of earlier passes.
# Passes of ever new sizes leave such pieces; blocks of more than 32 MiB go back at once.
MOST_PIECES, PIECES_OF_PASS = 256 * 2**20, 2.5


class Need(dict[str, int]):
    """Bytes of one process at its peak, by the name of the part."""

    @property
    def total(self) -> int:
        return sum(self.values())

    def only(self, *names: str) -> Need:
        return Need({name: size for name, size in self.items() if name in names})


@value
class Coefficients:
    """Numbers that a decoder layer keeps for its backward pass, per position and unit of width."""

    hidden: int  #: norms, and the inputs of both modules
    attention: int  #: queries, keys, values and output
    head_norms: int  #: more of these, where they are normalised
    feed_forward: int  #: gate, up and their product


ADAPTED = Coefficients(hidden=4, attention=2, head_norms=1, feed_forward=4)
# Under autocast each linear layer keeps a bfloat16 copy of its input, too.
AUTOCAST = Coefficients(hidden=9, attention=2, head_norms=3, feed_forward=4)
# With dropout each adapter keeps its own copy of the input, and the mask.
DROPPED = Coefficients(hidden=12, attention=3, head_norms=1, feed_forward=5)

#: The same numbers while the gradient of one layer is computed, of the feed-forward and the stream.
GRADIENT_OF_FEED_FORWARD, GRADIENT_OF_HIDDEN = 2, 1
#: Float32 numbers per unit of hidden width around the last norm, which is at the head.
AROUND_LAST_NORM = 5


@value
class LearnerJob:
    """One forward and backward pass and its model."""

    shape: ModelShape
    lora: LoraConfig | None  #: None trains every weight
    tokens: int  #: positions computed
    answers: int  #: positions whose log-probs are taken
    bf16: bool  #: the model was loaded in bfloat16
    layer_checkpoints: bool = False  #: ``gradient_checkpointing``
    module_checkpoints: bool = False  #: ``activation_checkpointing``
    reference: bool = False  #: a frozen copy of the model is held, too
    fp32_head: bool = False
    entropy: bool = False
    ranks: int = 1  #: among which weights are divided

    @property
    def number(self) -> int:
        return 2 if self.bf16 else 4

    @property
    def head_number(self) -> int:
        return 4 if self.fp32_head else self.number

    @property
    def autocast(self) -> bool:
        """Whether layers compute in bfloat16 with float32 weights."""
        # Trained weights are float32, so layers need autocast; several ranks gather them in
        # bfloat16.
        return self.bf16 and self.lora is None and self.ranks == 1

    @property
    def trained(self) -> int:
        shape, lora = self.shape, self.lora
        return shape.parameters if lora is None else shape.adapter_parameters(lora)

    def adapts(self, *names: str) -> bool:
        return self.lora is None or not self.shape.adapted(self.lora).keys().isdisjoint(names)


def learner_need(job: LearnerJob, process: int, versions: int = 0, policies: int = 1) -> Need:
    """The learner at the peak of its longest pass.

    process: bytes of a process without tensors. versions: earlier adapters that are kept of each
    policy. policies: each has an adapter and optimizer states of its own, which stay.
    """
    shape, ranks = job.shape, job.ranks
    model = shape.parameters * (4 if job.lora is None else job.number)
    adapter = 0 if job.lora is None else 4 * job.trained
    gradients, moments = 4 * job.trained, 8 * job.trained
    if ranks > 1:
        # A rank gathers the weights outside the layers, the running layer and the next one; an
        # adapter is whole on every rank.
        layer = shape.linear_parameters // shape.layers
        outside = shape.parameters - shape.linear_parameters
        model = model // ranks + (outside + 2 * layer) * job.number
        if job.lora is None:
            gradients, moments = gradients // ranks + 4 * layer, moments // ranks
    kept, peak, logits = kept_bytes(job), workspace_bytes(job), logits_bytes(job)
    return Need(
        {
            "weights": model * (2 if job.reference else 1),
            "adapter": policies * adapter,
            **({"versions": versions * policies * adapter} if versions else {}),
            "gradients": gradients,
            "AdamW states": policies * moments,
            "activations": kept,
            "logits": logits,
            # The peak may come when no logits exist, so only what exceeds their room is added.
            "workspace": peak - logits,
            "process": process,
        }
    )


def with_pieces(learner: Need) -> Need:
    """A learner on a CPU, whose allocator keeps pieces of its passes."""
    one_pass = learner.only("activations", "logits", "workspace").total
    return Need(learner | {"allocator": min(MOST_PIECES, int(PIECES_OF_PASS * one_pass))})


def kept_bytes(job: LearnerJob) -> int:
    """Bytes that all decoder layers keep for the backward pass."""
    # ``gradient_checkpointing`` keeps a layer's input, ``activation_checkpointing`` the inputs of
    # two norms and two modules, both together the input of the layer and that of its attention.
    inputs = {(True, False): 1, (True, True): 2, (False, True): 4}
    stream = (4 if job.autocast else job.number) * job.shape.hidden
    if each := inputs.get((job.layer_checkpoints, job.module_checkpoints)):
        return job.shape.layers * each * stream * job.tokens
    return job.shape.layers * (layer_bytes(job) * job.tokens + made_bytes(job))


def layer_bytes(job: LearnerJob, *, attention: bool = True) -> int:
    """Bytes per position that a decoder layer keeps. attention: False: only its feed-forward."""
    shape, of = job.shape, ADAPTED
    if job.autocast:
        of = AUTOCAST
    elif job.lora is not None and job.lora.dropout:
        of = DROPPED
    # Frozen layers have no gradient, so their inputs are not kept.
    feed_forward = (of.feed_forward - (not job.adapts("down_proj"))) * shape.ffn
    rank = 0
    if (lora := job.lora) is not None:
        rank = lora.rank * (len(shape.adapted(lora)) - len(merged(job, lora)))
    if not attention:
        return job.number * (feed_forward + rank)
    read = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
    hidden = of.hidden - sum(not job.adapts(*names) for names in read)
    norms = of.head_norms if shape.head_norms else 0
    heads = (of.attention + norms) * (shape.query + shape.key)
    return job.number * (hidden * shape.hidden + heads + feed_forward + rank)


def made_bytes(job: LearnerJob) -> int:
    """Weights that a pass makes for one layer and keeps, for any number of tokens."""
    shape, lora = job.shape, job.lora
    if lora is None:
        # Autocast copies float32 weights to bfloat16.
        return 2 * shape.linear_parameters // shape.layers if job.autocast else 0
    if job.bf16:
        return 2 * job.trained // shape.layers
    # In float32 ``rlforge.learner.kernels`` merges adapters of small layers into new weights.
    return sum(4 * math.prod(shape.linears[name]) for name in merged(job, lora))


def merged(job: LearnerJob, lora: LoraConfig) -> list[str]:
    """The linear layers of which ``rlforge.learner.kernels`` computes W + s B A."""
    return [
        name
        for name, (inputs, outputs) in job.shape.linears.items()
        if job.adapts(name) and merging_lora_pays(inputs, outputs, lora.rank)
        if not job.bf16 and not lora.dropout
    ]


def logits_bytes(job: LearnerJob) -> int:
    """Bytes of one chunk of logits (``rlforge.learner.logprobs``)."""
    # Float32 logits, a copy in log-sum-exp and one for the entropy have 4 bytes each.
    each = 12 if job.entropy else 8
    if job.lora is not None and job.adapts("lm_head"):
        # An adapted head holds its outputs before they become float32, too.
        each = 8 + job.head_number
    return min(job.answers, max(1, MAX_LOGITS // job.shape.vocab)) * job.shape.vocab * each


def head_bytes(job: LearnerJob) -> int:
    """Weights that the head makes: a copy in another dtype, and their gradient."""
    held, gradient = (4, 4) if job.lora is None else (job.number, 0)
    copied = 0 if held == job.head_number else job.head_number
    return job.shape.hidden * job.shape.vocab * (copied + gradient)


def workspace_bytes(job: LearnerJob) -> int:
    """Most bytes besides those that are kept: at the head, or in the last layer's backward pass."""
    shape, tokens = job.shape, job.tokens
    stream = (4 if job.autocast else job.number) * shape.hidden
    around = max(logits_bytes(job) + head_bytes(job), AROUND_LAST_NORM * 4 * shape.hidden * tokens)
    at_head = stream * (tokens + job.answers) + around
    gradient = GRADIENT_OF_FEED_FORWARD * shape.ffn + GRADIENT_OF_HIDDEN * shape.hidden
    in_layer = job.number * gradient * tokens
    if job.layer_checkpoints or job.module_checkpoints:
        # A layer is computed again, or one module at a time, of which the feed-forward is larger.
        again = layer_bytes(job, attention=not job.module_checkpoints)
        inputs = 2 * stream if job.layer_checkpoints and job.module_checkpoints else 0
        in_layer += (again + inputs) * tokens + made_bytes(job)
    return max(at_head, in_layer)


@value
class EngineJob:
    """An engine and its greatest load."""

    shape: ModelShape
    lora: LoraConfig | None  #: None when versions are whole models
    bf16: bool
    versions: int  #: resident besides the base model
    sequences: int  #: generated at the same time
    length: int  #: tokens of a sequence
    prompt_tokens: int  #: read in one pass
    paged: bool  #: the KV cache consists of blocks that sequences take as they grow (vLLM)
    cards: int = 1  #: among which layers and heads are divided

    @property
    def number(self) -> int:
        return 2 if self.bf16 else 4

    @property
    def weights(self) -> int:
        return self.shape.parameters * self.number // self.cards


def engine_need(job: EngineJob, process: int) -> Need:
    return Need(
        {
            "weights": job.weights,
            "versions": version_bytes(job),
            "KV cache": sequence_bytes(job) * job.sequences,
            "workspace": reading_bytes(job),
            "process": process,
        }
    )


def version_bytes(job: EngineJob) -> int:
    shape, lora = job.shape, job.lora
    if lora is None:
        return job.versions * job.weights
    if job.paged:
        # vLLM reserves room for adapters in the dtype of the model.
        return job.versions * shape.adapter_parameters(lora) * job.number
    # Each adapter is held twice in float32 while versions share a batch.
    each = 8 * shape.adapter_parameters(lora)
    if not job.bf16:
        # In float32 a version has a copy of the layers that it changes, too.
        adapted = shape.adapted(lora)
        each += sum(4 * i * o * adapted[name] for name, (i, o) in shape.linears.items())
    return job.versions * each


def token_bytes(job: EngineJob) -> int:
    """Keys and values of one token."""
    # Cards divide the heads; with fewer heads than cards, each card holds one.
    width = job.shape.key // min(job.cards, job.shape.kv_heads)
    return 2 * job.shape.layers * width * job.number


def sequence_bytes(job: EngineJob) -> int:
    """One running sequence of full length, with the spare room of its cache."""
    if job.paged:
        return token_bytes(job) * job.length
    # The cache grows by a quarter (``rlforge.engines.cache``), one layer at a time, whose old and
    # new room exist together for a moment. Rows for mixed versions take up to an eighth more.
    one_layer = 2 * job.shape.key * job.number
    alone = (token_bytes(job) * 5 // 4 + one_layer) * job.length
    return alone * 9 // 8 if job.versions else alone


def reading_bytes(job: EngineJob) -> int:
    """One pass over prompts without gradients, and three float32 rows of logits per sequence."""
    shape = job.shape
    per_token = 12 * shape.hidden + (10 if job.bf16 else 12) * shape.ffn
    if not job.paged:
        # Prompts have keys and values of their own until these join the cache.
        per_token += token_bytes(job) + 2 * shape.query * job.number
    return per_token * job.prompt_tokens + 12 * shape.vocab * job.sequences
