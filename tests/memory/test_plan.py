"""A run on its cards: placement, the verdict, and what is done about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.config.compose import compose
from rlforge.config.schema import HardwareConfig
from rlforge.hardware import Machine, resolve_hardware
from rlforge.memory.plan import GIB, Card, Plan, make_plan, place
from rlforge.memory.remedies import largest_pass, mend, options, with_engine, with_learner
from rlforge.memory.shape import KNOWN, known_shape

QUICK_START = "+experiment=qwen3_1p7b_simpletak"
PROFILES = ("gpu_12gb", "gpu_16gb", "gpu_24gb", "gpu_48gb", "gpu_80gb")


def cuda(learner: float, engine: float) -> HardwareConfig:
    return HardwareConfig(device="cuda", learner_gpus=learner, engine_gpus=engine)


def plan(*overrides: str, gb: float = 24, shape=KNOWN[0], hardware=None) -> Plan:
    config = compose([QUICK_START, *overrides]).config
    return make_plan(config, shape, hardware or cuda(0.5, 0.5), int(gb * GIB), bf16=True)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_of_a_card_fits_its_card(profile):
    config = compose([QUICK_START, f"hardware={profile}"]).config
    hardware = resolve_hardware(config.hardware, Machine(cpus=8, gpus=1), config.engine.num_engines)
    shape = known_shape(config.model.name)
    assert hardware.memory_gb == int(profile.removeprefix("gpu_").removesuffix("gb"))

    made = make_plan(config, shape, hardware, int(hardware.memory_gb * GIB), bf16=True)

    assert made.verdict == "fits"
    assert made.cards == (
        Card(learners=1, engines=1, count=1, capacity=int(hardware.memory_gb * GIB)),
    )
    # And makes use of it: twice as many sequences would not fit.
    assert made.sequences < 2 * made.wanted


def test_one_gpu_is_shared_and_takes_the_memory_that_is_there():
    config = compose([QUICK_START, "hardware=gpu_1"]).config
    hardware = resolve_hardware(config.hardware, Machine(cpus=8, gpus=1), config.engine.num_engines)

    assert (hardware.learner_gpus, hardware.engine_gpus, hardware.memory_gb) == (0.5, 0.5, None)


@pytest.mark.parametrize("profile", ["multi_gpu", "cluster"])
def test_profiles_of_many_gpus_give_everyone_a_card(profile):
    config = compose([QUICK_START, f"hardware={profile}"]).config
    made = make_plan(config, KNOWN[0], config.hardware, 48 * GIB, bf16=True)

    assert [(card.learners, card.engines) for card in made.cards] == [(1, 0), (0, 1)]
    assert made.cards[1].count == config.engine.num_engines
    assert made.excess == 0


@pytest.mark.parametrize(
    ("hardware", "engines", "cards"),
    [
        (HardwareConfig(device="cpu"), 3, [(1, 3, 1)]),
        (cuda(0.5, 0.5), 1, [(1, 1, 1)]),
        (cuda(0.4, 0.3), 2, [(1, 2, 1)]),
        (cuda(0.5, 0.5), 4, [(1, 1, 1), (0, 2, 2)]),
        (cuda(1, 1), 2, [(1, 0, 1), (0, 1, 2)]),
        (cuda(1, 0.5), 3, [(1, 0, 1), (0, 2, 2)]),
        (cuda(1 / 3, 1 / 3), 2, [(1, 2, 1)]),
    ],
)
def test_cards_are_filled_as_ray_packs_them(hardware, engines, cards):
    made = place(hardware, 1, engines, GIB)

    assert [(card.learners, card.engines, card.count) for card in made] == cards


def test_ranks_have_a_card_each_and_share_the_memory_of_a_cpu():
    on_cards = place(cuda(1, 0.5), 3, 2, GIB)
    on_cpu = place(HardwareConfig(device="cpu"), 3, 2, GIB)

    assert [(c.learners, c.engines, c.count) for c in on_cards] == [(1, 0, 3), (0, 2, 1)]
    assert [(c.learners, c.engines, c.count) for c in on_cpu] == [(3, 2, 1)]


def test_divided_weights_need_less_of_each_card_the_more_ranks_there_are():
    whole = plan("learner.num_learners=2", hardware=cuda(1, 1), shape=KNOWN[2])
    needs = [
        plan(
            f"learner.num_learners={ranks}",
            "learner.shard_weights=true",
            *full,
            hardware=cuda(1, 1),
            shape=KNOWN[2],
        ).learner.total
        for full in ([], ["learner.train=full"])
        for ranks in (2, 4, 8)
    ]

    assert needs[0] < whole.learner.total
    assert needs[0] > needs[1] > needs[2]
    assert needs[3] > needs[4] > needs[5]


def test_the_verdict_is_of_the_fullest_card():
    roomy = plan("learner.gradient_checkpointing=true", "engine.max_parallel_seq=2", gb=80)
    many = plan("learner.gradient_checkpointing=true", "engine.max_parallel_seq=512", gb=80)
    small = plan(gb=8)

    assert (roomy.verdict, roomy.excess) == ("fits", 0)
    assert (many.verdict, many.excess) == ("tight", 0)
    assert 1 <= many.sequences < 512
    assert (small.verdict, small.sequences) == ("does not fit", 0)
    assert small.excess == small.need(small.cards[0]) - small.cards[0].usable


def test_sequences_are_those_for_which_there_is_room():
    made = plan("hardware=gpu_24gb", "engine.max_parallel_seq=16")
    config = compose([QUICK_START, "hardware=gpu_24gb"]).config
    card = made.cards[0]

    def together(sequences: int) -> int:
        changed = with_engine(config, max_parallel_seq=sequences)
        whole = make_plan(changed, KNOWN[0], cuda(0.5, 0.5), card.capacity, bf16=True)
        return whole.learner.total + whole.engine.total

    assert together(made.sequences) <= card.usable < together(made.sequences + 1)


def test_a_step_longer_than_a_pass_goes_alone():
    short = plan("engine.max_model_len=1024", "learner.micro_batch_tokens=4096")
    long = plan("engine.max_model_len=8192", "learner.micro_batch_tokens=4096")
    cut = plan("engine.max_model_len=8192", "learner.max_train_len=4096")

    assert long.learner.total > cut.learner.total >= short.learner.total


def test_training_all_weights_costs_more_than_an_adapter():
    adapter, whole = plan(), plan("learner.train=full")
    states = {part.name: part.bytes for part in whole.learner.parts}

    assert states["AdamW states"] == 8 * KNOWN[0].parameters
    assert whole.learner.total > adapter.learner.total


def test_options_save_what_they_say():
    config = compose([QUICK_START]).config

    def replan(changed):
        return make_plan(changed, KNOWN[0], cuda(1, 1), 24 * GIB, bf16=True)

    found = {option.key: option for option in options(config, replan)}
    checkpointed = replan(with_learner(config, gradient_checkpointing=True))

    assert found["learner.gradient_checkpointing"].saves == (
        replan(config).learner.total - checkpointed.learner.total
    )
    assert {"learner.max_train_len", "model.lora.rank", "engine.max_parallel_seq"} <= found.keys()
    assert list(found.values()) == sorted(found.values(), key=lambda option: -option.saves)


@given(shape=st.sampled_from(KNOWN), gb=st.sampled_from([8, 12, 16, 24, 32, 48, 80]))
def test_what_is_proposed_fits_and_nothing_longer_does(shape, gb):
    config = BASE

    def replan(changed):
        return make_plan(changed, shape, cuda(0.5, 0.5), gb * GIB, bf16=True)

    longest = largest_pass(config, lambda changed: replan(changed).excess == 0)
    for tokens, fits in ((longest, True), (longest + 1, False)):
        if 0 < tokens <= config.engine.max_model_len:
            cut = with_learner(config, max_train_len=tokens, micro_batch_tokens=tokens)
            assert (replan(cut).excess == 0) == fits
    changed = config
    for override in mend(config, replan):
        group, key = override.split("=")[0].split(".")
        value = override.split("=")[1]
        number = True if value == "true" else int(value)
        change = with_learner if group == "learner" else with_engine
        changed = change(changed, **{key: number})
    if changed is not config:
        assert replan(changed).excess == 0


BASE = compose([QUICK_START]).config
