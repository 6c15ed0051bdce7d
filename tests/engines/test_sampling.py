"""Draws follow the described distribution, and only seed and position decide them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from rlforge.engines import sampling
from rlforge.engines.sampling import sample, sampling_logprobs, uniforms


def _ones(rows: int, value: float = 1.0) -> torch.Tensor:
    return torch.full((rows,), value)


def test_uniforms_are_uniform_within_a_stream_and_across_neighbouring_seeds():
    count = np.arange(20_000, dtype=np.uint64)
    zero = np.zeros_like(count)
    for draws in (uniforms(zero, count), uniforms(count, zero)):
        assert draws.min() >= 0
        assert draws.max() < 1
        histogram = np.histogram(draws, bins=20, range=(0, 1))[0]
        chi_squared = ((histogram - 1000) ** 2 / 1000).sum()
        assert chi_squared < 50  # 19 degrees of freedom: exceeded by chance once in 10,000
        assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.03


def test_uniforms_repeat_and_differ_by_counter():
    seeds = np.array([7, 7, 8], dtype=np.uint64)
    first = uniforms(seeds, np.array([0, 1, 0], dtype=np.uint64))
    again = uniforms(seeds, np.array([0, 1, 0], dtype=np.uint64))
    assert (first == again).all()
    assert len(set(first)) == 3


@given(
    st.lists(st.floats(-8, 8), min_size=2, max_size=12), st.floats(0.1, 3.0), st.floats(0.05, 1.0)
)
@example([0.0, -1.4491360458421653e-11, 0.0], 1.0, 0.5)
def test_sampling_logprobs_are_a_distribution_over_the_nucleus(logits, temperature, top_p):
    row = torch.tensor([logits])
    logprobs = sampling_logprobs(row, _ones(1, temperature), _ones(1, top_p))[0].double()
    assert float(logprobs.exp().sum()) == pytest.approx(1, abs=1e-5)
    # The definition, read independently: the smallest set of the likeliest tokens whose mass
    # reaches top_p, divided by that mass. Probabilities and not places are compared, because
    # tokens that are tied in the engine's float32 may be ranked in the float64 of this reading.
    plain = torch.softmax(row[0].double() / temperature, dim=0)
    kept = logprobs > -math.inf
    mass, least_likely_kept = float(plain[kept].sum()), float(plain[kept].min())
    assert all(left_out <= least_likely_kept * (1 + 1e-4) for left_out in plain[~kept].tolist())
    assert mass >= top_p - 1e-5
    assert mass - least_likely_kept < top_p + 1e-5
    assert logprobs[kept].exp().tolist() == pytest.approx((plain[kept] / mass).tolist(), rel=1e-4)


def test_temperature_zero_takes_the_largest_logit_with_logprob_zero():
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 0.0, 0.0]])
    temperature = torch.tensor([0.0, 1.0])
    tokens, logprobs = sample(
        logits, temperature, _ones(2), torch.tensor([[0.99], [0.0]], dtype=torch.float64)
    )
    assert tokens.tolist() == [[1], [0]]
    assert logprobs[0] == 0
    assert logprobs[1] == pytest.approx(float(torch.log_softmax(logits[1], 0)[0]))


def test_frequencies_match_probabilities():
    count = 40_000
    probabilities = torch.tensor([0.05, 0.6, 0.0, 0.35])
    numbers = torch.from_numpy(uniforms(*np.array([[3] * count, range(count)], dtype=np.uint64)))
    tokens, logprobs = sample(
        probabilities.log().expand(count, 4), _ones(count), _ones(count), numbers[:, None]
    )
    shares = torch.bincount(tokens[:, 0], minlength=4) / count
    assert shares.tolist() == pytest.approx(probabilities.tolist(), abs=0.01)
    assert shares[2] == 0
    assert torch.allclose(logprobs.exp(), probabilities[tokens])


@pytest.mark.parametrize("top_p", [1.0, 0.6])
def test_several_tokens_of_a_row_are_those_of_as_many_equal_rows(top_p):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 40, generator=generator)
    numbers = torch.rand(5, 8, generator=generator, dtype=torch.float64)
    tokens, logprobs = sample(logits, _ones(5), _ones(5, top_p), numbers)
    apart = sample(
        logits.repeat_interleave(8, 0), _ones(40), _ones(40, top_p), numbers.reshape(40, 1)
    )
    assert torch.equal(tokens.reshape(40, 1), apart[0])
    assert torch.equal(logprobs.reshape(40, 1), apart[1])


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
def test_the_ends_of_the_unit_interval_draw_tokens_with_mass(uniform):
    logits = torch.tensor([[-torch.inf, 1.0, 2.0, -torch.inf]])
    tokens, logprobs = sample(
        logits, _ones(1), _ones(1), torch.tensor([[uniform]], dtype=torch.float64)
    )
    assert tokens.tolist() == ([[1]] if uniform == 0 else [[2]])
    assert torch.isfinite(logprobs).all()


def test_large_batches_are_sampled_in_chunks(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 50, generator=generator)
    numbers = torch.rand(7, 3, generator=generator, dtype=torch.float64)
    whole = sample(logits, _ones(7), _ones(7, 0.9), numbers)
    monkeypatch.setattr(sampling, "_CHUNK_ELEMENTS", 100)
    parts = sample(logits, _ones(7), _ones(7, 0.9), numbers)
    assert torch.equal(whole[0], parts[0])
    assert torch.equal(whole[1], parts[1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", [(1.0, 0, 0), (0.9, 0, 0), (1.0, 7, 0), (0.9, 9, 0.05)])
def test_a_row_without_a_distribution_gets_nan_and_its_neighbours_do_not(temperature, filters):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 50, generator=generator)
    numbers = torch.rand(6, 1, generator=generator, dtype=torch.float64)
    top_p, top_k, min_p = (_ones(6, each) for each in filters)
    settings = _ones(6, temperature), top_p, numbers, top_k, min_p
    expected = sample(logits, *settings)
    logits[0, 3], logits[2, 49], logits[4] = torch.nan, torch.inf, -torch.inf
    tokens, logprobs = sample(logits, *settings)
    assert logprobs[:, 0].isnan().tolist() == [True, False, True, False, True, False]
    assert ((tokens >= 0) & (tokens < 50)).all()
    assert torch.equal(tokens[1::2], expected[0][1::2])
    assert torch.equal(logprobs[1::2], expected[1][1::2])


def _filtered(row: npt.NDArray[np.float64], k: int, p: float, least: float) -> list[set[int]]:
    """The sets of tokens that min-p, top-k and top-p in turn may leave, read off their definitions.

    Several where tokens are so close that rounding decides between them.
    """
    shares = np.exp(row - row.max())
    shares /= shares.sum()
    kept = shares >= least * shares.max() * (1 - 1e-5)
    if k:
        smallest = np.sort(np.where(kept, shares, 0))[::-1][min(k, len(row)) - 1]
        kept &= shares >= smallest * (1 - 1e-5)
    if p < 1:
        order = [i for i in np.argsort(-shares, kind="stable") if kept[i]]
        left = shares[kept].sum()
        count = next(
            n for n in range(1, len(order) + 1) if shares[order[:n]].sum() / left >= p - 1e-6
        )
        return [set(order[: count + extra]) for extra in (0, 1)]
    return [set(np.flatnonzero(kept))]


@given(
    st.lists(st.integers(-40, 40), min_size=2, max_size=12),
    st.floats(0.1, 3.0),
    st.integers(0, 14),
    st.sampled_from([0.05, 0.3, 0.5, 0.77, 0.9, 1.0]),
    st.sampled_from([0.0, 0.03, 0.2, 0.6, 0.95]),
)
@example([0, 0, 0, -1], 1.0, 2, 1.0, 0.0)  # as likely as the last of two: three are left
@example([10, 5, 0, -5], 1.0, 2, 0.999, 0.0)  # of what top-k leaves, not of all
@example([3, 2, 1, 0], 1.0, 3, 0.9, 0.2)
def test_filters_leave_what_their_definitions_say(steps, temperature, top_k, top_p, min_p):
    row = np.array(steps, dtype=np.float64) / 8
    logprobs = sampling_logprobs(
        torch.tensor(row)[None],
        _ones(1, temperature),
        _ones(1, top_p) if top_p < 1 else None,
        torch.tensor([float(top_k)]),
        torch.tensor([min_p]),
    )[0].double()
    kept = logprobs > -math.inf
    left = torch.tensor(row / temperature)[kept]
    assert logprobs[kept].tolist() == pytest.approx(torch.log_softmax(left, 0).tolist(), abs=1e-4)
    shares = np.exp(row / temperature)
    chosen = sorted(shares[kept.numpy()])
    # Which of equally likely tokens top-p takes is free: what they weigh is compared.
    allowed = [
        sorted(shares[list(each)]) for each in _filtered(row / temperature, top_k, top_p, min_p)
    ]
    assert any(
        len(chosen) == len(each) and np.allclose(chosen, each, rtol=1e-4) for each in allowed
    )


def test_each_row_has_filters_of_its_own():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().repeat(4, 1)
    logprobs = sampling_logprobs(
        logits,
        torch.tensor([1.0, 1.0, 1.0, 0.0]),
        torch.tensor([1.0, 0.5, 1.0, 0.5]),
        torch.tensor([3.0, 0.0, 0.0, 2.0]),
        torch.tensor([0.0, 0.0, 0.6, 0.0]),
    )
    expected = [[4 / 9, 3 / 9, 2 / 9, 0], [4 / 7, 3 / 7, 0, 0], [4 / 7, 3 / 7, 0, 0], [1, 0, 0, 0]]
    assert torch.allclose(logprobs.exp(), torch.tensor(expected))


def test_a_row_without_filters_is_the_same_among_rows_with_them():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    on = torch.tensor([False, True, True, True])
    filters = {
        "top_p": torch.where(on, 0.5, 1.0),
        "top_k": torch.where(on, 5, 0),
        "min_p": torch.where(on, 0.1, 0.0),
    }
    alone = sampling_logprobs(logits[:1], torch.ones(1))
    for name, setting in filters.items():
        among = sampling_logprobs(logits, torch.ones(4), **{name: setting})
        assert torch.equal(among[:1], alone)
    assert torch.equal(sampling_logprobs(logits, torch.ones(4), **filters)[:1], alone)


def test_a_learner_over_all_tokens_is_below_the_nucleus_by_the_mass_that_was_kept():
    """So the importance weight of equal weights is that mass, in [top_p, 1]."""
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0)) * 3
    temperature, top_p = torch.full((50,), 0.7), torch.full((50,), 0.95)
    engine = sampling_logprobs(logits, temperature, top_p)
    learner = torch.log_softmax(logits / 0.7, dim=-1)
    inside = engine.isfinite()
    kept = learner.exp().masked_fill(~inside, 0.0).sum(dim=-1)
    assert ((kept >= 0.95) & (kept <= 1)).all()
    weights = (learner - engine).exp()
    torch.testing.assert_close(weights[inside], kept[:, None].expand_as(weights)[inside])
