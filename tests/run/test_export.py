"""Exports of small real runs, loaded by transformers and PEFT, against the policies of the runs."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import yaml
from tests.factories import (
    changed,
    completion,
    evaluation,
    game_record,
    game_spec,
    model_files,
    seat,
    turn,
)
from tests.harness.control_tokens import with_chat
from typer.testing import CliRunner

import rlforge
from rlforge.cli import app
from rlforge.config.compose import compose, from_yaml, to_yaml
from rlforge.config.overrides import in_grammar
from rlforge.config.sft import SftConfig
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.errors import CheckpointError, ConfigError, RlforgeError
from rlforge.games.prompts import Prompter
from rlforge.games.registry import make_game
from rlforge.learner.weights import attach_lora, save_adapter, save_model
from rlforge.models.load import load_base_model, load_tokenizer
from rlforge.record.files import RunPaths, write_json, write_jsonl
from rlforge.record.game_files import GameWriter
from rlforge.rollout.lineup import asked_as, form_of, train_envs
from rlforge.run.export import CARD, CURVES, export_run, generation_config
from rlforge.show.card import example_prompt
from rlforge.show.report.data import load_run
from rlforge.system.checkpoint import write_checkpoint
from rlforge.system.loops import wait_for
from rlforge.types import Form

SETTINGS = [
    *("model=hf", "model.prompt_template=board", "model.action_extraction=bracket"),
    *("model.lora.rank=4", "engine.max_tokens=4", "engine.temperature=0.7", "engine.top_p=0.9"),
    "hardware.device=cpu",
]
CPU = torch.device("cpu")
VIEW = rlforge.View(
    player_id=0, observation="Your move.", board="X.. .O. ...\n[0] [4]", legal_actions=("[0]",)
)


def config_of(model, *overrides):
    settings = ["env=tictactoe", *SETTINGS, f"model.name={model}", *overrides]
    return compose(settings).config


def save_version(folder, config, number, *, prefix="step", full=False):
    """A version whose weights differ from the base model's by far more than rounding."""
    model = load_base_model(config.model, CPU, torch.float32)
    if full:
        with torch.no_grad():
            model.lm_head.weight.add_(0.3 * torch.randn_like(model.lm_head.weight))
        fill = lambda folder: save_model(model, folder, torch.float32)  # noqa: E731
    else:
        adapted = attach_lora(model, config.model.lora, seed=number)
        with torch.no_grad():
            for name, weight in adapted.named_parameters():
                if "lora_B" in name:
                    weight.add_(0.2 * torch.randn_like(weight))
        fill = lambda folder: save_adapter(adapted, folder)  # noqa: E731
    write_checkpoint(folder, f"{prefix}-{number}", fill, {"version": number})


def run_with(folder, config, *versions, **saved):
    """A run of ``config`` in ``folder`` that has saved these versions."""
    (folder / "config.yaml").write_text(to_yaml(config))
    for number in versions:
        save_version(folder / "checkpoints", config, number, **saved)
    return rlforge.load_run(folder)


def card_of(folder):
    return (folder / CARD).read_text()


def record_game(run_dir, config):
    """A finished training game, whose prompts are those of the first turn."""
    [env] = train_envs(config)
    view = make_game(env, seed=0).view()
    form = form_of(config.model)
    _, ids = Prompter(load_tokenizer(config.model)).encode(form, view)
    asked = completion(prompt_token_ids=ids)
    turns = [turn(player, observation=view.observation, completion=asked) for player in (0, 1)]
    seats = [seat(player, form=form) for player in (0, 1)]
    games = GameWriter(run_dir)
    games.add([game_record(game_spec(env=env, seats=seats), turns)])
    games.close()


@pytest.fixture(scope="session")
def run_dir(small_model, tmp_path_factory):
    """A run with two versions, their evaluations, and one recorded game."""
    folder = tmp_path_factory.mktemp("runs") / "demo"
    config = config_of(small_model)
    run = RunPaths(root=folder)
    run.checkpoints.mkdir(parents=True)
    run.config.write_text(to_yaml(config))
    run.command.write_text("rlforge train +experiment=tictactoe_mirror seed=3\n")
    for number in (1, 2):
        save_version(run.checkpoints, config, number)
    evaluations = [evaluation(n, wins) for n, wins in ((0, 20), (1, 70), (2, 60))]
    write_jsonl(run.evals, list(map(dataclasses.asdict, evaluations)))
    rows = [{"step": n, "time_s": 60.0 * n, "games": 50 * n, "reward_mean": n / 2} for n in (1, 2)]
    write_jsonl(run.metrics, rows)
    write_json(run.summary, {"run_name": "demo", "versions": {"rlforge": "0.1.0"}})
    record_game(folder, config)
    return folder


def answer(run, version):
    """What the engine of the run answers, with its log-probs."""
    with run.policy(version) as policy:
        return wait_for(policy.answer(VIEW, temperature=0.7, seed=3))


def logprobs(model, completion, config):
    """Log-probs of the answer's tokens under ``model``, as the engine samples."""
    ids = torch.tensor([[*completion.prompt_token_ids, *completion.token_ids]])
    with torch.no_grad():
        scores = model(ids).logits[0].float() / config.engine.temperature
    start, found = len(completion.prompt_token_ids), []
    for place, token in enumerate(completion.token_ids):
        row = torch.log_softmax(scores[start + place - 1], dim=-1)
        ordered, order = row.exp().sort(descending=True)
        kept = order[(ordered.cumsum(0) - ordered) < config.engine.top_p]
        found.append(float(row[token] - row[kept].logsumexp(0)))
    return found


def load(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


def assert_same_policy(model, run_dir, version):
    run = rlforge.load_run(run_dir)
    completion = answer(run, version)
    assert completion.logprobs == pytest.approx(logprobs(model, completion, run.config), abs=1e-5)


# ---------------------------------------------------------------- weights


@pytest.fixture(scope="session")
def merged(run_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "my-model"
    assert rlforge.load_run(run_dir).export(folder, merge=True) == folder
    return folder


def test_a_merged_export_has_the_log_probs_of_the_run(merged, run_dir):
    assert_same_policy(load(merged), run_dir, "step-2")
    run = rlforge.load_run(run_dir)
    completion = answer(run, "step-0")
    trained = logprobs(load(merged), completion, run.config)
    assert completion.logprobs != pytest.approx(trained, abs=0.1)


@pytest.mark.parametrize(
    ("dtype", "least", "most"), [("float32", 0, 1e-5), ("bfloat16", 1e-4, 0.2)]
)
def test_a_merge_says_how_far_it_moves_log_probs(run_dir, tmp_path, dtype, least, most):
    said, folder = [], tmp_path / "out"
    export_run(run_dir, folder, merge=True, dtype=dtype, say=said.append)
    (line,) = [line for line in said if line.startswith(f"merged into {dtype}: ")]
    gap = re.search(r"by (\S+) at most", line)[1]
    assert least <= float(gap) < most
    assert f"in {dtype} differ from those with the adapter by {gap} at most" in " ".join(
        card_of(folder).split()
    )
    assert ("--dtype float32" in card_of(folder)) == (dtype != "float32")
    # An independent measure, over sampled tokens.
    run = rlforge.load_run(run_dir)
    asked = answer(run, "step-2")
    moved = max(
        abs(one - other)
        for one, other in zip(
            asked.logprobs, logprobs(load(folder), asked, run.config), strict=True
        )
    )
    assert moved < 10 * float(gap) + 1e-5


def test_a_merged_export_is_a_plain_hugging_face_folder(merged, run_dir):
    from transformers import AutoTokenizer, GenerationConfig

    names = {path.name for path in merged.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    assert {"README.md", "config.yaml", "curves.svg", "generation_config.json"} <= names
    assert not [name for name in names if "value_head" in name or "adapter" in name]
    assert len({path.stat().st_mode for path in merged.iterdir()}) == 1  # safetensors takes 0600
    tokenizer = AutoTokenizer.from_pretrained(merged)
    sampling = GenerationConfig.from_pretrained(merged)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.9, 0)
    assert (sampling.max_new_tokens, sampling.pad_token_id) == (4, tokenizer.pad_token_id)
    closing = tokenizer.convert_tokens_to_ids("]")
    assert {tokenizer.eos_token_id, closing} <= set(sampling.eos_token_id)
    for file in merged.glob("*.json"):
        assert str(run_dir.parent.parent) not in file.read_text(), file


def test_generation_cuts_the_distribution_as_the_engine_does(small_model):
    config = config_of(small_model, "engine.top_k=7", "engine.min_p=0.1")
    sampling = generation_config(config, load_tokenizer(config.model))
    assert (sampling.top_k, sampling.min_p, sampling.top_p) == (7, 0.1, 0.9)


def test_training_takes_an_export_back(merged, run_dir, tmp_path):
    config = rlforge.compose("tictactoe_mirror", *SETTINGS, f"model.name={merged}")
    ours = answer(rlforge.load_run(run_dir), "step-2")
    theirs = answer(run_with(tmp_path, config), "step-0")
    assert theirs.token_ids == ours.token_ids
    assert theirs.logprobs == pytest.approx(ours.logprobs, abs=1e-5)


def test_an_adapter_is_loaded_by_peft_over_its_base(run_dir, tmp_path, monkeypatch):
    from peft import AutoPeftModelForCausalLM

    folder = rlforge.load_run(run_dir).export(tmp_path / "adapter", version="step-1")
    assert not (folder / "model.safetensors").exists()
    assert_same_policy(AutoPeftModelForCausalLM.from_pretrained(folder).eval(), run_dir, "step-1")
    base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    monkeypatch.chdir(tmp_path)
    assert output_of(code_of(folder))
    config = rlforge.compose(
        "tictactoe_mirror", *SETTINGS, f"model.name={base}", f"learner.initial_adapter={folder}"
    )
    assert config.learner.initial_adapter == str(folder)
    with pytest.raises(ConfigError, match=f"is an adapter; .*learner.initial_adapter={folder}"):
        load_base_model(dataclasses.replace(config.model, name=str(folder)), CPU, torch.float32)


def test_an_adapter_of_the_output_layer_unties_it_from_the_input(small_model, tmp_path):
    config = config_of(small_model, "model.lora.target_modules=[q_proj,lm_head]")
    folder = run_with(tmp_path, config, 1).export(tmp_path / "untied", merge=True)
    assert_same_policy(load(folder), tmp_path, "step-1")


def test_trained_whole_weights_are_exported_as_they_are(small_model, tmp_path):
    config = config_of(small_model, "learner.train=full")
    folder = run_with(tmp_path, config, 1, full=True).export(tmp_path / "full")
    assert_same_policy(load(folder), tmp_path, "step-1")


def test_the_base_model_and_another_data_type(run_dir, tmp_path):
    run = rlforge.load_run(run_dir)
    folder = run.export(tmp_path / "base", merge=True, version="step-0", dtype="bfloat16")
    model = load(folder)
    assert model.dtype == torch.bfloat16
    ours = load_base_model(run.config.model, CPU, torch.bfloat16).state_dict()
    assert all(torch.equal(weight, ours[name]) for name, weight in model.state_dict().items())


def test_a_deployed_version_of_a_continuous_run(small_model, tmp_path):
    settings = ["+experiment=market_continuous", *SETTINGS, f"model.name={small_model}"]
    config = compose(settings, root=ContinuousConfig).config
    run = RunPaths(root=tmp_path)
    run.config.write_text(to_yaml(config))
    save_version(run.deployed, config, 3, prefix="deploy")
    figures = {"avg_reward": 0.25, "win_rate": 0.5, "avg_pnl": 1.0}
    players = {"policy": figures, "momentum": figures}
    write_json(run.comparison, {"before": {"players": players}, "after": {"players": players}})
    write_jsonl(run.windows, [])
    folder = rlforge.load_run(tmp_path).export(tmp_path / "trader", merge=True, version="deploy-3")
    assert "| policy | 0.25 | 0.25 | 50.0% | 50.0% |" in card_of(folder)
    assert load(folder).num_parameters() > 0


# ---------------------------------------------------------------- the card


def test_the_card_has_metadata_results_and_training(merged):
    card = card_of(merged)
    data = yaml.safe_load(card.split("---")[1])
    assert (data["library_name"], data["pipeline_tag"]) == ("transformers", "text-generation")
    assert "base_model" not in data  # a folder of this machine is no id of the hub
    [result] = data["model-index"][0]["results"]
    measured = {"type": "win_rate", "value": 0.6, "name": "wins against random_legal"}
    assert result["metrics"][0] == measured
    row = next(line for line in card.splitlines() if "`random_legal`" in line)
    assert re.search(r"20\.0 / 40\.0 / 40\.0 % .* 60\.0 / 20\.0 / 20\.0 % \(50\.\d% to", row)
    assert row.endswith("| 2 | 100 |")
    assert "| games | 100 |" in card
    assert "`rlforge train +experiment=tictactoe_mirror seed=3`" in card
    assert command_of(merged) == [
        *("train", "+experiment=tictactoe_mirror", "model=hf", f"model.name={merged}"),
        *("model.prompt_template=board", "model.action_extraction=bracket"),
    ]


def test_the_card_of_the_best_version_without_matplotlib(run_dir, tmp_path, monkeypatch):
    find, said = importlib.util.find_spec, []
    hidden = lambda name: None if name == "matplotlib" else find(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    folder = export_run(run_dir, tmp_path / "best", merge=True, version="best", say=said.append)
    card = card_of(folder)
    assert "# demo, step-1" in card
    assert "70.0 / 15.0 / 15.0 %" in card
    assert "60.0 / 20.0" not in card
    assert "| `random_legal` |" in card
    (line,) = [line for line in said if "curves" in line]
    assert line.endswith("matplotlib is not installed; pip install 'rlforge[plots]'")
    assert not (folder / CURVES).exists()
    assert "Curves of the run" not in card


def test_the_card_of_an_average_has_no_results_of_the_versions_in_it(run_dir, tmp_path):
    run = Path(shutil.copytree(run_dir, tmp_path / "demo"))
    config = from_yaml(run / "config.yaml")
    average = {"average": "moving", "result": "average"}
    (run / "config.yaml").write_text(to_yaml(changed(config, learner=average)))
    newest = run / "checkpoints" / "step-2"
    shutil.copytree(newest, newest / "average", ignore=shutil.ignore_patterns("manifest.json"))
    card = card_of(export_run(run, tmp_path / "average", merge=True))
    assert "# demo, step-2-average" in card
    assert "60.0 / 20.0" not in card
    assert "played by the versions whose weights this one averages" in card


def test_of_several_policies_the_card_is_of_the_exported_one(small_model, tmp_path):
    rival = "{opponents: [main], learner: {learning_rate: 0.25}, prompt_template: default}"
    config = config_of(small_model, f"policies={{main: {{}}, rival: {rival}}}")
    run = RunPaths(root=tmp_path)
    for name in ("main", "rival"):
        run_with(tmp_path, config, 2, prefix=name)
    evaluated = dataclasses.replace(evaluation(2, 60), policy_uid="main-2")
    write_jsonl(run.evals, [dataclasses.asdict(evaluated)])
    write_json(run.summary, {"run_name": "demo"})

    def card(version):
        run = rlforge.load_run(tmp_path)
        return card_of(run.export(tmp_path / version, merge=True, version=version))

    main, other = card("main-2"), card("rival-2")
    assert "(`main`, `rival`), and this is `rival`" in other
    assert "| learning rate | 0.25 |" in other
    assert "| learning rate | 0.25 |" not in main
    assert "opponents by versions of `main`" in other
    assert "60.0 / 20.0 / 20.0 %" in main
    assert "60.0 / 20.0 / 20.0 %" not in other
    assert "template `board`" in main
    assert "template `default`" in other


def code_of(folder):
    """The code in the card of an export."""
    [code] = re.findall(r"```python\n(.*?)```", card_of(folder), re.DOTALL)
    return str(code)


def output_of(code):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "README.md", "exec"), {})
    return said.getvalue().strip()


def test_the_code_of_the_card_runs(merged, monkeypatch):
    monkeypatch.chdir(merged.parent)
    assert output_of(code_of(merged))


def command_of(folder):
    """What the shell makes of the command in the card of an export, with its folder."""
    [command] = re.findall(r"```bash\n(.*?)```", card_of(folder), re.DOTALL)
    shown = f"rlforge() {{ printf '%s\\0' \"$@\"; }}\n{command}".replace("FOLDER", str(folder))
    done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def test_a_chat_prompt_is_shown_as_messages_and_trained_in_the_same_form(small_model, tmp_path):
    system = 'You\'re to "win": $5 {{now}}.\n\\boxed{} [/INST]'
    prompts = {"squares": {"system": system, "user": "{grid}\n\n{request}"}}
    asked = ["env.train.0.prompt_template=squares", "env.train.0.action_extraction=number"]
    asked += ["model.prompt_template=chat", f"prompts={in_grammar(prompts)}"]
    config = config_of(small_model, *asked)
    record_game(tmp_path, config)
    (tmp_path / "command.txt").write_text("rlforge train +experiment=of_my_own\n")
    run = run_with(tmp_path, config)
    folder = run.export(tmp_path / "my-model", merge=True, version="step-0")
    assert "of rlforge's template `squares`" in card_of(folder)
    command, *overrides = command_of(folder)
    assert command == "train"
    again = rlforge.compose(*overrides)
    assert again.prompts == config.prompts
    assert again.env.train == config.env.train
    assert asked_as(again) == Form(template="squares", extraction="number")
    code = code_of(folder)
    assert '{"role": "user", "content": (' in code
    assert "apply_chat_template" in code
    assert output_of(code)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("template", ["default", "chat"])
@pytest.mark.parametrize("name", ["llama2", "gemma", "tiktoken", "roberta"])
def test_the_prompt_of_a_card_becomes_what_the_engine_was_asked(name, template, tmp_path):
    words = with_chat(name, "refuses")  # system messages
    model = model_files(words, tmp_path / "words")
    config = config_of(model, f"model.prompt_template={template}", "model.action_extraction=boxed")
    record_game(tmp_path, config)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    tokenizer = load_tokenizer(config.model)
    prompt = example_prompt(load_run(tmp_path), config, tokenizer)
    if not isinstance(prompt, str):
        prompt = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    [env] = train_envs(config)
    view = make_game(env, seed=0).view()
    _, asked = Prompter(tokenizer).encode(env.form, view)
    assert tuple(tokenizer.encode(prompt, add_special_tokens=False)) == asked


def test_the_card_of_a_supervised_run_names_what_it_imitates(small_model, tmp_path):
    settings = ["env=tictactoe", *SETTINGS, f"model.name={small_model}", "data=random_legal"]
    config = compose(settings, root=SftConfig).config
    card = card_of(run_with(tmp_path, config, 1).export(tmp_path / "sft", merge=True))
    assert "was trained by supervised fine-tuning to play `TicTacToe-v0-train`" in card
    assert "| data | answers of `random_legal`; games kept:" in card


def test_the_curves_are_one_picture(merged):
    drawn = (merged / CURVES).read_text()
    picture = ElementTree.fromstring(drawn)
    texts = {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"SimpleTak-v0-train vs random_legal", "reward", "win", "draw", "loss", "75%"} <= texts
    lines = Counter(re.findall(r"stroke: (#\w+); stroke-width: 2", drawn))  # and in the legend
    assert lines == {"#0b7f5f": 2, "#98a1ae": 2, "#b4520a": 2, "#2463c9": 1}
    assert f"![Curves of the run]({CURVES})" in (merged / CARD).read_text()


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "float32"}, "--dtype needs whole weights; add --merge"),
        ({"gguf": True}, "--gguf needs whole weights; add --merge"),
        ({"merge": True, "public": True}, "add --push ORG/NAME, or leave --public out"),
        ({"push": "me/mine"}, "is a folder of this machine.*add --merge"),
        ({"version": "step-0"}, "step-0 is the base model, without an adapter; add --merge"),
        ({"merge": True, "gguf": True}, r"convert_hf_to_gguf\.py is not on PATH"),
        ({"merge": True, "push": "me/mine"}, "set HF_TOKEN, or run hf auth login"),
        ({"merge": True, "push": "mine"}, "write ORG/NAME"),
        ({"merge": True, "push": "me/mi ne"}, "Repo id must"),
        ({"merge": True, "version": "step-9"}, "step-9: no such checkpoint"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_computed(
    arguments, message, run_dir, tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises((ConfigError, CheckpointError), match=message):
        rlforge.load_run(run_dir).export(tmp_path / "out" / "folder", **arguments)
    assert not (tmp_path / "out").exists()


def test_an_adapter_of_a_made_model_alone_is_refused(run_dir, tmp_path):
    made = Path(shutil.copytree(run_dir, tmp_path / "made"))
    (made / "config.yaml").write_text(to_yaml(compose(["env=tictactoe", "model=tiny"]).config))
    with pytest.raises(ConfigError, match=r"model\.kind=tiny is made on this machine.*--merge"):
        rlforge.load_run(made).export(tmp_path / "alone")


def test_files_of_the_user_are_not_replaced(run_dir, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")
    with pytest.raises(ConfigError, match="mine is not empty; name a new folder"):
        rlforge.load_run(run_dir).export(mine, merge=True)
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]


# ---------------------------------------------------------------- GGUF


def converter(folder, script):
    tool = folder / "convert_hf_to_gguf.py"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


@pytest.mark.parametrize("name", ["convert_hf_to_gguf.py", "convert-hf-to-gguf"])
def test_the_converter_gets_the_complete_model(run_dir, tmp_path, monkeypatch, name):
    converter(
        tmp_path / "bin",
        'echo "$@" > "$0.asked"; cat "$1/config.json" "$1/tokenizer.json" > "$3" && echo "$@"',
    )
    tool = (tmp_path / "bin" / "convert_hf_to_gguf.py").rename(tmp_path / "bin" / name)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    result = CliRunner().invoke(app, ["export", str(run_dir), "out", "--merge", "--gguf"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "out"
    assert (Path("out") / "out.gguf").stat().st_size > 1000
    assert "--outtype f32" in Path(f"{tool}.asked").read_text()


def test_a_failing_export_leaves_nothing_behind(run_dir, tmp_path, monkeypatch):
    converter(tmp_path / "bin", "echo this tokenizer is unknown >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(RlforgeError, match="failed: this tokenizer is unknown; without --gguf"):
        rlforge.load_run(run_dir).export(tmp_path / "out", merge=True, gguf=True)
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]
