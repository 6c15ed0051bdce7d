"""Packed sequences give the same results as padded ones."""

import copy
import inspect
from itertools import pairwise

import pytest
import torch
from tests.factories import causal_lm
from tests.learner import parts
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlforge.learner import attention
from rlforge.learner.attention import NAME, causal_attention
from rlforge.learner.batching import Row, collate, whole
from rlforge.learner.partition import segments
from rlforge.learner.scorer import Scorer, ScorerOptions

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gemma2", {"sliding_window": 64}),
        ("gemma2", {"layer_types": ["full_attention"] * 2, "attn_logit_softcapping": 50.0}),
        ("mistral", {"sliding_window": 8}),
    ],
)
def test_models_with_softcaps_sinks_or_windows_keep_their_own_attention(kind, changes):
    model = causal_lm(kind, **changes)
    own = model.config._attn_implementation
    assert not Scorer(model, ScorerOptions(temperature=1.0)).can_pack()
    assert model.config._attn_implementation == own != NAME


def test_a_model_whose_outputs_change_when_packed_keeps_its_own_attention(monkeypatch):
    def wrong(*args, **kwargs):
        output, weights = causal_attention(*args, **kwargs)
        return output * 1.01, weights

    model = causal_lm("qwen3")
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, NAME, wrong)
    assert not Scorer(model, ScorerOptions(temperature=1.0)).can_pack()
    assert model.config._attn_implementation == "sdpa"


def test_without_the_kernel_long_steps_are_packed_and_short_ones_padded():
    model = parts.model(max_position_embeddings=128)
    for length, padded in ((10, True), (80, False)):
        samples = [
            parts.sample(prompt_token_ids=(3,) * (length + extra), token_ids=(4,), logprobs=(-1.0,))
            for extra in (0, 5)
        ]
        metrics = parts.learner(copy.deepcopy(model)).update(parts.batch(samples)).metrics
        assert (metrics["padding_share"] > 0) == padded


def test_a_kv_cache_is_refused():
    query, key = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match="5 keys for 3 queries"):
        causal_attention(None, query, key, key)


def attend(query, key, value, query_ends, key_ends, scale, window_size, gqa):
    """The computation of the GPU kernel: causal attention of segments, aligned at their ends."""
    assert window_size == (-1, 0)
    query_ends, key_ends = query_ends.tolist(), key_ends.tolist()
    outputs = []
    for (q0, q1), (k0, k1) in zip(pairwise(query_ends), pairwise(key_ends), strict=True):
        q, k, v = (part.transpose(0, 1) for part in (query[q0:q1], key[k0:k1], value[k0:k1]))
        mask = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(k1 - k0 - (q1 - q0))
        outputs.append(
            scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=gqa)
        )
    return torch.cat(outputs, dim=1).transpose(0, 1)


def torch_2_11(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
):
    """``varlen_attn`` with the arguments of torch 2.11, which groups heads always."""
    gqa = query.shape[1] != key.shape[1]
    return attend(query, key, value, cu_seq_q, cu_seq_k, scale, window_size, gqa)


def torch_2_13(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
    seqused_k=None,
    block_table=None,
    num_splits=None,
):
    """With those of torch 2.13, which groups heads with ``enable_gqa``."""
    return attend(query, key, value, cu_seq_q, cu_seq_k, scale, window_size, enable_gqa)


def test_installed_torch_has_the_signature_of_one_fake_kernel():
    here, *others = (
        list(inspect.signature(call).parameters)
        for call in (varlen.varlen_attn, torch_2_11, torch_2_13)
    )
    assert here in others


@pytest.mark.parametrize("kernel", [torch_2_11, torch_2_13])
@pytest.mark.parametrize("build", [whole, segments])
def test_every_version_of_the_kernel_gives_the_result_of_segment_attention(
    monkeypatch, kernel, build
):
    torch.manual_seed(0)
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    rows = [Row(sample=0, prompt=(1,) * n + (n,), answer=()) for n in (4, 10, 10, 17)]
    micro = collate(rows, 0, CPU, build(rows))
    tensors = [torch.randn(micro.input_ids.numel(), heads, 8) for heads in (4, 2, 2)]
    gradients = []
    for attend_all in (attention.varlen_attention, attention.segment_attention):
        copies = [part.clone().requires_grad_() for part in tensors]
        output = attend_all(*copies, micro.packing, None, True)
        output.square().sum().backward()
        gradients.append((output.detach(), *(copy.grad for copy in copies)))
    for ours, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)


class OneByOne(TorchDispatchMode):
    """Adds rows as a GPU does: each sum is rounded to the tensor's dtype."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.index_add.default, torch.ops.aten.index_add_.default):
            into, dim, index, source = args
            assert dim == 0
            into = into if function is torch.ops.aten.index_add_.default else into.clone()
            for place, row in zip(index.tolist(), source, strict=True):
                into[place] += row
            return into
        return function(*args, **(kwargs or {}))


def test_gradient_of_a_prefix_shared_by_hundreds_is_exact_to_its_dtype(monkeypatch):
    """Keys of the prefix sum the gradients of 300 rows without losing small ones."""
    torch.manual_seed(0)
    monkeypatch.setattr(varlen, "varlen_attn", torch_2_13)
    rows = [Row(sample=0, prompt=(1,) * 12 + (2 + n, 3), answer=()) for n in range(300)]
    micro = collate(rows, 0, CPU, segments(rows))
    assert micro.input_ids.numel() == 12 + 300 * 2
    given = [torch.randn(612, heads, 16).bfloat16() for heads in (4, 2, 2)]
    weight = torch.rand(612, 4, 16).bfloat16()  # of one sign, so that the sum grows
    errors = []
    for dtype in (torch.bfloat16, torch.float64):
        query, key, value = (part.to(dtype, copy=True).requires_grad_() for part in given)
        output = attention.varlen_attention(query, key, value, micro.packing, None, True)
        with OneByOne():
            (output * weight).sum().backward()
        errors.append([part.grad[:12].double() for part in (key, value)])
    for ours, exact in zip(*errors, strict=True):
        assert (ours - exact).norm() < 2e-3 * exact.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("build", [whole, segments])
def test_varlen_kernel_on_a_gpu_equals_segment_attention(build):
    torch.manual_seed(0)
    device = torch.device("cuda")
    rows = [Row(sample=0, prompt=(1,) * n + (n,), answer=()) for n in (44, 103, 103, 169)]
    micro = collate(rows, 0, device, build(rows))
    query, key, value = (
        torch.randn(micro.input_ids.numel(), heads, 64, device=device, dtype=torch.bfloat16)
        for heads in (8, 2, 2)
    )
    ours = attention.varlen_attention(query, key, value, micro.packing, None, True)
    wanted = attention.segment_attention(
        query.float(), key.float(), value.float(), micro.packing, None, True
    )
    torch.testing.assert_close(ours.float(), wanted, rtol=2e-2, atol=2e-2)
