"""What cannot work of a model is refused before anything starts, by doctor, config and train."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.factories import byte_tokenizer, causal_folder, causal_lm
from tests.harness.composed import composed
from tests.harness.hub import ModelFiles, hub

from rlforge import launch
from rlforge.config.model import LoraConfig
from rlforge.errors import ConfigError
from rlforge.learner.weights import attach_lora, save_adapter
from rlforge.models.empty import head_sizes, tokens_without_row
from rlforge.preflight.doctor import examine
from rlforge.preflight.model import model_notes, model_problems

SHORT = (
    *("env=tictactoe", "model=hf", "model.dtype=float32", "hardware=cpu", "engine.max_tokens=12"),
    *("engine.max_model_len=2048", "learner.total_updates=2", "learner.batch_size=16"),
    *("collector.num_train_workers=8", "collector.num_eval_workers=4", "eval.games=2"),
    *("eval.final_games=2", "eval.opponents=[random_legal]", "hardware.threads=1"),
    *("tracker.progress=plain", "buffer.max_staleness=0"),
)


def overrides(folder, *more):
    return [*SHORT, f"model.name={folder}", *more]


def found(folder, *more):
    """The problems that doctor finds, a line each."""
    report = examine(composed(*overrides(folder, *more)), check=launch.check)
    return [one.detail for one in report.findings if one.state == "problem"]


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Checks that doctor and train, and config where it can, refuse a run in one line."""
    monkeypatch.chdir(tmp_path)

    def lines(folder, *more, by_config=True):
        (said,) = found(folder, *more)
        assert "\n" not in said
        commands = [lambda given: launch.train(given, None)]
        if by_config:
            commands.append(lambda given: launch.composed(given, None))
        for command in commands:
            with pytest.raises(ConfigError) as caught:
                command(overrides(folder, *more))
            assert str(caught.value) == said
        assert not (tmp_path / "runs").exists()
        return said

    return lines


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["gpt_neox", "phi", "phi3", "gpt2", "opt", "mixtral"])
def test_other_decoders_than_llama_fit_and_train_with_default_keys(
    kind, tmp_path, in_process, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = causal_folder(tmp_path / kind, kind)
    assert found(folder) == []
    launch.composed(overrides(folder), None)
    assert in_process.rlforge_here("train", *overrides(folder), "run_dir=run") == 0
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in metrics.splitlines()]
    gaps = [row["logprob_gap_mean"] for row in rows if "logprob_gap_mean" in row]
    assert len(gaps) == 2
    assert max(gaps) < 1e-5


def without(name):
    def change(folder):
        tensors = load_file(folder / "model.safetensors")
        del tensors[name]
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def stored_as(kind):
    def change(folder):
        tensors = load_file(folder / "model.safetensors")
        name = "model.layers.0.mlp.up_proj.weight"
        tensors |= {name: tensors[name].to(kind), f"{name}_scale": torch.ones(1)}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def described(**settings):
    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))

    return change


def lose_a_part(folder):
    tensors = load_file(folder / "model.safetensors")
    parts = {name: f"model-0000{number % 2}.safetensors" for number, name in enumerate(tensors)}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": parts})
    )
    (folder / "model.safetensors").unlink()
    first = {name: tensors[name] for name in parts if parts[name] == "model-00000.safetensors"}
    save_file(first, folder / "model-00000.safetensors", metadata={"format": "pt"})


def written(name, content):
    def change(folder):
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text)

    return change


def no_change(folder):
    """The model is refused as it is."""


UNBUILT = "cannot be (loaded|built from its configuration): "
TOO_SMALL = r"17 tokens of the tokenizer have no row in the model, which knows tokens 0 to 241"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("sizes", "change", "reason"),
    [
        *(
            (
                {},
                written("config.json", {"model_type": kind, "max_position_embeddings": 2048}),
                rf"is no causal language model \(its model_type is {kind}\)",
            )
            for kind in ("vit", "t5", "distilbert")
        ),
        *(
            (
                {"tie_word_embeddings": True},
                described(architectures=[f"LlamaFor{head}"]),
                rf"is no causal language model \(it is a LlamaFor{head}\)",
            )
            for head in ("SequenceClassification", "TokenClassification")
        ),
        *(
            ({}, written("config.json", content), "cannot be loaded")
            for content in (
                *({}, {"model_type": "nothing_known"}, "{", "[]"),
                {"model_type": "own_code", "auto_map": {"AutoConfig": "own.Config"}},
                {"model_type": "llama", "num_attention_heads": 5},
            )
        ),
        *(
            (
                {},
                written("generation_config.json", content),
                "generation_config.json cannot be read",
            )
            for content in ("{", [], "null", {"eos_token_id": "</s>"}, {"eos_token_id": [2, [3]]})
        ),
        *(({}, described(vocab_size=size), UNBUILT) for size in (0, None, "x")),
        ({"vocab_size": 242}, no_change, TOO_SMALL),
        ({"max_position_embeddings": 96}, no_change, "has positions for 96 tokens"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(tmp_path, refused, sizes, change, reason):
    folder = causal_folder(tmp_path / "model", "llama", **sizes)
    change(folder)
    assert re.search(reason, refused(folder))


def test_a_recurrent_model_is_refused(tmp_path, refused):
    said = refused(causal_folder(tmp_path / "mamba", "mamba"))
    assert said.startswith(
        f"model.name={tmp_path / 'mamba'}: MambaForCausalLM has a recurrent state"
    )


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without("lm_head.weight"), "its files lack lm_head.weight; take a complete"),
        (described(num_hidden_layers=3), r"its files lack model.layers.2.* \(and 8 more\); take"),
        (described(intermediate_size=8), r"in its files and .* by its config.json \(and"),
        (lose_a_part, "model-00001.safetensors; check model.name"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no file named model.safetensors"),
        (described(quantization_config={"quant_method": "gptq", "bits": 4}), "cannot be loaded: "),
        (stored_as(torch.int8), r"up_proj.weight is of I8 numbers, .*; take a version"),
        (stored_as(torch.float8_e4m3fn), r"up_proj.weight is of F8_E4M3 numbers"),
    ],
)
def test_a_model_whose_weights_are_not_whole_is_refused(tmp_path, refused, change, reason):
    """Transformers draws what the files lack, for the engine and the learner apart."""
    folder = causal_folder(tmp_path / "model", "llama")
    change(folder)
    assert re.search(reason, refused(folder, by_config=False))


def test_quantised_weights_that_transformers_reads_are_taken(tmp_path):
    folder = causal_folder(tmp_path / "model", "llama")
    tensors = load_file(folder / "model.safetensors")
    for name in [one for one in tensors if "_proj" in one]:
        tensors[f"{name}_scale_inv"] = torch.ones(1, 1)
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    how = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    described(quantization_config=how)(folder)
    assert found(folder) == []
    described(quantization_config={"quant_method": "own"})(folder)
    assert "no quantization_config that transformers knows" in found(folder)[0]


def test_what_is_wrong_with_configuration_and_model_is_said_at_once(tmp_path):
    folder = causal_folder(tmp_path / "small", "llama", vocab_size=242)
    given = overrides(folder, "algorithm=grpo", "model.lora.target_modules=[query]")
    expected = [
        *("use buffer=episode", "rewards.final=", "17 tokens of the tokenizer"),
        "no linear layers named query",
    ]
    for command in (launch.train, launch.composed):
        with pytest.raises(ConfigError) as caught:
            command(given, None)
        said = str(caught.value).splitlines()
        assert len(said) == 4
        assert all(text in line for text, line in zip(expected, said, strict=True)), said


def test_arguments_that_the_chat_template_does_not_read_are_refused(tmp_path, refused):
    folder = causal_folder(tmp_path / "llama", "llama")
    file = folder / "chat_template.jinja"
    file.write_text(file.read_text() + "{% if enable_thinking %}<think>{% endif %}")
    assert refused(folder, "model.chat_template_args={enable_thinkng: false}") == (
        f"model.chat_template_args.enable_thinkng: the chat template of {folder} does not read it; "
        "did you mean enable_thinking?"
    )
    assert not found(folder, "model.chat_template_args={enable_thinking: false}")
    file.unlink()
    assert refused(folder, "model.chat_template_args={enable_thinking: false}").endswith(
        "is missing; leave it out"
    )


def test_special_tokens_that_nothing_writes_need_no_row():
    """Gemma 3 of 1B shares its tokenizer, with a token for images, with larger models."""
    tokenizer = byte_tokenizer(chat_template="{{ messages }}<turn>", special=["<pad>"])
    rows = len(tokenizer)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<image>", "<turn>"]})
    tokenizer.add_tokens(["plain"])
    assert tokens_without_row(tokenizer, rows) == ["<turn>", "plain"]
    assert tokens_without_row(tokenizer, rows + 3) == []


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_layer_names_that_are_not_there_are_refused_with_those_that_are(tmp_path, engine):
    folder = causal_folder(tmp_path / "gpt2", "gpt2", num_attention_heads=1)
    lora = "model.lora.target_modules=[c_attn,q_proj]"
    config = composed(*overrides(folder, lora, f"engine={engine}")).config
    (said,) = model_problems(config)
    assert said.endswith("no linear layers named q_proj; it has c_attn, c_fc, c_proj, lm_head")


def adapter(folder, rank=32, seed=0, **lora):
    base = causal_lm("llama", vocab_size=259)
    base.name_or_path = "llama"
    model = attach_lora(base, LoraConfig(rank=rank, **lora), seed)
    folder.mkdir()
    save_adapter(model, folder)
    return folder


@pytest.mark.parametrize(
    ("key", "place"),
    [("learner.initial_adapter", "{}"), ("pool.fixed_opponents", "[checkpoint:{}]")],
)
def test_an_adapter_of_another_model_is_refused(tmp_path, refused, key, place):
    folder = causal_folder(tmp_path / "llama", "llama")
    other = adapter(tmp_path / "bad")
    tensors = load_file(other / "adapter_model.safetensors")
    renamed = {name.replace("layers.1", "layers.7"): tensors[name] for name in tensors}
    save_file(renamed, other / "adapter_model.safetensors")
    said = refused(folder, f"{key}={place.format(other)}")
    assert key in said
    assert "layers.1" in said


def test_full_weights_of_an_opponent_that_are_not_whole_are_refused(tmp_path, refused):
    folder, other = (causal_folder(tmp_path / name, "llama") for name in ("own", "other"))
    without("lm_head.weight")(other)
    said = refused(folder, f"pool.fixed_opponents=[checkpoint:{other}]", by_config=False)
    assert said.startswith("pool.fixed_opponents: its files lack lm_head.weight")


def test_an_initial_adapter_of_other_layers_names_the_key(tmp_path, refused):
    folder = causal_folder(tmp_path / "llama", "llama")
    other = adapter(tmp_path / "bad", target_modules=["q_proj"])
    said = refused(folder, f"learner.initial_adapter={other}")
    assert "model.lora.target_modules ['q_proj'] against ['down_proj'" in said


def test_heads_that_vllm_cannot_compute_are_refused(tmp_path):
    folder = causal_folder(tmp_path / "llama", "llama", head_dim=8)
    (said,) = model_problems(composed(*overrides(folder, "engine=vllm")).config)
    assert "has attention heads of 8, and on a CPU vLLM computes those of 32, 64" in said
    fits = causal_folder(tmp_path / "wide", "llama", head_dim=32)
    assert not [*model_problems(composed(*overrides(fits, "engine=vllm")).config)]


def test_heads_of_several_sizes_and_of_latent_vectors_are_found():
    with torch.device("meta"):
        assert head_sizes(causal_lm("llama", head_dim=8)) == ([8], False)
        gemma = causal_lm("gemma4_text", head_dim=8, global_head_dim=16, num_hidden_layers=6)
        assert head_sizes(gemma) == ([8, 16], False)
        latent = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "head_dim": None}
        assert head_sizes(causal_lm("deepseek_v3", **latent)) == ([24], True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("where", ["model", "learner.initial_adapter"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path, refused, where, number):
    folder, more = causal_folder(tmp_path / "llama", "llama"), []
    file = folder / "model.safetensors"
    if where != "model":
        start = adapter(tmp_path / "bad")
        file, more = start / "adapter_model.safetensors", [f"{where}={start}"]
    tensors = load_file(file)
    name = max(tensors)
    tensors[name].view(-1)[7] = number
    save_file(tensors, file, {"format": "pt"})
    said = refused(folder, *more, by_config=False)
    launch.composed(overrides(folder, *more), None)
    assert said.startswith(where)
    assert f"{file}: {name} holds 1 numbers that are not finite" in said


def test_weights_on_the_hub_are_fetched_and_read_before_a_run_starts(tmp_path, monkeypatch, capsys):
    """Doctor fetches configuration and tokenizer only, and says so."""
    monkeypatch.chdir(tmp_path)
    cache = tmp_path / "cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    folder = causal_folder(tmp_path / "llama", "llama")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with hub(monkeypatch, ModelFiles, folder):
        for _ in range(2):
            report = examine(composed(*overrides("org/m")), check=launch.check)
            assert report.healthy
            assert report.memory is not None
            assert any("its weights are on the hub only" in one.detail for one in report.findings)
            assert not [*cache.rglob("model.safetensors")]
        with pytest.raises(ConfigError, match=r"^model\.name=org/m: .*norm\.weight holds 1"):
            launch.train(overrides("org/m"), None)
        assert "fetching the weights of org/m" in capsys.readouterr().err
        assert not (tmp_path / "runs").exists()
        (said,) = found("org/m")
        assert "norm.weight holds 1 numbers that are not finite" in said


def test_experts_are_refused_where_rows_must_not_depend_on_their_batch(tmp_path, refused):
    folder = causal_folder(tmp_path / "mixtral", "mixtral")
    said = refused(folder, "determinism=strict", "hardware.threads=1")
    assert said.startswith("engine.batch_invariant: MixtralForCausalLM is a mixture of experts")


def test_experts_without_an_adapter_are_noted(tmp_path):
    folder = causal_folder(tmp_path / "mixtral", "mixtral")
    report = examine(composed(*overrides(folder)))
    assert [one for one in report.findings if "holds its experts" in one.detail]
    assert not [*model_notes(composed(*overrides(folder, "learner.train=full")).config)]


def test_a_model_that_is_read_whole_is_noted_for_the_engine_that_does_so(tmp_path):
    folder = causal_folder(tmp_path / "openai-gpt", "openai-gpt")
    report = examine(composed(*overrides(folder)))
    assert [one.state for one in report.findings if "read whole" in one.detail] == ["note"]
