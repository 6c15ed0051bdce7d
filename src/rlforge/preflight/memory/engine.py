"""Memory of an engine: weights, resident versions, KV cache and workspace."""

from __future__ import annotations

from rlforge.config.model import LoraConfig
from rlforge.models.shape import ModelShape
from rlforge.types import value


@value
class EngineJob:
    """An engine and its greatest load.

    lora: None when versions are whole models. versions: resident besides the base model.
    sequences: of ``length`` tokens, generated at the same time. prompt_tokens: read in one pass.
    paged: the KV cache consists of blocks that sequences take as they grow (vLLM), not of aligned
    rows. cards: among which layers and heads are divided; sizes are those of one card.
    """

    shape: ModelShape
    lora: LoraConfig | None
    bf16: bool
    versions: int
    sequences: int
    length: int
    prompt_tokens: int
    paged: bool
    cards: int = 1

    @property
    def number_bytes(self) -> int:
        """Of a weight, and of a key or value."""
        return 2 if self.bf16 else 4


def weight_bytes(job: EngineJob) -> int:
    """The base model, or one card's part."""
    return job.shape.parameters * job.number_bytes // job.cards


def version_bytes(job: EngineJob) -> int:
    """All resident versions.

    Whole models where all weights are trained. The transformers engine merges an adapter into a
    copy of the float32 layers it changes, and keeps it in float32 as well, as next to bfloat16
    ones; while versions are computed in one batch, it holds each adapter a second time. vLLM
    reserves room for each in the dtype of the model.
    """
    shape, lora = job.shape, job.lora
    if lora is None:
        return job.versions * weight_bytes(job)
    if job.paged:
        return job.versions * shape.adapter_parameters(lora) * job.number_bytes
    adapters = 2 * job.versions * shape.adapter_parameters(lora) * 4
    if job.bf16:
        return adapters
    adapted = shape.adapted(lora)
    changed = sum(i * o * adapted[name] for name, (i, o) in shape.linears.items())
    return job.versions * changed * 4 + adapters


def token_bytes(job: EngineJob) -> int:
    """Keys and values of one token: 2 (K and V) x layers x their width x bytes.

    Cards divide the heads; with fewer heads than cards each has one.
    """
    shape = job.shape
    width = shape.key // min(job.cards, shape.kv_heads)
    return 2 * shape.layers * width * job.number_bytes


def sequence_bytes(job: EngineJob) -> int:
    """One running sequence of full length, with the spare room of its cache.

    Keys and values kept for the next turn of a conversation have the room that running sequences
    leave (``engine.cache_tokens``), and need no more.
    Aligned rows grow by a quarter (``rlforge.engines.cache``) and so take up to 5/4 of their
    content. They grow one layer at a time, whose old and new room exist together for a moment.
    With several versions each has room for up to an eighth more rows than it runs.
    """
    if job.paged:
        return token_bytes(job) * job.length
    one_layer = 2 * job.shape.key * job.number_bytes
    alone = (token_bytes(job) * 5 // 4 + one_layer) * job.length
    return alone * 9 // 8 if job.versions else alone


def workspace_bytes(job: EngineJob) -> int:
    """One pass over prompts without gradients, and the logits of the sampled tokens.

    Per prompt token the stream and a float32 norm (12 H) and the feed-forward with the float32
    copy of its product (10 F), or 12 F if the model computes in float32; per sequence three
    float32 rows of logits (as computed, over the temperature, sorted for ``top_p``). In aligned
    rows, prompts also have their own keys and values until these join the cache, and attention
    under their mask copies keys and values of one layer for every query head.
    """
    shape = job.shape
    per_token = 12 * shape.hidden + (10 if job.bf16 else 12) * shape.ffn
    if not job.paged:
        per_token += token_bytes(job) + 2 * shape.query * job.number_bytes
    return per_token * job.prompt_tokens + 12 * shape.vocab * job.sequences
