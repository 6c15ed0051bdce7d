"""Plans of runs on cards: placement, verdict and the changes that make a run fit."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.composed import composed

from rlforge.config.schema import HardwareConfig
from rlforge.models.shape import KNOWN, known_shape
from rlforge.preflight.memory.needs import GIB, EngineJob
from rlforge.preflight.memory.plan import PROCESS_BYTES, Card, Plan, make_plan, place
from rlforge.preflight.memory.remedies import TURNS, largest_pass, mend, options, pass_of, with_keys
from rlforge.system.hardware import Machine, resolve_hardware
from rlforge.system.limits import VLLM_SHARE

QUICK_START = "+experiment=qwen3_1p7b_simpletak_tuned"
PROFILES = ("gpu_12gb", "gpu_16gb", "gpu_24gb", "gpu_48gb", "gpu_80gb")


def cuda(learner: float, engine: float) -> HardwareConfig:
    return HardwareConfig(device="cuda", learner_gpus=learner, engine_gpus=engine)


def replanner(hardware: HardwareConfig, gb: float = 24, shape=KNOWN[0]):
    """A function that plans a configuration for a card of ``gb`` GiB."""
    return lambda config: make_plan(config, shape, hardware, int(gb * GIB), bf16=True)


def quick_start(*overrides: str):
    return composed(QUICK_START, "hardware=auto", *overrides).config


def plan(*overrides: str, gb: float = 24, shape=KNOWN[0], hardware=None) -> Plan:
    return replanner(hardware or cuda(0.5, 0.5), gb, shape)(quick_start(*overrides))


@pytest.mark.parametrize(
    ("hardware", "learners", "engines", "cards"),
    [
        (HardwareConfig(device="cpu"), 1, 3, [(1, 3, 1)]),
        (HardwareConfig(device="cpu"), 3, 2, [(3, 2, 1)]),
        (cuda(0.5, 0.5), 1, 1, [(1, 1, 1)]),
        (cuda(0.4, 0.3), 1, 2, [(1, 2, 1)]),
        (cuda(0.5, 0.5), 1, 4, [(1, 1, 1), (0, 2, 2)]),
        (cuda(1, 1), 1, 2, [(1, 0, 1), (0, 1, 2)]),
        (cuda(1, 0.5), 1, 3, [(1, 0, 1), (0, 2, 2)]),
        (cuda(1, 0.5), 3, 2, [(1, 0, 3), (0, 2, 1)]),
        (cuda(1 / 3, 1 / 3), 1, 2, [(1, 2, 1)]),
    ],
)
def test_cards_are_filled_as_ray_packs_them(hardware, learners, engines, cards):
    made = place(hardware, learners, engines, GIB)
    assert [(card.learners, card.engines, card.count) for card in made] == cards


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_of_a_card_fits_its_card(profile):
    config = quick_start(f"hardware={profile}")
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


def test_divided_weights_need_less_of_each_card_the_more_ranks_there_are():
    whole = plan("learner.num_learners=2", hardware=cuda(1, 1), shape=KNOWN[2])
    larger = {"hardware": cuda(1, 1), "shape": KNOWN[2]}
    shared = "learner.shard_weights=true"
    needs = [
        plan(f"learner.num_learners={ranks}", shared, *full, **larger).learner.total
        for full in ([], ["learner.train=full"])
        for ranks in (2, 4, 8)
    ]
    assert needs[0] < whole.learner.total
    assert needs[0] > needs[1] > needs[2]
    assert needs[3] > needs[4] > needs[5]
    adapter, full = plan().learner, plan("learner.train=full").learner
    assert full["AdamW states"] == 8 * KNOWN[0].parameters
    assert full.total > adapter.total


def test_the_verdict_is_of_the_fullest_card():
    roomy = plan("learner.gradient_checkpointing=true", "engine.max_parallel_seq=2", gb=80)
    many = plan("learner.gradient_checkpointing=true", "engine.max_parallel_seq=512", gb=80)
    small = plan(gb=8)
    assert (roomy.verdict, roomy.excess) == ("fits", 0)
    assert (many.verdict, many.excess) == ("tight", 0)
    assert 1 <= many.sequences < 512
    assert (small.verdict, small.sequences) == ("does not fit", 0)
    assert small.excess == small.need(small.cards[0]) - small.cards[0].usable


def test_a_step_longer_than_a_pass_has_a_pass_of_its_own():
    short = plan("engine.max_model_len=1024", "learner.micro_batch_tokens=4096")
    long = plan("engine.max_model_len=8192", "learner.micro_batch_tokens=4096")
    cut = plan("engine.max_model_len=8192", "learner.max_train_len=4096")
    assert long.learner.total > cut.learner.total >= short.learner.total


def test_earlier_adapters_that_the_learner_keeps_take_memory_of_the_host():
    cpu = HardwareConfig(device="cpu")
    lagged, on_policy = (
        plan(f"buffer.max_staleness={versions}", hardware=cpu).learner for versions in (2, 0)
    )
    assert lagged["versions"] == 2 * lagged["adapter"]
    assert lagged.total - on_policy.total == lagged["versions"]
    whole = ("buffer.max_staleness=2", "learner.train=full")
    for made in (plan("buffer.max_staleness=2"), plan(*whole, hardware=cpu)):
        assert "versions" not in made.learner


def test_options_save_the_bytes_they_report():
    config = quick_start()

    replan = replanner(cuda(1, 1))
    found = {option.key: option for option in options(config, replan)}
    checkpointed = replan(with_keys(config, {"learner.gradient_checkpointing": True}))

    assert found["learner.gradient_checkpointing"].saves == (
        replan(config).learner.total - checkpointed.learner.total
    )
    assert {"learner.max_train_len", "model.lora.rank", "engine.max_parallel_seq"} <= found.keys()
    assert list(found.values()) == sorted(found.values(), key=lambda option: -option.saves)


@given(shape=st.sampled_from(KNOWN), gb=st.sampled_from([8, 12, 16, 24, 32, 48, 80]))
def test_proposed_overrides_fit_and_longer_steps_do_not(shape, gb):
    config = quick_start()
    replan = replanner(cuda(0.5, 0.5), gb, shape)
    longest = largest_pass(config, lambda changed: replan(changed).excess == 0)
    for tokens, fits in ((longest, True), (longest + 1, False)):
        if 0 < tokens <= config.engine.max_model_len:
            cut = with_keys(config, pass_of(tokens))
            assert (replan(cut).excess == 0) == fits
    mended = {key: json.loads(new) for key, new in (one.split("=") for one in mend(config, replan))}
    if mended:
        assert replan(with_keys(config, mended)).excess == 0


VLLM = ("engine=vllm", "learner.gradient_checkpointing=true")
BESIDE = ("other models", "their caches")


def test_vllm_takes_its_share_of_the_card_and_fills_it_with_cache():
    made = plan(*VLLM, hardware=cuda(1, 1), gb=48)
    assert made.engine.total == pytest.approx(VLLM_SHARE * 48 * GIB, rel=1e-6)
    assert made.sequences == made.engine["KV cache"] // made.sequence_bytes
    assert made.verdict == "fits"
    in_turns = plan(*VLLM, IN_TURNS, gb=24)  # the whole card
    assert in_turns.engine.total == pytest.approx(0.85 * 24 * GIB, rel=1e-6)
    assert in_turns.verdict == "fits"
    assert in_turns.sequences > plan(*VLLM, gb=24).sequences


def test_a_cache_of_given_size_limits_the_sequences():
    made = plan(*VLLM, "engine.vllm.kv_cache_gb=2", hardware=cuda(1, 1))
    small = plan(*VLLM, "engine.vllm.kv_cache_gb=0.5", hardware=cuda(1, 1))
    assert made.engine["KV cache"] == 2 * GIB
    assert (made.excess, small.verdict) == (0, "does not fit")
    assert small.excess == small.sequence_bytes - GIB // 2


def test_learner_and_vllm_divide_a_card_as_the_plan_proposes():
    config = quick_start(*VLLM, "engine.max_model_len=4096")

    replan = replanner(cuda(0.5, 0.5), 16)
    too_much = with_keys(config, {"engine.vllm.gpu_memory_utilization": 0.8})
    (override,) = mend(too_much, replan)
    divided = replan(config)
    assert override == f"engine.vllm.gpu_memory_utilization={divided.share:g}"
    assert divided.excess == 0
    # All that the learner leaves, to one part in a hundred.
    left = divided.cards[0].usable - divided.learner.total - divided.engine.total
    assert left < 0.01 * 16 * GIB + 1


# ---------------------------------------------------------------- other models


def beside(*overrides: str, gb: float = 24, gpus=(1, 1), **other: int) -> Plan:
    """The plan with Llama-3.2-1B on every engine, too; other: fields of its job."""
    sizes = {"versions": 0, "sequences": 4, "length": 4096, "prompt_tokens": 8192} | other
    job = EngineJob(shape=known_shape("Llama-3.2-1B"), lora=None, bf16=True, paged=False, **sizes)
    config, hardware = quick_start(*overrides), cuda(*gpus)
    return make_plan(config, KNOWN[0], hardware, int(gb * GIB), bf16=True, others=[job])


def test_an_engine_holds_other_models_by_the_side_of_its_own():
    alone, both = plan(hardware=cuda(1, 1)), beside()
    weights = both.least["other models"]
    assert weights == 2 * known_shape("Llama-3.2-1B").parameters
    one, four = (need["their caches"] for need in (both.least, both.engine))
    assert both.least.total == alone.least.total + weights + one
    assert both.engine.total == alone.engine.total + weights + four
    assert four > one + 3 * 128 * 2**20  # of 32 KiB a token; the workspace is of the prompts
    assert both.learner == alone.learner
    assert both.sequences < alone.sequences


@pytest.mark.parametrize("turns", [(), ("hardware.alternate=true",)])
@pytest.mark.parametrize("gpus", [(1, 1), (0.5, 0.5)])
def test_vllm_leaves_room_for_all_sequences_of_other_models(gpus, turns):
    made = beside(*VLLM, *turns, gb=48, gpus=gpus)
    assert made.excess == 0
    assert made.least == made.engine
    own = sum(size for name, size in made.engine.items() if name not in BESIDE)
    assert own == pytest.approx(made.share * 48 * GIB, rel=1e-6)
    assert made.share < plan(*VLLM, *turns, gb=48, hardware=cuda(*gpus)).share + 1e-9
    given = "engine.vllm.gpu_memory_utilization=0.9"
    assert beside(*VLLM, *turns, given, gb=48, gpus=gpus).excess > 0


def test_the_weights_of_other_models_wait_on_the_host_in_the_learners_turn():
    alone, both = plan(IN_TURNS), beside(IN_TURNS, gpus=(0.5, 0.5))
    assert both.engine_idle == alone.engine_idle
    waiting = sum(both.engine[name] for name in ("weights", "versions", "other models"))
    assert both.on_host >= waiting


# ---------------------------------------------------------------- in turns

IN_TURNS = "hardware.alternate=true"
CHECKPOINTS = "learner.gradient_checkpointing=true"


def test_in_turns_a_card_holds_the_larger_of_the_two_and_what_the_other_keeps():
    made = plan(IN_TURNS, CHECKPOINTS)
    (card,) = made.cards
    process = PROCESS_BYTES["cuda"]
    assert made.learner_idle.total == made.engine_idle.total == process
    assert made.learning(card) == made.learner.total + process
    assert made.playing(card) == made.least.total + process
    assert made.need(card) == max(made.learning(card), made.playing(card))
    assert made.need(card) < plan(CHECKPOINTS).need(card) - 3 * GIB


@pytest.mark.parametrize("turns", [(), (IN_TURNS,)])
def test_sequences_fill_the_card_and_one_more_would_not_fit(turns):
    made = plan(*turns, CHECKPOINTS, gb=16)
    config = quick_start(*turns, CHECKPOINTS)
    (card,) = made.cards

    def held(sequences: int) -> int:
        more = with_keys(config, {"engine.max_parallel_seq": sequences})
        whole = replanner(cuda(0.5, 0.5), 16)(more)
        return whole.engine.total + (whole.learner_idle if turns else whole.learner).total

    assert held(made.sequences) <= card.usable < held(made.sequences + 1)
    assert not turns or made.sequences > plan(CHECKPOINTS, gb=16).sequences


def test_a_learner_that_stays_on_the_card_keeps_weights_and_states_but_no_activations():
    made = plan(IN_TURNS, "hardware.offload_learner=false")
    states = {"weights", "adapter", "AdamW states", "process"}
    assert made.learner_idle.keys() == states
    assert made.learner_idle.total == sum(made.learner[name] for name in states)
    assert made.learner_idle.total > plan(IN_TURNS).learner_idle.total


def test_turns_on_a_cpu_free_only_activations_and_gradients():
    cpu = HardwareConfig(device="cpu")
    made = plan(IN_TURNS, hardware=cpu)
    vllm = plan(IN_TURNS, *VLLM, hardware=cpu)
    assert {"weights", "AdamW states"} <= made.learner_idle.keys()
    assert made.engine_idle.keys() == {"weights", "versions", "process"}
    assert "KV cache" in vllm.engine_idle
    assert made.on_host == vllm.on_host == 0


def test_host_memory_is_that_of_the_larger_waiting_side():
    made = plan(IN_TURNS)
    engine = made.engine["weights"] + made.engine["versions"]
    learner = sum(made.learner[name] for name in ("weights", "adapter", "AdamW states"))
    assert made.on_host == max(engine, learner)
    assert plan(IN_TURNS, "hardware.offload_learner=false").on_host == engine
    assert plan().on_host == 0


def test_turns_are_offered_with_their_savings_only_where_a_card_is_shared():
    config = quick_start(CHECKPOINTS)

    def found(hardware, config=config):
        return {option.key: option.saves for option in options(config, replanner(hardware))}

    shared = plan(CHECKPOINTS)
    (card,) = shared.cards
    saves = shared.need(card) - plan(CHECKPOINTS, IN_TURNS).need(card)
    assert found(cuda(0.5, 0.5))["hardware.alternate"] == saves > 0
    assert "hardware.alternate" not in found(cuda(1, 1))
    turns = with_keys(config, TURNS)
    assert "hardware.alternate" not in found(cuda(0.5, 0.5), turns)
    cluster = dataclasses.replace(config.hardware, ray_address="auto")
    assert "hardware.alternate" not in found(
        cuda(0.5, 0.5), dataclasses.replace(config, hardware=cluster)
    )
    kept = dataclasses.replace(turns.hardware, offload_learner=False)
    offload = found(cuda(0.5, 0.5), dataclasses.replace(turns, hardware=kept))
    assert offload["hardware.offload_learner"] == (
        shared.learner["weights"] + shared.learner["adapter"] + shared.learner["AdamW states"]
    )


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_model_that_fits_a_card_only_in_turns_is_mended_by_turns(engine):
    """Two copies of 8 GiB of weights are more than a card of 16 GB holds, one is not."""
    config = quick_start(CHECKPOINTS, f"engine.name={engine}", "engine.max_model_len=2048")
    config = with_keys(config, {"learner.micro_batch_tokens": 2048})
    shape = known_shape("Qwen/Qwen3-4B")

    replan = replanner(cuda(0.5, 0.5), 16, shape)
    assert replan(config).excess > 0
    assert mend(config, replan) == ("hardware.alternate=true",)
    assert replan(with_keys(config, TURNS)).excess == 0
    kept = dataclasses.replace(with_keys(config, TURNS).hardware, offload_learner=False)
    kept_config = dataclasses.replace(config, hardware=kept)
    assert replan(kept_config).excess > 0
    assert mend(kept_config, replan) == ("hardware.offload_learner=true",)
