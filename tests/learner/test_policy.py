"""The policy in training is the one that sampled: it is compared by passes without dropout."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests import factories
from tests.harness.composed import composed
from tests.learner import parts
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rlforge.algorithms import make_algorithm
from rlforge.config.model import LoraConfig
from rlforge.config.training import A2cConfig, AlgorithmConfig, GrpoConfig, KlConfig, PpoConfig
from rlforge.learner.attention import NAME
from rlforge.models.fit import adapter_dropout

GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "head_dim": None}
DROPS = {
    "gpt2": {**GPT2, **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.1)},
    "opt": {
        "word_embed_proj_dim": 32,
        "ffn_dim": 48,
        "init_std": 0.3,
        **dict.fromkeys(("dropout", "attention_dropout", "layerdrop"), 0.1),
    },
    "mixtral": {"num_local_experts": 4, "router_jitter_noise": 0.1},
}

SHARED = {"kl": KlConfig(coef=0.05), "entropy_coef": 0.01}
ALGORITHMS = {
    "reinforce": AlgorithmConfig(**SHARED),
    "grpo": GrpoConfig(**SHARED, group_size=4),
    "a2c": A2cConfig(**SHARED),
    "ppo": PpoConfig(**SHARED, value_clip=0.2),
    **{
        name: composed(f"algorithm={name}").config.algorithm
        for name in ("gspo", "cispo", "rloo", "dapo", "mmd", "nash_pg", "maxrl")
    },
}


def played(model, version: int):
    """Games of a group with the log-probs of ``model``; several answers follow the same prompt."""
    samples = []
    drawn = parts.random_steps(12, seed=version, group_id="group")
    for index, sample in enumerate(drawn):
        sample = replace(sample, prompt_token_ids=drawn[index % 3].prompt_token_ids)
        logprobs = tuple(parts.answer_logprobs(model, [sample]).tolist())
        game = f"game-{index // 3}"
        place = {"origin": game, "turn_index": index % 3, "last_turn": index % 3 == 2}
        # MaxRL takes no scores below 0.
        place["reward"] = abs(sample.reward)
        samples.append(replace(sample, logprobs=logprobs, policy_version=version, **place))
    return parts.batch(samples, whole_episodes=True)


def trains_exactly(model, algorithm, *, lora=None, learning_rate=1e-3, **settings) -> None:
    """Fails unless all updates from an adapter that is not zero find what was recorded."""
    made = make_algorithm(algorithm, 8)
    learner, _ = parts.adapted(made, model, lora=lora, learning_rate=learning_rate, **settings)
    for version in range(2):
        metrics = learner.update(played(model, version)).metrics
        assert metrics["nonfinite_steps"] == 0.0
        assert all(map(math.isfinite, metrics.values()))
        assert metrics["logprob_gap_mean"] < 1e-5
        assert metrics.get("importance_weight_mean", 1.0) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("packing", ["on", "off"])
@pytest.mark.parametrize("train", ["lora", "full"])
@pytest.mark.parametrize("kind", DROPS)
def test_dropout_of_the_model_is_off(kind, train, packing, epochs):
    model = factories.causal_lm(kind, **DROPS[kind])
    trains_exactly(model, GrpoConfig(group_size=4), train=train, packing=packing, epochs=epochs)


@pytest.mark.parametrize("option", ["gradient_checkpointing", "activation_checkpointing"])
def test_recomputed_layers_do_not_drop_either(option):
    model = factories.causal_lm("opt", **DROPS["opt"])
    trains_exactly(model, AlgorithmConfig(), **{option: True})


@pytest.mark.one_in(5)
@pytest.mark.parametrize("packing", ["on", "off"])
@pytest.mark.parametrize(("epochs", "rate"), [(1, 1e-3), (2, 1e-9)])
@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_all_algorithms_weigh_by_passes_without_dropout(algorithm, epochs, rate, packing):
    """The weights of a score function are of the present policy, which leaves the engine's."""
    model = factories.causal_lm("gpt2", **DROPS["gpt2"])
    lora = LoraConfig(rank=4, alpha=8, dropout=0.3)
    settings = {"learning_rate": rate, "epochs": epochs, "packing": packing}
    trains_exactly(model, algorithm, lora=lora, **settings)


def test_dropout_of_the_adapter_acts_in_training_passes_and_only_there():
    algorithm = parts.PolicyGradient()
    learner, model = parts.adapted(algorithm, lora=LoraConfig(rank=4, alpha=8, dropout=0.5))
    learner.update(played(model, 0))
    for inputs in algorithm.seen:
        old, given = inputs.proximal_logprobs, inputs.behaviour_logprobs
        torch.testing.assert_close(old, given, atol=1e-5, rtol=0)
        assert (inputs.logprobs - old).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("train", "dropout", "noted"), [("lora", 0.1, True), ("lora", 0.0, False), ("full", 0.1, False)]
)
def test_a_note_tells_of_clips_by_dropout(train, dropout, noted):
    made = composed(f"learner.train={train}", f"model.lora.dropout={dropout}").config
    note = adapter_dropout(made)
    assert (note is not None) is noted
    assert note is None or note.startswith("model.lora.dropout=0.1: ")


#: Packed is True where rows of the family are packed.
FAMILIES: dict = {
    "llama": ({}, True),
    "qwen3": ({}, True),
    "mixtral": ({"num_local_experts": 4}, True),
    "gpt2": (GPT2, True),
    "gpt_neox": ({"head_dim": None}, True),
    # Its output layer reads less than a hidden state.
    "opt": ({"word_embed_proj_dim": 16, "ffn_dim": 48, "init_std": 0.3}, True),
    "phi": ({"head_dim": None}, True),
    "cohere": ({"logit_scale": 0.25}, True),
    "granite": ({"logits_scaling": 4.0}, True),
    "gemma2": ({"final_logit_softcapping": 2.0}, False),  # caps inside of the attention
    "bloom": ({"n_head": 4, "num_attention_heads": None}, False),  # counts positions by itself
    "falcon": ({"head_dim": None}, False),
    "gptj": ({**GPT2, "rotary_dim": 4}, False),
    "codegen": ({**GPT2, "n_head": 4, "rotary_dim": 4}, False),
    "mpt": ({"d_model": 32, "n_heads": 4, "n_layers": 2, "head_dim": None}, False),
    # Its model calls the head its decoder; half of the layers see a window.
    "modernbert-decoder": ({"local_attention": 8, "head_dim": None}, False),
    "gpt_neo": (
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
        False,
    ),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_trains_exactly_and_packs_where_it_can(kind, caplog):
    changes, packs = FAMILIES[kind]
    model = factories.causal_lm(kind, **changes)
    trains_exactly(model, PpoConfig(), packing="on")
    notes = [line for line in caplog.messages if line.startswith("sequences are padded")]
    assert packs is (model.config._attn_implementation == NAME)
    assert len(notes) == (not packs)


def test_attention_of_a_models_own_is_not_packed_where_rounding_hides_it(caplog):
    changes = FAMILIES["codegen"][0] | {"initializer_range": 0.02}
    model = factories.causal_lm("codegen", **changes).to(torch.bfloat16)
    parts.learner(model, packing="on")
    assert "packing reaches none of its layers" in caplog.text


class TwoRowsDiffer(LlamaForCausalLM):
    """Its logits depend on how many rows there are, and those of its decoder and head do not."""

    def forward(self, input_ids, **options):
        output = super().forward(input_ids, **options)
        output.logits = output.logits.tanh() * len(input_ids)
        return output


def test_a_model_whose_rows_depend_on_each_other_reads_each_by_itself(caplog):
    model = parts.model()
    model.__class__ = TwoRowsDiffer
    trains_exactly(model, PpoConfig(), packing="on", epochs=2)
    assert "TwoRowsDiffer reads each sequence by itself: a padded pass computes" in caplog.text


def test_faster_layers_that_compute_differently_are_not_used(caplog):
    model = parts.model()
    for layer in model.model.layers:
        layer.input_layernorm.__class__ = OfMatrices
    trains_exactly(model, GrpoConfig(group_size=4))
    assert "LlamaForCausalLM keeps its own norms and adapter layers" in caplog.text


class OfMatrices(LlamaRMSNorm):
    """An RMSNorm of matrices only."""

    def forward(self, hidden_states):
        normed = super().forward(hidden_states)
        return normed if hidden_states.ndim == 2 else normed + 0.01 * hidden_states
