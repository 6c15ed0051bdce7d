"""What doctor finds, and what it stops before a run starts."""

import dataclasses
import io
import json
import re

import pytest
from rich.console import Console
from tests.harness.composed import composed

from rlforge import launch
from rlforge.engines import vllm_settings
from rlforge.errors import ConfigError
from rlforge.preflight import doctor as examined
from rlforge.preflight import plan as examined_plan
from rlforge.preflight.doctor import examine
from rlforge.preflight.doctor_view import render, to_values
from rlforge.preflight.memory.needs import GIB
from rlforge.preflight.model import shape_problems
from rlforge.system.hardware import Gpu

QUICK_START = "+experiment=qwen3_1p7b_simpletak_tuned"
ADA = Gpu(name="RTX 6000 Ada", memory=48 * GIB, capability=8.9)


def given_share(config):
    """Share of its card that vLLM gets on the examined machine."""
    made = examined_plan.make_plan(config, examined_plan.detect())
    return made.config.engine.vllm.gpu_memory_utilization


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "a key")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def finding(report, what, state=None):
    return next(f for f in report.findings if f.what == what and state in (None, f.state))


def shown(report):
    """The report as printed on 80 columns."""
    console = Console(width=80, file=io.StringIO())
    console.print(render(report))
    assert max(map(len, console.file.getvalue().splitlines())) <= 80
    return console.file.getvalue()


def test_a_proxy_that_does_not_lead_to_the_hub_ends_the_examination(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("rlforge.models.load.hub_is_reachable", lambda: False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"reached through https_proxy=http://127\.0\.0\.1:9$"):
        examine(composed("model=hf", "model.name=org/absent", "hardware=cpu"))


def test_a_run_on_this_cpu_is_planned_in_its_memory(small_model):
    sizes = ["engine.max_tokens=16", "model.prompt_template=board"]
    report = examine(composed("model=hf", f"model.name={small_model}", "hardware=cpu", *sizes))
    assert report.healthy
    assert report.memory.device == "RAM"
    assert report.memory.plan.verdict == "fits"
    assert str(small_model) in finding(report, "model").detail


def test_a_card_that_is_not_here_can_be_planned_for():
    report = examine(composed(QUICK_START, "hardware=gpu_1"), gpu_memory_gb=80)
    assert report.healthy
    assert finding(report, "hardware").state == "note"
    assert "the Hugging Face hub cannot be reached" in finding(report, "model", "note").detail
    assert report.memory.plan.cards[0].capacity == 80 * GIB


def test_a_profile_names_its_card_and_the_card_is_missed(machine):
    report = examine(composed(QUICK_START, "hardware=gpu_24gb", "pool.mode=fixed"))
    assert not report.healthy
    assert "shows none, so that train refuses here" in finding(report, "hardware", "note").detail
    assert "pool.mode=fixed" in finding(report, "configuration", "problem").detail
    assert report.memory.plan.verdict == "fits"
    assert examine(composed(QUICK_START, "hardware=gpu_24gb")).healthy
    machine(ADA)
    few = examine(composed(QUICK_START, "hardware=multi_gpu"))
    assert "wants 3 GPUs" in finding(few, "hardware", "problem").detail


def test_supervised_training_is_examined_without_engines(small_model):
    model = ["model=hf", f"model.name={small_model}", "model.prompt_template=board"]
    sizes = ["engine.max_tokens=16", "hardware=cpu"]
    report = examine(
        composed("kind=sft", "data=random_legal", "env=tictactoe", *model, *sizes),
        check=launch.check,
    )
    printed = shown(report)
    assert (report.healthy, report.memory.plan.verdict) == (True, "fits")
    assert "1 learner: at least" in printed
    assert not re.search(r"engine, |[0-9] engine|max_parallel_seq", printed)


def test_many_cards_that_are_not_here_are_planned_for(machine):
    report = examine(composed(QUICK_START, "hardware=multi_gpu"), 3, gpu_memory_gb=48)
    assert [card.count for card in report.memory.plan.cards] == [1, 2]
    machine(ADA, ADA, ADA)
    here = examine(composed(QUICK_START, "hardware=multi_gpu"))
    assert [f.what for f in here.findings if f.state == "problem"] == ["model"]  # no hub
    assert "RTX 6000 Ada (48.0 GiB)" in finding(here, "GPUs").detail


def test_the_smallest_card_and_the_oldest_decide(machine):
    machine(ADA, dataclasses.replace(ADA, memory=24 * GIB, capability=7.5))
    report = examine(composed(QUICK_START))
    assert report.memory.plan.cards[0].capacity == 24 * GIB
    weights = report.memory.plan.learner["weights"]
    assert weights == 4 * report.memory.plan.shape.parameters  # float32: no bfloat16 before 8.0


def test_another_machine_is_planned_with_its_own_engine_cards_and_packages(monkeypatch):
    monkeypatch.setattr(vllm_settings, "version_of", lambda name: None)
    wanted = composed("+experiment=qwen3_1p7b_simpletak", "tracker.wandb_project=UB")

    def nothing(name):
        raise examined.PackageNotFoundError(name)

    monkeypatch.setattr(examined, "version", nothing)
    missing = examine(composed(MIRROR, "model=smollm2_135m"))
    here = finding(missing, "packages", "problem").detail
    assert "gguf (model.kind=smollm2_135m; extra: smollm2)" in here
    assert not missing.healthy
    report = examine(wanted, 3, 48, launch.check)
    assert "problem" not in {each.state for each in report.findings}
    assert re.match(r"vLLM .*, planned: here vLLM is not", finding(report, "engine").detail)
    assert report.memory.plan.share == 0.9  # of vLLM, on cards without the learner
    assert [card.count for card in report.memory.plan.cards] == [1, 2]
    assert finding(report, "GPUs", "note").detail == "3 of 48.0 GiB, planned"
    assert "wandb" in finding(report, "packages", "note").detail
    assert "cores" in finding(report, "this machine").detail
    on_cpu = examine(wanted, 0, check=launch.check)
    assert finding(on_cpu, "GPUs").detail == "none, planned"
    assert "it runs on the CPU" in finding(on_cpu, "engine").detail
    assert finding(on_cpu, "memory").detail == "planned in the RAM of this machine"


def test_a_trial_that_fails_would_leave_an_engine_without_room(machine, monkeypatch, check_memory):
    installed = {"vllm": vllm_settings.VLLM_VERSION}.get
    monkeypatch.setattr(vllm_settings, "version_of", installed)
    machine(dataclasses.replace(ADA, memory=24 * GIB))
    wanted = [QUICK_START, "model.name=Qwen/Qwen3-4B", "hardware=gpu_24gb"]
    report = examine(composed(*wanted))
    assert report.memory.plan.excess == 0
    said = finding(report, "engine", "problem").detail
    assert "takes over where the trial of vLLM fails, needs 1.3 GiB too much" in said
    with pytest.raises(
        ConfigError, match=r"1\.3 GiB too much; these fit: hardware\.alternate=true"
    ):
        check_memory(composed(*wanted).config)


@pytest.mark.parametrize("number", ["inf", "nan", "1e400"])
def test_numbers_without_end_are_not_planned_with(number):
    with pytest.raises(ConfigError, match=r"^--gpu-memory (inf|nan): must be a finite number"):
        examine(composed(QUICK_START), gpu_memory_gb=float(number))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("gpus", "overrides", "note"),
    [
        (1, [], r"engine.num_engines=2: 1 starts, as 3 GPUs are for all of them and 1 is there"),
        (3, [], None),
        (8, [], "5 of 8 GPUs are not used: engine.num_engines=2, learner.num_learners=1"),
        (3, ["hardware=gpu_1"], "2 of 3 GPUs are not used: engine.num_engines=1"),
        (2, ["hardware=auto", "hardware.alternate=true"], "1 of 2 GPUs is not used: .*alternate"),
        (8, ["hardware=multi_gpu"], "5 of 8 GPUs are not used"),
    ],
)
def test_cards_and_engines_that_are_left_out_are_noted(gpus, overrides, note, capsys):
    wanted = ["+experiment=qwen3_1p7b_simpletak_tuned", *overrides]
    examination = examine(composed(*wanted), gpus, check=launch.check)
    notes = [each.detail for each in examination.findings if each.what == "hardware"][:-1]
    launch.composed(wanted, None, gpus)
    printed = capsys.readouterr().err
    if note is None:
        assert (notes, "not used" in printed) == ([], False)
    else:
        assert re.match(note, notes[0])
        assert f"note: {notes[0]}\n" in printed


def test_each_problem_of_the_configuration_is_a_finding():
    problems = [
        one.detail
        for one in examine(composed("algorithm=grpo", "hardware=cpu")).findings
        if one.state == "problem" and one.what == "configuration"
    ]
    assert len(problems) == 2
    assert "use buffer=episode" in problems[0]
    assert "as rewards=none does" in problems[1]


MIRROR = "+experiment=simpletak_mirror"
FILTERS = ("engine.top_p=0.9", "engine.top_k=20", "engine.min_p=0.05")


@pytest.mark.parametrize(
    ("overrides", "what", "detail"),
    [
        ([MIRROR, "model.lora.dropout=0.1"], "adapter", "model.lora.dropout=0.1"),
        (
            ["+experiment=tictactoe_mirror", "env.train=[{id: TicTacToe-v0-train, max_turns: 2}]"],
            "games",
            "TicTacToe-v0-train: each of 4 games of random legal moves was cut at max_turns=2",
        ),
        ([MIRROR, *FILTERS], "sampling", ", ".join(FILTERS)),
        (
            ["+experiment=qwen3_1p7b_simpletak"],
            "sampling",
            "kept, 0.95 to 1; with algorithm.importance_cap=null nothing is weighed by it",
        ),
    ],
)
def test_peculiarities_are_noted(overrides, what, detail):
    report = examine(composed(*overrides))
    assert detail in finding(report, what, "note").detail
    assert report.healthy or MIRROR not in overrides
    assert what == "games" or what not in {each.what for each in examine(composed(MIRROR)).findings}


def test_vllm_is_looked_for_and_its_share_of_the_card_is_said(machine, monkeypatch):
    monkeypatch.setattr(vllm_settings, "version_of", lambda name: None)
    wanted = composed(QUICK_START, "hardware=gpu_24gb", "engine=vllm")
    report = examine(wanted, gpu_memory_gb=24)
    printed = shown(report)
    planned = finding(report, "packages", "note").detail
    assert planned.startswith("vLLM 0.32.0, planned: here vLLM is not installed")
    machine(ADA)
    assert "vLLM is not installed" in finding(examine(wanted), "packages", "problem").detail
    plan = report.memory.plan
    text = f"it takes {plan.share:.2f} of its card, and can have {plan.left:.2f}"
    assert text in " ".join(printed.split())


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["model.name=some/unknown"], "shape of the model"),
        (["hardware=cluster"], "no GPU memory to read"),
    ],
)
def test_what_cannot_be_known_is_said(overrides, why, machine, check_memory):
    report = examine(composed(QUICK_START, *overrides))
    assert report.memory is None
    assert why in finding(report, "memory").detail
    machine(dataclasses.replace(ADA, memory=GIB))
    check_memory(composed(QUICK_START, *overrides).config)  # train says nothing


def test_the_report_is_json_with_bytes():
    values = to_values(examine(composed(QUICK_START), gpu_memory_gb=12))
    assert json.loads(json.dumps(values)) == values
    memory = values["memory"]
    assert memory["verdict"] == "does not fit"
    assert memory["learner"]["AdamW states"] == 2 * memory["learner"]["gradients"]
    assert "learner.gradient_checkpointing=true" in memory["mend"]


def test_train_refuses_what_does_not_fit_and_its_mend_is_accepted(machine, check_memory):
    machine(dataclasses.replace(ADA, memory=16 * GIB))
    with pytest.raises(ConfigError) as caught:
        check_memory(composed(QUICK_START, "hardware=auto").config)
    message = str(caught.value)
    assert "does not fit GPU of 16.0 GiB" in message
    assert "GiB too much" in message
    assert "hardware=auto: the learner and 1 engine need" in message
    mend = message.split("these fit: ")[1].split(";")[0].split()
    assert "learner.gradient_checkpointing=true" in mend
    check_memory(composed(QUICK_START, "hardware=auto", *mend).config)


def test_vllm_is_given_the_share_of_the_card_that_the_learner_leaves(machine):
    machine(dataclasses.replace(ADA, memory=24 * GIB))

    def share(*overrides):
        config = composed(QUICK_START, "engine=vllm", "hardware=gpu_1", *overrides).config
        return given_share(config)

    kept = share("learner.gradient_checkpointing=true", "engine.max_model_len=2048")
    assert 0.5 < kept < 0.9
    less = share("learner.gradient_checkpointing=true")
    assert 0.1 < less < kept
    assert share("engine.vllm.gpu_memory_utilization=0.3") == 0.3
    assert share("hardware.alternate=true") == 0.85
    assert share("model.name=some/unknown") is None
    assert share("engine=transformers") is None


def test_a_profile_plans_no_more_than_the_card_has(machine, check_memory):
    machine(dataclasses.replace(ADA, memory=12 * GIB))
    with pytest.raises(ConfigError, match=r"does not fit GPU of 12\.0 GiB"):
        check_memory(composed(QUICK_START, "hardware=gpu_80gb").config)
    with pytest.raises(ConfigError, match=r"2 engines|the learner"):  # of other machines
        check_memory(composed(QUICK_START, "hardware=cluster", "hardware.memory_gb=8").config)
    report = examine(composed(QUICK_START, "hardware=gpu_80gb"))
    assert report.memory.plan.cards[0].capacity == 12 * GIB
    assert report.memory.plan.excess > 0


def test_vllm_on_a_larger_card_takes_the_share_of_the_card_that_the_profile_names(machine):
    def share():
        wanted = [QUICK_START, "engine=vllm", "hardware=gpu_24gb"]
        return given_share(composed(*wanted).config)

    machine(dataclasses.replace(ADA, memory=24 * GIB))
    exact = share()
    machine(dataclasses.replace(ADA, memory=96 * GIB))
    assert share() == pytest.approx(exact / 4)


def test_an_engine_divides_its_model_among_several_cards(machine):
    machine(*[dataclasses.replace(ADA, memory=24 * GIB)] * 5)
    model = ["model.name=Qwen/Qwen3-8B", "engine.vllm.kv_cache_gb=2", "engine=vllm"]
    wanted = [QUICK_START, "hardware=multi_gpu", "engine.num_engines=1", *model]

    def engine(*overrides):
        plan = examine(composed(*wanted, *overrides)).memory.plan
        return plan.cards[1].count, plan.least["weights"], plan.sequence_bytes

    (one, weights, sequence), (four, part, piece) = engine(), engine("hardware.engine_gpus=4")
    assert (one, four) == (1, 4)
    assert (part, piece) == (weights // 4, sequence // 4)  # it has 8 heads of keys and values


def test_an_adapter_of_layers_that_the_model_does_not_have_is_found_before_it_is_loaded():
    model = ("model=smollm2_135m", "hardware=cpu")

    def report_of(*overrides):
        return "".join(shape_problems(composed(*overrides).config))

    wrong = (*model, "model.lora.target_modules=[q_proj,v_projj]")
    assert "no linear layers named v_projj; it has down_proj" in report_of(*wrong)
    problem = finding(examine(composed(*wrong)), "model")
    assert problem.state == "problem"
    assert "v_projj" in problem.detail
    assert report_of(*model, "model.lora.target_modules=[q_proj,lm_head]") == ""
    many = report_of(*model, "model.lora.last_layers=31")
    assert many == "model.lora.last_layers=31: SmolLM2-135M has 30 layers"
    assert report_of(*model, "model.lora.last_layers=30") == ""
    # Full weights have no adapter whose layers could be missing.
    assert report_of(*model, "learner.train=full", "model.lora.target_modules=[v_projj]") == ""


FOUR_B = ("model.name=Qwen/Qwen3-4B", "hardware=gpu_1", "learner.gradient_checkpointing=true")
SHORT = ("engine.max_model_len=2048", "learner.micro_batch_tokens=2048")


def test_both_turns_are_shown_with_what_waits_on_the_host(machine, check_memory):
    machine(dataclasses.replace(ADA, memory=16 * GIB))
    overrides = [QUICK_START, *FOUR_B, *SHORT]
    with pytest.raises(ConfigError, match=r"these fit: hardware\.alternate=true;"):
        check_memory(composed(*overrides).config)
    apart = examine(composed(*overrides, "hardware.alternate=true"))
    together = examine(composed(*overrides))
    printed = shown(apart)
    assert apart.memory.plan.excess == 0
    assert "in turns (hardware.alternate)" in printed
    assert "in the other's turn" in printed
    assert "hardware.alternate=true" in shown(together).split("what buys memory")[1]
    values = to_values(apart)["memory"]
    assert values["alternate"]
    assert values["on_host"] == apart.memory.plan.on_host > 7 * GIB
    assert values["learner_idle"] == values["engine_idle"]


def test_a_host_without_room_for_what_waits_is_a_problem(machine, monkeypatch):
    machine(dataclasses.replace(ADA, memory=16 * GIB))
    monkeypatch.setattr(examined, "ram", lambda: 4 * GIB)
    report = examine(composed(QUICK_START, *FOUR_B, *SHORT, "hardware.alternate=true"))
    assert not report.healthy
    assert "which has 4.0 GiB" in finding(report, "RAM", "problem").detail
    elsewhere = examine(composed(QUICK_START, *FOUR_B, *SHORT, "hardware.alternate=true"), 1, 16)
    assert re.search(r"up to [\d.]+ GiB to the host$", finding(elsewhere, "RAM", "note").detail)
