"""The sweep over families: small models, what a run is called, and what is counted."""

import importlib

import pytest


@pytest.fixture(scope="module")
def families(on_path):
    return importlib.import_module("families")


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text", "deepseek_v3", "bloom", "mamba"])
def test_a_small_model_of_a_family_computes_logits_of_its_words(families, name):
    import torch

    model = families.tiny(name, 300).eval()
    assert sum(each.numel() for each in model.parameters()) < families.MOST_PARAMETERS
    with torch.no_grad():
        assert model(input_ids=torch.arange(8)[None]).logits.shape == (1, 8, 300)


def test_layers_of_each_kind_are_in_a_small_model(families):
    kinds = families.tiny("gemma3_text", 300).config.layer_types
    assert set(kinds) == {"sliding_attention", "full_attention"}
    assert len(kinds) == 2


def test_a_run_of_a_small_model_is_exact(families, tmp_path, monkeypatch):
    from tests.harness.in_process import use_actors_in_process

    use_actors_in_process(monkeypatch.setattr)
    words = families.tokenizer()
    families.tiny("llama", len(words)).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    outcome, gap = families.train(tmp_path, "default", 1)
    assert outcome == "exact"
    assert 0 < gap < families.EXACT


def test_families_are_counted_by_how_both_ways_to_train_end(families):
    refused = "refused before the start: x"
    rows = {
        "a": {"adapter": "exact", "full weights": "exact"},
        "b": {"adapter": refused, "full weights": refused},
        "c": {"adapter": "exact", "full weights": "differs: gap 1.0e-01"},
        "d": {"adapter": "refused after the start: x", "full weights": refused},
        "e": {"small model": "none: x"},
    }
    assert families.summary(rows) == {
        "exact": 1,
        "exact with an adapter": 2,
        "refused before the start": 1,
        "neither": 2,
        "no small model": 1,
    }
    assert [name for name, row in rows.items() if families.is_open(row)] == ["c", "d"]
