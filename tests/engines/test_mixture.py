"""Rows of several versions in one forward pass, each as its version computes it alone."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from tests.factories import causal_lm
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import LlamaForCausalLM

from rlforge.engines.policies import PolicyStore
from rlforge.engines.versions import BASE, PolicyKey
from rlforge.types import SamplingParams

from .answers import assert_true_logprobs, completion_of, finish


@pytest.fixture
def load(make_adapter):
    """Load an adapter into a store; ``models`` get the PEFT model to check against, by key."""

    def load(store, models, seed, **lora):
        lora = {"target_modules": "all-linear"} | lora
        policy, wrapped = make_adapter(seed, 0.2, models[BASE], **lora)
        key = PolicyKey.of(policy)
        models[key] = wrapped
        assert store.load(key, ())
        return key

    return load


@torch.inference_mode()
def assert_rows_are_those_of_their_versions(
    store: PolicyStore, models: dict[PolicyKey, Any], rows: list[PolicyKey], atol: float = 1e-4
) -> None:
    ids = torch.randint(300, (len(rows), 7), generator=torch.Generator().manual_seed(0))
    with store.computing(rows) as model:
        together = model(input_ids=ids).logits
    for key, tokens, found in zip(rows, ids, together, strict=True):
        expected = models[key](input_ids=tokens[None]).logits[0]
        assert torch.allclose(found.float(), expected.float(), atol=atol), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_computed_as_by_their_versions(base, load, dtype):
    model = copy.deepcopy(base).to(dtype)
    store, models = PolicyStore(model, 4), {BASE: copy.deepcopy(model)}
    for number in range(1, 5):
        load(store, models, number)
    assert {store.batch_of(key) for key in models} == {None}
    rows = random.Random(0).choices(list(models), weights=[5, 1, 1, 1, 1], k=23)
    atol = 1e-4 if dtype == torch.float32 else 0.3
    assert_rows_are_those_of_their_versions(store, models, rows, atol)
    assert_rows_are_those_of_their_versions(store, models, rows[::-1], atol)
    assert_rows_are_those_of_their_versions(store, models, rows[:2], atol)


def test_a_version_that_takes_the_place_of_another_has_its_own_rows(base, load):
    """Also under the name and path of a version that was dropped."""
    store, models = PolicyStore(copy.deepcopy(base), 2), {BASE: base}
    first = load(store, models, 1)
    load(store, models, 2)
    assert_rows_are_those_of_their_versions(store, models, [*models, BASE])
    third = load(store, models, 3)
    again = load(store, models, 1, lora_alpha=16)
    assert again == first
    assert_rows_are_those_of_their_versions(store, models, [again, third, BASE, again])


def test_moved_to_the_host_and_back_versions_compute_the_same(base, load):
    store, models = PolicyStore(copy.deepcopy(base), 1), {BASE: base}
    key = load(store, models, 1)
    assert_rows_are_those_of_their_versions(store, models, [key, BASE])
    store.move_to(torch.device("cpu"))
    assert_rows_are_those_of_their_versions(store, models, [key, BASE])


@pytest.mark.parametrize(
    ("lora", "mixed"),
    [
        ({"r": 2}, True),
        ({"use_rslora": True}, True),
        ({"use_dora": True}, False),
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, False),
        ({"target_modules": ["q_proj"], "lora_bias": True}, False),
        ({"target_modules": ["embed_tokens"]}, False),
    ],
    ids=lambda value: str(value),
)
@pytest.mark.filterwarnings("ignore:.*tie.*embeddings:UserWarning")
def test_other_adapters_are_mixed_where_they_are_plain_lora(load, lora, mixed):
    model = causal_lm("qwen2", vocab_size=300, initializer_range=0.2)
    store, models = PolicyStore(copy.deepcopy(model), 2), {BASE: model}
    plain, other = load(store, models, 1), load(store, models, 2, **lora)
    assert store.batch_of(plain) is None
    if mixed:
        assert store.batch_of(other) is None
        assert_rows_are_those_of_their_versions(store, models, [other, plain, BASE, other])
    else:
        assert store.batch_of(other) == other
        assert_rows_are_those_of_their_versions(store, models, [other, other])
        assert_rows_are_those_of_their_versions(store, models, [plain, BASE])


def test_layers_that_hold_their_weights_transposed_are_mixed(load):
    sizes = {"num_key_value_heads": None, "head_dim": None}
    model = causal_lm("gpt2", vocab_size=300, **sizes)
    store, models = PolicyStore(copy.deepcopy(model), 2), {BASE: model}
    for number in (1, 2):
        assert store.batch_of(load(store, models, number, fan_in_fan_out=True)) is None
    assert_rows_are_those_of_their_versions(store, models, [*models, BASE, *models])


def test_layers_that_do_not_see_each_row_alone_are_not_mixed(load):
    """The router of a mixture of experts gets the tokens of all rows in one."""
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    model = causal_lm("mixtral", vocab_size=300, initializer_range=0.2, head_dim=8, **experts)
    store, models = PolicyStore(copy.deepcopy(model), 2), {BASE: model}
    for number, targets in enumerate((["q_proj", "o_proj"], ["lm_head"]), 1):
        assert store.batch_of(load(store, models, number, target_modules=targets)) is None
    assert_rows_are_those_of_their_versions(store, models, [*models, *models])


def test_full_weights_and_invariant_versions_have_batches_of_their_own(base, load, full_weights):
    full, store = PolicyKey.of(full_weights[0]), PolicyStore(copy.deepcopy(base), 2)
    assert store.load(full, ())
    adapter = load(store, {BASE: base}, 1)
    assert (store.batch_of(full), store.batch_of(adapter)) == (full, None)
    plain = copy.deepcopy(base)
    plain.set_attn_implementation("sdpa")  # other tests made the base use another
    invariant = PolicyStore(plain, 2, invariant=True)
    assert invariant.load(adapter, ())
    assert (invariant.batch_of(adapter), invariant.batch_of(BASE)) == (adapter, BASE)


def test_a_step_is_one_pass_for_all_versions(base, make_core, make_adapter):
    core, models = make_core(base, max_loras=6), {}
    policies = []
    for seed in range(1, 7):
        policy, models[policy.uid] = make_adapter(seed)
        policies.append(policy)
    prompt = (5, 6, 7)
    for policy in policies:
        core.submit(prompt, SamplingParams(max_tokens=1, seed=0), policy)
        finish(core)  # loads it
    for index in range(24):
        core.submit(prompt, SamplingParams(max_tokens=6, seed=index), policies[index % 6])
    passes = []

    def count(module, inputs):
        if type(module) is torch.nn.Embedding:
            passes.append(len(inputs[0]))

    with register_module_forward_pre_hook(count):
        answers = finish(core)
    assert len(passes) == 6  # one reads the prompts, five draw
    assert len(answers) == 24
    for answer in answers.values():
        said = completion_of(answer)
        assert_true_logprobs(models[said.policy_uid], said)


def test_a_model_of_the_store_is_still_the_models(base, load):
    store = PolicyStore(copy.deepcopy(base), 1)
    key = load(store, {BASE: base}, 1)
    for model in (store.base, store.use(key)):
        assert isinstance(model, LlamaForCausalLM)
        kinds = {type(module).__name__ for module in model.modules()}
        assert "MixedLayer" not in kinds
