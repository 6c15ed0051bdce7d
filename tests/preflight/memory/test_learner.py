"""The learner's memory by arithmetic, against tensors counted in its own passes."""

import dataclasses

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlforge.config.model import LoraConfig
from rlforge.models.shape import KNOWN
from rlforge.preflight.memory import learner as memory
from rlforge.preflight.memory.learner import LearnerJob, final_bytes, kept_bytes, pass_bytes

CHECKPOINTS = {
    "none": {},
    "layers": {"gradient_checkpointing": True},
    "modules": {"activation_checkpointing": True},
    "both": {"gradient_checkpointing": True, "activation_checkpointing": True},
}


@pytest.mark.parametrize("checkpoints", CHECKPOINTS)
@pytest.mark.parametrize(
    "weights",
    [
        *({"bf16": bf16, "full": full} for bf16 in (True, False) for full in (True, False)),
        {"bf16": True, "full": True, "gathered": True},  # in bfloat16, as ranks gather them
    ],
    ids=str,
)
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_planned_bytes_of_a_pass_are_within_ten_percent_of_measured(
    architecture, weights, checkpoints, case
):
    """Kept: every tensor alive after the forward pass. Peak: at any time of forward and backward.

    Weights, gradients and the batch itself are not counted: they are parts of their own.
    """
    made = case(architecture, **weights, **CHECKPOINTS[checkpoints])
    alive, peak = made.measure()
    kept, others = pass_bytes(made.job)
    assert kept + final_bytes(made.job) == pytest.approx(alive, rel=0.05)
    assert kept + others == pytest.approx(peak, rel=0.10)


@pytest.mark.parametrize(
    "sizes",
    [
        {"length": 1500, "rows": 1},
        {"length": 100, "rows": 12},
        {"hidden": 128, "ffn": 320, "head_dim": 32},
        {"ffn": 512, "rank": 2},
        {"rank": 32},
        {"heads": 8, "head_dim": 16, "hidden": 96},
    ],
    ids=str,
)
@pytest.mark.parametrize(("architecture", "bf16"), [("llama", True), ("qwen3", False)])
def test_planned_bytes_of_saved_tensors_hold_at_other_sizes(architecture, bf16, sizes, case):
    """Distinct storages that autograd packs, by ``saved_tensors_hooks``, without the weights."""
    made = case(architecture, bf16=bf16, **sizes)
    planned = kept_bytes(made.job) + final_bytes(made.job)
    assert planned == pytest.approx(made.saved(), rel=0.10)
    assert sum(pass_bytes(made.job)) == pytest.approx(made.measure()[1], rel=0.10)


@pytest.mark.parametrize(
    "options", [{}, {"fp32_head": True}, {"entropy": True}, {"rank": 32}], ids=str
)
@pytest.mark.parametrize("bf16", [True, False], ids=["bf16", "fp32"])
def test_planned_bytes_hold_for_an_adapted_output_layer(bf16, options, case):
    """Planned are 4 bytes per logit inside log-sum-exp, too, where the count cannot look."""
    made = case("llama", bf16=bf16, vocab=4096, tied=False, targets=("lm_head",), **options)
    _, peak = made.measure()
    planned, unseen = sum(pass_bytes(made.job)), 4 * made.job.answers * made.job.shape.vocab
    assert planned - unseen < 1.02 * peak
    assert planned > 0.95 * peak


@pytest.mark.parametrize("bf16", [True, False], ids=["bf16", "fp32"])
def test_dropout_keeps_its_masks(bf16, case):
    made = case("llama", bf16=bf16, dropout=0.1)
    assert kept_bytes(made.job) + final_bytes(made.job) == pytest.approx(made.saved(), rel=0.10)


def test_gradients_and_optimizer_are_those_of_adamw(case):
    made = case("llama", bf16=True)
    trained = list(made.policy.parameters().values())
    optimizer = torch.optim.AdamW(trained, fused=True)
    made.policy.score(made.micro, entropy=False).logprobs.sum().backward()
    optimizer.step()
    moments = [
        state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")
    ]
    assert memory.adapter_bytes(made.job) == sum(p.nbytes for p in trained)
    assert memory.gradient_bytes(made.job) == sum(p.grad.nbytes for p in trained)
    assert memory.optimizer_bytes(made.job) == sum(tensor.nbytes for tensor in moments)


@pytest.mark.parametrize("targets", [["q_proj"], ["q_proj", "lm_head"]])
def test_the_head_needs_a_chunk_and_not_all_logits(targets):
    job = make_job(tokens=8192, answers=8192, lora=LoraConfig(target_modules=targets))
    everything = 4 * job.answers * job.shape.vocab
    assert memory.logits_bytes(job) + memory.head_bytes(job) < everything / 8


def make_job(**changes) -> LearnerJob:
    settings = {"shape": KNOWN[0], "lora": LoraConfig(), "tokens": 2048, "length": 2048}
    return LearnerJob(**{**settings, "answers": 2048, "bf16": True, **changes})


def total(job: LearnerJob) -> int:
    states = memory.adapter_bytes(job) + memory.gradient_bytes(job) + memory.optimizer_bytes(job)
    return memory.weight_bytes(job) + states + sum(pass_bytes(job))


def of_rank(job: LearnerJob, rank: int) -> LearnerJob:
    return dataclasses.replace(job, lora=LoraConfig(rank=rank))


def folded(job: LearnerJob) -> set[str]:
    return {name for name in job.shape.linears if memory.merges(job, name)}


SMOLLM2 = next(shape for shape in KNOWN if shape.name == "SmolLM2-135M")
JOBS = st.builds(
    make_job,
    shape=st.sampled_from(KNOWN),
    lora=st.one_of(st.none(), st.builds(LoraConfig, rank=st.integers(1, 128))),
    tokens=st.integers(1, 32768),
    length=st.just(1),
    answers=st.integers(1, 1),
    bf16=st.booleans(),
    layer_checkpoints=st.booleans(),
    module_checkpoints=st.booleans(),
    fp32_head=st.booleans(),
    entropy=st.booleans(),
)


@given(job=JOBS, more=st.integers(1, 8192))
def test_more_tokens_never_need_less(job, more):
    longer = dataclasses.replace(job, tokens=job.tokens + more)
    answered = dataclasses.replace(job, answers=job.answers + more)
    assert total(longer) > total(job)
    assert total(answered) >= total(job)


@given(job=JOBS.filter(lambda job: job.lora is not None), more=st.integers(1, 128))
def test_a_higher_rank_never_needs_less(job, more):
    """Unless more layers fold: of those the pass keeps one sum, and nothing per position."""
    higher = of_rank(job, job.lora.rank + more)
    assume(folded(higher) == folded(job))
    assert total(higher) > total(job)


def test_merged_layers_keep_one_weight_and_nothing_per_position():
    below = of_rank(make_job(shape=SMOLLM2, tokens=10110, bf16=False), 95)
    above = of_rank(below, 96)
    square = {"q_proj", "o_proj"}  # 576 by 576: fold from 576 * 576 / (3 * (576 + 576)) = 96 on
    rows, narrow = 10110, 576
    assert folded(above) - folded(below) == square
    unfolded = {"gate_proj", "up_proj", "down_proj"}
    assert folded(above).isdisjoint(unfolded)
    each = 2 * (narrow * narrow - 95 * rows) + len(unfolded) * rows
    assert kept_bytes(above) - kept_bytes(below) == SMOLLM2.layers * 4 * each


@settings(max_examples=300)
@given(job=JOBS)
def test_checkpointing_never_keeps_or_needs_more(job):
    plain = dataclasses.replace(job, layer_checkpoints=False, module_checkpoints=False)
    layers = dataclasses.replace(plain, layer_checkpoints=True)
    modules = dataclasses.replace(plain, module_checkpoints=True)
    assert kept_bytes(layers) < kept_bytes(modules) < kept_bytes(plain)
    assert total(layers) < total(plain)
    assert total(modules) < total(plain)


@given(job=JOBS)
def test_a_reference_costs_the_weights_again(job):
    others = dataclasses.replace(job, reference=True)
    assert total(others) - total(job) == memory.weight_bytes(job)


def test_a_float32_head_costs_a_copy_of_frozen_bfloat16_weights():
    job = make_job()
    copy = 4 * job.shape.vocab * job.shape.hidden
    assert memory.head_bytes(dataclasses.replace(job, fp32_head=True)) == (
        memory.head_bytes(job) + copy
    )
