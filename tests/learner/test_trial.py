"""What shorter computations are tried against."""

from __future__ import annotations

import pytest
import torch
from tests.learner import parts

from rlforge.config.model import LoraConfig
from rlforge.learner.partition import in_order, segments
from rlforge.learner.trial import Trial, plain_logprobs, replace_forwards, stirred
from rlforge.learner.weights import attach_lora
from rlforge.models.last_layer import EXACT


def test_the_rows_branch_at_two_places_and_one_stands_alone():
    rows = Trial.of(parts.model()).rows
    assert list(rows) == in_order(rows)
    parents = [segment.parent for segment in segments(rows).segments]
    assert parents.count(None) == 2
    assert sorted(parents.count(n) for n in set(parents) - {None}) == [2, 2]


def test_scores_are_those_of_plain_passes():
    model = parts.model()
    trial = Trial.of(model)
    samples = [
        parts.sample(prompt_token_ids=row.prompt, token_ids=row.answer) for row in trial.rows
    ]
    logprobs, entropies = trial.scores(0.7)
    torch.testing.assert_close(logprobs, parts.answer_logprobs(model, samples, 0.7))
    tables = torch.cat([parts.plain_logprobs(model, sample, 0.7) for sample in samples])
    torch.testing.assert_close(entropies, -(tables.exp() * tables).sum(-1))


@pytest.mark.parametrize(("offset", "magnified"), [(0.0, False), (1e3, True)])
def test_a_model_that_magnifies_rounding_is_given_more_of_it(offset, magnified):
    """The layer norms of GPT-2 subtract what the embeddings have in common."""
    model = parts.gpt2()
    with torch.no_grad():
        model.transformer.wte.weight += offset
    assert (Trial.of(model).exact > EXACT) is magnified


def test_a_fresh_adapter_counts_in_a_trial_and_is_as_before_afterwards():
    model = parts.model()
    plain = plain_logprobs(model)
    attach_lora(model, LoraConfig(rank=4, alpha=8), seed=0)
    before = parts.weights(model)
    with stirred(model):
        assert (plain_logprobs(model) - plain).abs().max() > 1e-3
    after = parts.weights(model)
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_replaced_forwards_can_be_put_back():
    model = parts.model()
    mlp, norm = model.model.layers[0].mlp, model.model.norm
    own = mlp.forward = lambda x: x

    def replace():
        mlp.forward = norm.forward = torch.zeros_like

    undo = replace_forwards(model, replace)
    assert mlp.forward is norm.forward is torch.zeros_like
    undo()
    assert mlp.forward is own
    assert "forward" not in vars(norm)
