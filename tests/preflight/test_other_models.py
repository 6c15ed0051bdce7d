"""Other models (``hf:``) that cannot play are refused before anything starts, all at once."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.factories import causal_folder
from tests.harness.composed import composed
from tests.harness.in_process import rlforge_here

from rlforge import launch
from rlforge.errors import ConfigError
from rlforge.preflight.doctor import examine
from rlforge.preflight.model import model_notes, model_problems


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A model that can play."""
    return causal_folder(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def base(small_model):
    """A run that meets the model ``{}`` in evaluations."""
    model = ["model=hf", f"model.name={small_model}", "model.prompt_template=board"]
    short = ["model.action_extraction=bracket", "engine.max_tokens=4", "engine.max_model_len=128"]
    return ["env=tictactoe", *model, *short, "hardware=cpu"]


@pytest.fixture
def refused(base, capsys):
    """Why train refuses a run against these models, and config and doctor with it."""

    def lines(*names, more=(), by_config=True):
        given = [*base, f"eval.opponents=[{','.join(names)}]", *more]
        report = examine(composed(*given), check=launch.check)
        said = "\n".join(one.detail for one in report.findings if one.state == "problem")
        if by_config:
            with pytest.raises(ConfigError) as caught:
                launch.composed(given, None)
            assert str(caught.value) == said
        assert rlforge_here("train", *given) == 2
        assert capsys.readouterr().err.rstrip().endswith(f"rlforge: {said}")
        assert not Path("runs").exists()
        return said

    return lines


def test_all_reasons_are_said_at_once_each_with_its_key_and_model(refused, tmp_path, good):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    recurrent = causal_folder(tmp_path / "mamba", "mamba")
    said = refused("hf:/no/such/folder", f"hf:{adapter}", f"hf:{good}", f"hf:{recurrent}")
    missing, of_adapter, of_recurrent = said.splitlines()
    assert missing == "eval.opponents: hf:/no/such/folder: there is no such directory"
    assert of_adapter == (
        f"eval.opponents: hf:{adapter}: it is an adapter; one of the trained model is "
        f"checkpoint:{adapter}"
    )
    assert of_recurrent.startswith(
        f"eval.opponents: hf:{recurrent}: MambaForCausalLM has a recurrent state"
    )


def test_settings_that_leave_no_room_are_named_as_those_of_the_opponents(refused, good):
    said = refused(f"hf:{good}", more=["pool.hf.max_model_len=64", "pool.hf.max_tokens=8"])
    first, second = said.splitlines()
    assert first.startswith(f"eval.opponents: hf:{good}: pool.hf.max_tokens=8: an answer with")
    assert f"hf:{good}: pool.hf.max_model_len=64: the first prompt of TicTacToe-v0-train" in second


CONVERSATION = ("env.context=conversation", "env.overflow=drop_oldest", "engine.max_tokens=2")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("kind", "sizes", "more", "reason"),
    [
        (
            *("qwen3", {}),
            (*CONVERSATION, "pool.hf.max_model_len=1024", "pool.hf.max_tokens=1024"),
            "pool.hf.max_tokens=1024 leaves no room for a prompt: 1024 tokens",
        ),
        (
            *("qwen3", {}, ["pool.hf.chat_template_args={enable_thinking: false}"]),
            "pool.hf.chat_template_args.enable_thinking: the chat template",
        ),
        ("qwen3", {"vocab_size": 100}, [], "have no row in the model"),
        ("mixtral", {}, ["determinism=strict"], "engine.batch_invariant: Mixtral"),
    ],
)
def test_a_reason_names_the_model(refused, tmp_path, kind, sizes, more, reason):
    folder = causal_folder(tmp_path / kind, kind, **sizes)
    said = refused(f"hf:{folder}", more=more)
    assert said.startswith(f"eval.opponents: hf:{folder}: ")
    assert reason in said


def test_weights_that_are_not_finite_are_refused(refused, tmp_path):
    folder = causal_folder(tmp_path / "gpt2", "gpt2")
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["transformer.h.0.mlp.c_fc.weight"][0, 0] = torch.nan
    save_file(weights, file, metadata={"format": "pt"})
    said = refused(f"hf:{folder}", by_config=False)
    assert said.startswith(f"eval.opponents: hf:{folder}: ")
    assert "take another version of it" in said
    assert "\n" not in said


def test_a_model_without_a_chat_template_is_a_note(base, tmp_path):
    folder = causal_folder(tmp_path / "gpt2", "gpt2")
    (folder / "chat_template.jinja").unlink()
    config = composed(*base, f"pool.fixed_opponents=[hf:{folder}]").config
    assert [*model_problems(config)] == []
    assert [*model_notes(config)] == [
        f"pool.fixed_opponents: the tokenizer of hf:{folder} has no chat template, so its prompts "
        "are plain text (pool.hf.prompt_template=default)"
    ]


def test_doctor_shows_where_it_is_and_what_it_takes(base, good):
    report = examine(composed(*base, f"eval.opponents=[hf:{good}]"), check=launch.check)
    assert [one.detail for one in report.findings if one.what == "opponent"] == [
        f"hf:{good}: {good}"
    ]
    assert {"other models", "their caches"} <= report.memory.plan.engine.keys()
    keys = {option.key for option in report.memory.options}
    assert {"pool.hf.max_parallel_seq", "pool.hf.max_model_len"} <= keys
    alone = examine(composed(*base, "eval.opponents=[random_legal]"), check=launch.check)
    assert not any(option.key.startswith("pool.") for option in alone.memory.options)


def test_a_run_is_prepared_where_the_model_is_not_and_does_not_start_there(base):
    given = [*base, "eval.opponents=[hf:org/model]"]
    launch.composed(given, None)
    with pytest.raises(ConfigError, match=r"^eval\.opponents: hf:org/model: not on this machine"):
        launch.train(given, None)
    elsewhere = [*base, "eval.opponents=[hf:org/model]", "hardware=gpu_24gb"]
    report = examine(composed(*elsewhere), gpu_memory_gb=24, check=launch.check)
    notes = [one.detail for one in report.findings if one.state == "note"]
    assert any("hf:org/model is not on this machine: training fetches it" in one for one in notes)
    [opponent] = (one.detail for one in report.findings if one.what == "opponent")
    assert opponent.endswith("its memory is not planned: its shape is not known")
    assert report.healthy
