"""Chunked log-probs against the plain formula, with torch's own gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.learner.parts import Made

from rlforge.learner.logprobs import Head, Reading, chunked_logprobs, recomputed_logprobs


def make_head(weight, bias, dtype=torch.float32, chunk=1, **reading):
    return Head(weight=weight, bias=bias, dtype=dtype, reading=Reading(**reading), chunk=chunk)


def plain(hidden, token_ids, weight, bias, softcap=None, temperature=1.0, scale=1.0):
    """Log-probs and entropies in one piece."""
    logits = torch.nn.functional.linear(hidden, weight, bias) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logs = torch.log_softmax(logits / temperature, -1)
    by_position = token_ids if token_ids.dim() > 1 else token_ids[:, None]
    chosen = logs.gather(-1, by_position).view(token_ids.shape)
    return chosen, -(logs.exp() * logs).sum(-1)


@given(
    st.integers(0, 13),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([None, 3.0]),
    st.sampled_from([1.0, 0.6]),
    st.sampled_from([1.0, 0.25]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 1, 3]),
    st.integers(0, 100),
)
def test_values_and_gradients_are_those_of_the_plain_formula(
    number, chunk, with_bias, softcap, temperature, scale, entropy, plain_head, tokens, seed
):
    """Of a matrix, and of any function in its place; of one token or several at each position."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    hidden, weight = draw(number, 6), draw(11, 6)
    bias = draw(11) if with_bias else None
    shape = (number,) if tokens is None else (number, tokens)
    token_ids = torch.randint(0, 11, shape, generator=generator)
    factors = torch.randn(*shape, generator=generator, dtype=torch.float64)
    entropy_factors = torch.randn(number, generator=generator, dtype=torch.float64)
    inputs = [hidden, weight, *([bias] if with_bias else [])]
    reading = {"softcap": softcap, "temperature": temperature, "scale": scale}

    if plain_head:
        head = make_head(weight, bias, torch.float64, chunk, **reading)
        logprobs, entropies = chunked_logprobs(hidden, token_ids, head, entropy=entropy)
    else:
        logprobs, entropies = recomputed_logprobs(
            hidden,
            token_ids,
            lambda part: torch.nn.functional.linear(part, weight, bias),
            Reading(**reading),
            chunk,
            entropy=entropy,
        )
    wanted, wanted_entropies = plain(hidden, token_ids, weight, bias, **reading)

    torch.testing.assert_close(logprobs, wanted.float(), rtol=1e-5, atol=1e-5)
    loss, expected = (logprobs * factors).sum(), (wanted * factors).sum()
    if entropy:
        torch.testing.assert_close(entropies, wanted_entropies.float(), rtol=1e-5, atol=1e-5)
        loss = loss + (entropies * entropy_factors).sum()
        expected = expected + (wanted_entropies * entropy_factors).sum()
    else:
        assert entropies is None
    for ours, theirs in zip(
        torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_frozen_head_gets_no_gradient():
    weight, hidden = torch.randn(5, 3), torch.randn(4, 3, requires_grad=True)
    head = make_head(weight, None, chunk=2)
    logprobs, _ = chunked_logprobs(hidden, torch.tensor([0, 1, 2, 4]), head, entropy=False)
    logprobs.sum().backward()
    assert weight.grad is None
    assert hidden.grad is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_logits_are_computed_in_the_dtype_of_the_head(dtype):
    """In float32 the result is exact although hidden states and weights came in bfloat16."""
    torch.manual_seed(0)
    weight, hidden = torch.randn(50, 64).bfloat16(), torch.randn(20, 64).bfloat16()
    ids = torch.arange(20)
    exact, _ = plain(hidden.double(), ids, weight.double(), None)
    logprobs, _ = chunked_logprobs(
        hidden, ids, make_head(weight, None, dtype, chunk=7), entropy=False
    )
    error = float((logprobs - exact).abs().max())
    assert error < 1e-5 if dtype == torch.float32 else 1e-4 < error < 0.5


def test_no_more_logits_than_a_chunk_exist_at_once():
    hidden, weight = torch.randn(30, 4, requires_grad=True), torch.randn(1000, 4)
    head = make_head(weight, None, chunk=3)
    chunked_logprobs(hidden, torch.arange(30), head, entropy=True)  # tries products, once
    with Made() as plain_head:
        logprobs, entropies = chunked_logprobs(hidden, torch.arange(30), head, entropy=True)
        (logprobs.sum() + entropies.sum()).backward()
    with Made() as function:
        logprobs, entropies = recomputed_logprobs(
            hidden, torch.arange(30), lambda h: h @ weight.T, Reading(), 3, entropy=True
        )
        (logprobs.sum() + entropies.sum()).backward()
    assert max(plain_head.sizes(weight)) == max(function.sizes(weight)) == 3 * 1000
