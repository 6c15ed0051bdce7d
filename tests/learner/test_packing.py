"""Segments of any lengths and prefixes, in blocks of similar ones."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from rlforge.learner.attention import segment_attention
from rlforge.learner.batching import Row, collate, whole
from rlforge.learner.packing import Packing, Segment, Segments
from rlforge.learner.partition import in_order, segments

CPU = torch.device("cpu")


def packing_of(segments):
    """Of ``segments``, whatever rows they belong to."""
    return Packing.of(Segments(segments=tuple(segments), ends=()), CPU)


def one_by_one(query, key, value, packing):
    """The attention of each segment by itself, over keys listed by ``packing.keys``."""
    keys = torch.arange(len(key)) if packing.keys is None else packing.keys
    ends = zip(
        pairwise(packing.query_ends.tolist()), pairwise(packing.key_ends.tolist()), strict=True
    )
    outputs = []
    for queries, (begin, end) in ends:
        q, k, v = query[slice(*queries)], key[keys[begin:end]], value[keys[begin:end]]
        seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        parts = (part.transpose(0, 1) for part in (q, k, v))
        output = scaled_dot_product_attention(*parts, attn_mask=seen, enable_gqa=True)
        outputs.append(output.transpose(0, 1))
    return torch.cat(outputs)


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=12)


@settings(max_examples=50)
@given(prompts=PROMPTS, shared=st.booleans())
def test_blocks_give_the_attention_of_each_segment_and_its_gradient(prompts, shared):
    torch.manual_seed(0)
    rows = in_order([Row(sample=0, prompt=tuple(prompt), answer=()) for prompt in prompts])
    packing = collate(rows, 0, CPU, segments(rows) if shared else whole(rows)).packing
    count = int(packing.query_ends[-1])
    weight = torch.randn(count, 4, 8)
    given_parts = [torch.randn(count, heads, 8) for heads in (4, 2, 2)]
    results = []
    for attend in (
        lambda *parts: segment_attention(*parts, packing, None, True),
        lambda *parts: one_by_one(*parts, packing),
    ):
        parts = [part.clone().requires_grad_() for part in given_parts]
        output = attend(*parts)
        (output * weight).sum().backward()
        results.append([output.detach(), *(part.grad for part in parts)])
    for ours, wanted in zip(*results, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)


def test_segments_of_one_length_are_one_block_without_a_mask():
    rows = [Segment(row=n, begin=0, end=7) for n in range(50)]
    [block] = packing_of(rows).blocks.blocks
    assert (block.count, block.queries, block.keys, block.causal) == (50, 7, 7, True)
    assert block.mask is None


def test_many_short_segments_after_a_prefix_are_few_blocks():
    """A call for each took as long as the rest of an update of short turns."""
    stem = Segment(row=0, begin=0, end=30)
    ends = [Segment(row=n, begin=30, end=31 + n % 20, parent=0) for n in range(200)]
    blocks = packing_of([stem, *ends]).blocks
    assert len(blocks.blocks) < 20
    padded = sum(block.count * block.queries * block.keys for block in blocks.blocks)
    assert padded < 1.3 * sum((end.end - 30) * end.end for end in ends)


def test_long_segments_are_not_padded():
    rows = [Segment(row=n, begin=0, end=length) for n, length in enumerate((900, 300, 500, 320))]
    blocks = packing_of(rows).blocks.blocks
    assert sorted((block.count, block.keys) for block in blocks) == [
        (1, 300),
        (1, 320),
        (1, 500),
        (1, 900),
    ]
