"""The command line: output, exit codes, and messages for wrong input."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
import yaml
from tests.harness.configs import edit_config
from tests.harness.permissions import public_folder, without_rights

from rlforge import __version__
from rlforge.cli import app
from rlforge.config.catalog import catalog, subjects
from rlforge.config.keys import conf_dir
from rlforge.config.model import LoraConfig, ModelConfig
from rlforge.config.plugins import COMMANDS, KINDS, OBSERVERS, PLAYERS, SIGNALS
from rlforge.models.made import made_model
from rlforge.record.files import read_jsonl
from rlforge.types import EvalResult

NAMES = (
    *("train", "sft", "eval", "graph", "config", "doctor", "port", "play", "replay", "batches"),
    *("continuous", "serve", "deploy", "rollback", "deployments"),
    *("fork", "analyse", "verify", "ladder", "exploit"),
    *("list", "show", "models", "plugins", "runs", "why", "compare", "monitor", "report", "export"),
    "windows",  # groups of commands are last
)


@pytest.fixture
def run_dir(run_copy):
    """A finished run, as it is named in its folder."""
    return run_copy.relative_to(Path.cwd())


# ---------------------------------------------------------------- output


def help_texts(command, name=()):
    """The help text of each command, by its words."""
    for inner, one in command.commands.items():
        yield (*name, inner), one.help
        if hasattr(one, "commands"):
            yield from help_texts(one, (*name, inner))


HELP = dict(help_texts(typer.main.get_command(app)))


@pytest.mark.parametrize(
    ("command", "columns"),
    [*((command, 80) for command in HELP), (("ladder",), 120), (("exploit",), 120)],
    ids=str,
)
def test_every_help_text_fits_and_has_each_example_in_one_line(
    rlforge, monkeypatch, command, columns
):
    monkeypatch.setenv("COLUMNS", str(columns))
    answer = rlforge(*command, "--help")
    assert answer.code == 0
    assert max(map(len, answer.out.splitlines())) <= columns
    (examples,) = re.findall(r"```bash\n(.*?)\n```", HELP[command], re.DOTALL)
    assert f"rlforge {' '.join(command)}" in examples
    shown = [line.strip() for line in answer.out.splitlines()]
    assert [line for line in examples.splitlines() if line not in shown] == []


def test_the_overview_names_every_command_and_the_version_is_shown(rlforge):
    answer = rlforge("--help")
    assert re.findall(r"^│ (\w+) {2,}", answer.out, re.MULTILINE) == list(NAMES)
    assert "To begin: rlforge train simpletak_mirror" in answer.out
    assert rlforge("--version") == (0, f"rlforge {__version__}\n", "")


def test_config_prints_what_can_be_read_back_also_of_an_experiment_named_alone(rlforge):
    given = ("seed=3", "learner.batch_size=512")
    answer = rlforge("config", "+experiment=simpletak_mirror", *given)
    printed = yaml.safe_load(answer.out)
    assert (printed["seed"], printed["learner"]["batch_size"]) == (3, 512)
    assert printed["pool"]["mode"] == "mirror"
    assert answer == rlforge("config", "simpletak_mirror", *given) == (0, answer.out, "")


def test_what_can_be_chosen_is_listed_with_a_sentence_each(rlforge):
    groups = rlforge("list").out
    for name, key in (("env", "env=NAME"), ("experiment", "+experiment=NAME"), ("players", "")):
        assert re.search(rf"^{name} +{re.escape(key)}", groups, re.MULTILINE), name
    answer = rlforge("list", "experiments")
    assert max(map(len, answer.out.splitlines())) <= 80
    assert re.search(r"^kuhn_grpo +GRPO at Kuhn poker", answer.out, re.MULTILINE)
    assert answer.out.endswith("chosen by +experiment=NAME\n")
    assert "win_block" in rlforge("list", "players").out


def test_every_option_of_every_group_says_what_it_is():
    for subject in subjects():
        if (conf_dir() / subject).is_dir():
            assert [one.name for one in catalog(subject).choices if not one.about] == [], subject


def test_a_result_that_could_not_be_written_is_refused_before_the_work(rlforge):
    with public_folder() as folder:
        folder.chmod(0o555)
        with without_rights():
            refused = rlforge("runs", "--json", str(folder / "runs.json"))
    assert refused.code == 2
    assert (
        f"--json {folder / 'runs.json'}: {folder} cannot be written: Permission denied"
        in refused.err
    )


def test_runs_are_listed_and_the_newest_is_called_latest(rlforge, run_dir):
    older = Path("runs/other/one")
    shutil.copytree(run_dir, older)
    for file in older.rglob("*"):
        os.utime(file, (0, 0))
    answer = rlforge("runs", "--json", "runs.json")
    assert answer.code == 0
    paths = [str(run_dir), str(older)]
    rows = json.loads(Path("runs.json").read_text())
    assert [row["path"] for row in rows] == paths
    last = read_jsonl(run_dir / "evals.jsonl")[-2:]
    for row in last:
        result = rows[0]["results"][f"vs {row['opponent']}"]
        assert [result["mean"], result["low"], result["high"]] == [row["win_rate"], *row["ci95"]]
    headings = [line for line in answer.out.splitlines() if line.startswith("runs/")]
    assert headings == [f"{Path(path).parent}  1 run: 1 done" for path in paths]
    for path in paths:
        assert re.search(rf"^{Path(path).name} .*\bdone 5/5", answer.out, re.MULTILINE | re.DOTALL)
    shown = rlforge("monitor", "latest", "--once")
    assert shown == rlforge("monitor", run_dir, "--once") == (0, shown.out, "")
    assert "5/5" in shown.out
    assert "random_legal" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_keys_are_explained(rlforge):
    answer = rlforge("show", "seed", "algorithm.gae", "engine.vllm.kv_cache_gb")
    assert answer.code == 0
    assert answer.out.splitlines() == [
        "seed=0  (int in [0, 9223372036854775807])",
        "    Seed of everything.",
        "engine.vllm.kv_cache_gb=null  (float > 0 or null)",
        "    GiB of the KV cache; null: what the GPU's share leaves, 1 on a CPU.",
        "algorithm.gae_lambda=0.95  (float in [0, 1]) [algorithm=a2c, ppo]",
        "    GAE lambda (Schulman et al. 2016).",
    ]


def test_a_key_is_shown_with_its_value_and_where_that_is_from(rlforge):
    words = ("learner.total_updates", "learner.schedule", "seed")
    answer = rlforge("show", *words, "simpletak_mirror", "seed=3")
    assert answer.code == 0
    lines = answer.out.splitlines()
    keys = {line.partition("=")[0]: line for line in lines if not line.startswith(" ")}
    origins = [line.strip() for line in lines if line.startswith("    from: ")]
    assert set(keys) == set(words)
    assert keys["seed"] == "seed=3  (int in [0, 9223372036854775807]; default 0)"
    assert "from: command line, seed=3" in origins
    assert any(origin.startswith("from: conf/") for origin in origins)


def test_a_group_is_shown_with_its_options_and_keys(rlforge):
    answer = rlforge("show", "buffer")
    assert answer.code == 0
    assert answer.out.startswith("buffer=NAME\n")
    assert re.search(r"^    episode +\w", answer.out, re.MULTILINE)
    assert re.search(r"^buffer\.max_staleness=", answer.out, re.MULTILINE)
    assert rlforge("show", "experiment").out.startswith("+experiment=NAME\n    blotto_league")


@pytest.mark.slow
def test_environments_are_listed_with_the_models_that_play_them(rlforge):
    words = " ".join(rlforge("list", "envs").out.split())
    assert re.search(
        r"tictactoe TicTacToe by TextArena\. Models: all but tiny_market, tiny_social\.", words
    )
    assert re.search(r"market Two seats [^.]*\. Models: all but tiny\.", words)


@pytest.mark.parametrize("columns", [40, 80])
def test_paths_and_names_are_never_broken(rlforge, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    cache = Path("a-folder-whose-name-is-too-long-for-a-line-of-a-narrow-terminal") / "cache"
    for folder in {kind.folder.name for kind in map(made_model, ("tiny", "tiny_market")) if kind}:
        (cache / folder).mkdir(parents=True)
    monkeypatch.setenv("RLFORGE_CACHE", str(cache))
    models = rlforge("models").out.split()
    assert len([word for word in models if word.startswith(f"{cache}/tiny")]) == 2
    assert all(name in rlforge("plugins").out.replace(",", "").split() for name in PLAYERS.names())
    said = rlforge("doctor", "model=hf", f"model.name={cache}").out.split()
    assert [word for word in said if word.startswith(str(cache))]


def test_graph_in_three_forms(rlforge):
    table = rlforge("graph", "+experiment=simpletak_mirror", "engine.num_engines=2")
    assert re.search(r"(?m)^engine +2 ", table.out)
    assert max(map(len, table.out.splitlines())) <= 80
    nodes = json.loads(rlforge("graph", "engine.num_engines=2", "--format", "json").out)["nodes"]
    assert {node["name"]: node["replicas"] for node in nodes}["engine"] == 2
    mermaid = rlforge("graph", "--format", "mermaid").out
    assert mermaid.startswith("flowchart LR\n")
    assert "buffer -->|TrainBatch| learner" in mermaid


def test_a_cluster_s_run_is_prepared_without_a_gpu(rlforge, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    quick_start = ("+experiment=qwen3_1p7b_simpletak_tuned", "hardware=multi_gpu")
    graph = rlforge("graph", *quick_start, "--format", "json")
    gpus = {node["name"]: node["num_gpus"] for node in json.loads(graph.out)["nodes"]}
    assert (graph.code, gpus["learner"], gpus["engine"]) == (0, 1, 1)
    assert "note: hardware=multi_gpu wants a GPU and this machine shows none" in graph.err
    plain = yaml.safe_load(rlforge("config", *quick_start).out)["hardware"]
    assert (plain["num_gpus"], plain["memory_gb"]) == (None, None)
    given = rlforge("config", *quick_start, "--gpus", "3", "--gpu-memory", "48")
    hardware = yaml.safe_load(given.out)["hardware"]
    assert (hardware["num_gpus"], hardware["memory_gb"]) == (3, 48.0)
    assert re.fullmatch(r"note: engine: vLLM .*\n", given.err)
    refused = rlforge("train", *quick_start, "eval.opponents=[random_legal]")
    assert refused.code == 2
    assert "wants a GPU and this machine shows none" in refused.err


def test_doctor_shows_what_a_run_takes_on_disk_and_the_keys_that_limit_it(rlforge, tmp_path):
    folder = Path("measured")
    (folder / "checkpoints" / "step-1").mkdir(parents=True)
    (folder / "config.yaml").write_text("x" * 10)
    (folder / "checkpoints" / "step-1" / "weights").write_bytes(bytes(3000))
    (folder / "checkpoints" / "step-1" / "config").write_bytes(bytes(2))
    (folder / "checkpoints" / "latest").symlink_to("step-1")
    (folder / "store").mkdir()
    said = rlforge("doctor", "--run", folder, "--json", "sizes.json").out
    found = json.loads(Path("sizes.json").read_text())
    limits = ["learner.keep_checkpoints"]
    assert found["parts"] == [
        {"name": "checkpoints", "size": 3002, "files": 2, "limits": limits},
        {"name": "config.yaml", "size": 10, "files": 1, "limits": []},
        {"name": "store", "size": 0, "files": 0, "limits": ["store.keep_windows"]},
    ]
    assert "measured: 2.9 KiB; " in said
    assert (found["free"] > 0, found["a_day"]) == (True, None)
    (folder / "summary.json").write_text('{"wall_time_s": 3600.0}')
    said = rlforge("doctor", "--run", folder, "--json", "sizes.json").out
    size = sum(part["size"] for part in json.loads(Path("sizes.json").read_text())["parts"])
    assert json.loads(Path("sizes.json").read_text())["a_day"] == 24 * size
    assert " a day at its pace so far; " in said


@pytest.mark.parametrize("columns", [80, 120])
def test_doctor_says_what_fits_and_what_buys_memory(rlforge, monkeypatch, tmp_path, columns):
    monkeypatch.setenv("OPENROUTER_API_KEY", "a key")
    monkeypatch.setenv("COLUMNS", str(columns))
    quick_start = "+experiment=qwen3_1p7b_simpletak_tuned"
    fits = rlforge("doctor", quick_start, "hardware=gpu_1", "--gpu-memory", "80", "--json", "a")
    assert fits.code == 0
    assert "AdamW states" in fits.out
    assert "learner.gradient_checkpointing=true" in fits.out
    assert max(map(len, fits.out.splitlines())) <= columns
    assert json.loads((tmp_path / "a").read_text())["memory"]["excess"] == 0

    unfit = rlforge("doctor", quick_start, "--gpu-memory", "12")
    assert unfit.code == 1
    assert "does not fit, " in unfit.out
    assert "fits with: learner.gradient_checkpointing=true" in unfit.out
    assert max(map(len, unfit.out.splitlines())) <= columns


def test_doctor_asks_for_keys_of_this_machine_only(rlforge, monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    quick_start = "+experiment=qwen3_1p7b_simpletak"
    plain = ["model.prompt_template=default", "model.action_extraction=boxed"]
    here = rlforge("doctor", quick_start, *plain, "hardware=cpu")
    assert (here.code, "OPENROUTER_API_KEY" in here.out) == (2, True)
    elsewhere = rlforge("doctor", quick_start, "hardware=gpu_1", "--gpu-memory", "80")
    assert "problem" not in elsewhere.out
    said = " ".join(elsewhere.out.split())
    for part in ("template unstable:qwen3-zs", "extraction unstable:default"):
        assert f"the {part} is part of unstable-rl, which is not installed" in said.replace(
            "note configuration ", ""
        )
    assert "up to 384 games in progress" in " ".join(elsewhere.out.split())


def test_models_lists_every_option_and_which_exist_here(rlforge, monkeypatch, tmp_path):
    from rlforge.models.tiny.recipe import TINY

    monkeypatch.setenv("RLFORGE_CACHE", "cache")
    before = rlforge("models").out
    for option in ("hf", "qwen3_1p7b_base", "smollm2_135m", "tiny", "tiny_market", "tiny_social"):
        assert re.search(rf"^{option} +\w", before, re.MULTILINE)
    assert before.count("made on first use") == 4
    (tmp_path / "cache" / "tiny-of-an-older-recipe").mkdir(parents=True)
    assert rlforge("models").out == before
    (tmp_path / "cache" / f"tiny-{TINY.digest()}").mkdir()
    assert f"ready: cache/tiny-{TINY.digest()}" in rlforge("models").out


def test_eval_prints_a_table_and_writes_json(rlforge, run_dir, tmp_path):
    file = tmp_path / "results.json"
    answer = rlforge(
        *("eval", run_dir, "--checkpoint", "step-0", "--games", 4, "--json", file),
        *("--opponent", "random_legal", "--opponent", "minimax"),
    )
    assert answer.code == 0
    assert answer.err.splitlines()[0] == "step-0 plays 8 games"
    rows = json.loads(file.read_text())
    assert [row["opponent"] for row in rows] == ["random_legal", "minimax"]
    assert list(rows[0]) == [field.name for field in dataclasses.fields(EvalResult)]
    head, *lines = answer.out.splitlines()
    assert head.split() == ["environment", "opponent", "games", "win", "95%", "CI", "draw", "loss"]
    for line, row in zip(lines, rows, strict=True):
        cells = line.split()
        assert cells[:3] == [row["env_id"], row["opponent"], "4"]
        assert cells[3] == f"{100 * row['win_rate']:.1f}%"
        assert cells[6] == f"{25 * row['losses']:.1f}%"
        assert len(line.rstrip()) <= 80


def test_eval_fails_when_no_game_against_an_opponent_finished(rlforge, run_dir):
    edit_config(run_dir, "openai_base_url: null", "openai_base_url: http://127.0.0.1:9")
    answer = rlforge(
        *("eval", run_dir, "--checkpoint", "step-0", "--games", 2),
        *("--opponent", "openai:absent", "--opponent", "random_legal"),
    )
    assert answer.code == 1
    assert re.search(r"openai:absent +0 +– ", answer.out)
    assert re.search(r"random_legal +2 ", answer.out)
    assert "2 of 2 games in TicTacToe-v0-train against openai:absent failed" in answer.err


# ---------------------------------------------------------------- wrong input


def test_an_initial_adapter_of_another_kind_starts_nothing(rlforge, tmp_path, small_model):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8}')
    model = ("model=hf", f"model.name={small_model}", "model.prompt_template=board")
    answer = rlforge(
        "train", "+experiment=tictactoe_mirror", *model, "learner.initial_adapter=adapter"
    )
    assert answer.code == 2
    assert "initial_adapter=adapter: the adapter does not fit the configuration" in answer.err
    assert "model.lora.rank 4" in answer.err
    assert answer.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


@pytest.mark.parametrize("key", ["pool.fixed_opponents", "eval.opponents"])
def test_an_opponent_that_cannot_be_played_starts_nothing(rlforge, tmp_path, small_model, key):
    import torch

    from rlforge.learner.weights import attach_lora
    from rlforge.models.load import load_base_model

    adapter = tmp_path / "adapter"
    model = load_base_model(ModelConfig("hf", str(small_model)), torch.device("cpu"), torch.float32)
    attach_lora(model, LoraConfig(rank=2, target_modules=["q_proj"]), 0).save_pretrained(adapter)
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    answer = rlforge(
        *("train", "+experiment=tictactoe_mirror", "model=hf", f"model.name={small_model}"),
        *("model.prompt_template=board", f"{key}=['checkpoint:{adapter}']"),
    )
    assert answer.code == 2
    assert f"{key}: 'checkpoint:{adapter}' cannot be played: {weights} is damaged" in answer.err
    assert "name a version saved over this model" in answer.err
    assert answer.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


@pytest.mark.parametrize(
    ("command", "start"),
    [
        ("runs", "runs/ holds no runs yet; start one: rlforge train simpletak_mirror"),
        ("deployments", "deployments/ holds no deployments yet; start a service: rlforge serve"),
    ],
)
def test_a_list_of_nothing_says_how_to_start(rlforge, command, start):
    answer = rlforge(command, "--json", "all.json")
    assert (answer.code, answer.err, answer.out.count("\n")) == (0, "", 1)
    assert answer.out.startswith(start)
    assert json.loads(Path("all.json").read_text()) == []


def test_a_damaged_checkpoint_names_its_file(rlforge, run_dir):
    (run_dir / "checkpoints" / "step-5" / "adapter_model.safetensors").write_bytes(bytes(10))
    answer = rlforge("eval", run_dir)
    assert answer.code == 1
    assert "adapter_model.safetensors is truncated, 10 of" in answer.err


def test_resume_checks_the_state_before_it_starts(rlforge, run_dir):
    assert "already finished its 5 updates" in rlforge("train", "--resume", run_dir).err
    config, version = run_dir / "config.yaml", run_dir / "checkpoints" / "step-5"
    state = version / "state" / "run.json"
    state.write_bytes(bytes(state.stat().st_size))
    text = config.read_text()
    assert rlforge("train", "--resume", run_dir, "--more", "3").code == 1
    assert config.read_text() == text
    edit_config(run_dir, "total_updates: 5", "total_updates: 7")
    answer = rlforge("train", "--resume", run_dir)
    assert answer.code == 1
    assert "state/run.json was altered" in answer.err
    assert f"move {version} out of its folder and resume again: the run goes on" in answer.err


@pytest.mark.parametrize(
    "command",
    [
        ("train", "--resume", "RUN"),
        ("train", "--resume", "RUN", "--more", "2"),
        ("eval", "RUN", "--games", "2", "--opponent", "random_legal"),
        ("export", "RUN", "out", "--merge"),
        ("verify", "RUN"),
        ("batches", "RUN"),
        ("serve", "RUN"),
        ("play", "--run", "RUN"),
        ("ladder", "RUN"),
        ("exploit", "RUN"),
        ("sft", "data.run=RUN"),
    ],
    ids=lambda command: command[0],
)
def test_a_cut_configuration_is_refused_by_what_plays_or_learns(rlforge, run_dir, command):
    config = run_dir / "config.yaml"
    config.write_text("".join(config.read_text().splitlines(keepends=True)[:34]))
    answer = rlforge(*(word.replace("RUN", str(run_dir)) for word in command))
    # data.run is a key, whose value is refused before the start.
    assert answer.code == (2 if command[0] == "sft" else 1), answer.err
    assert "config.yaml: is cut short or was changed" in answer.err
    assert len(answer.err.splitlines()) == 1


def test_a_cut_configuration_is_named_by_what_shows_runs(rlforge, run_dir):
    config = run_dir / "config.yaml"
    config.write_text(config.read_text()[:2000])
    assert "damaged" in rlforge("runs", run_dir.parent).out
    assert rlforge("report", run_dir).code == 0
    assert "is cut short or was changed" in (run_dir / "report.html").read_text()


def test_damaged_files_of_a_run_are_named(rlforge, run_dir):
    (run_dir / "progress.json").write_text('{"run_na')
    answer = rlforge("monitor", run_dir, "--once")
    assert (answer.code, f"{run_dir}/progress.json is damaged" in answer.err) == (1, True)
    (run_dir / "config.yaml").write_text("learner: {rate: 3}\n")
    answer = rlforge("eval", run_dir)
    assert (answer.code, f"{run_dir}/config.yaml" in answer.err) == (2, True)
    config = run_dir / "config.yaml"
    config.unlink()
    config.mkdir()
    answer = rlforge("eval", run_dir)
    said = f"rlforge: {config}: is a folder; restore the file from a copy of the run\n"
    assert (answer.code, answer.err) == (1, said)


@pytest.mark.parametrize("said", [(), ("at once; step-2 is saved",)])
def test_ctrl_c_is_no_stack_trace_and_says_what_the_run_saved(rlforge, monkeypatch, said):
    def interrupted(*_, **__):
        raise KeyboardInterrupt(*said)

    monkeypatch.setattr("rlforge.launch.composed", interrupted)
    answer = rlforge("config")
    assert (answer.code, answer.err) == (130, " ".join(("rlforge: interrupted", *said)) + "\n")


LOOK = """
sys.argv = ["rlforge", "graph", "+experiment=simpletak_mirror"]
try:
    rlforge.cli.main()
except SystemExit as ending:
    assert ending.code == 0
"""
STATISTICS = {"sklearn", "scipy", "pandas"}  # TextArena imports them by way of NLTK


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import rlforge.cli, rlforge.launch", set()),
        ("import rlforge.cli\n" + LOOK, STATISTICS),
        ("import rlforge.run.controller", {"ray"}),
    ],
    ids=["to import the command line", "to look at an experiment", "to start the actors"],
)
def test_heavy_libraries_are_imported_only_where_needed(code, allowed):
    heavy = {"torch", "ray", "transformers", "peft", "duckdb", *STATISTICS}
    report = f"sys.exit(repr(sorted({heavy - allowed} & set(sys.modules))))"
    command = [sys.executable, "-c", f"import sys\n{code}\n{report}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "[]"


def test_plugins_lists_every_kind_and_what_can_be_chosen(rlforge, tmp_path):
    file = tmp_path / "plugins.json"
    out = rlforge("plugins", "--json", str(file)).out
    assert "pool.mode" in out
    rows = json.loads(file.read_text())
    kinds = (*KINDS, COMMANDS, OBSERVERS, SIGNALS)
    assert {row["kind"] for row in rows} == {kind.name for kind in kinds if kind.names()}
    assert all(kind.key.split(", ")[0] in out for kind in KINDS)
    (mirror,) = (row for row in rows if row["name"] == "mirror")
    assert (mirror["target"], mirror["origin"]) == ("rlforge.league.modes:mirror", "rlforge")


def test_a_package_brings_commands_and_a_broken_one_harms_no_other(tmp_path):
    (tmp_path / "of_package.py").write_text("def hello(name: str): print(f'hello {name}')\n")
    about = tmp_path / "of_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: of-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[rlforge.commands]\nhello = of_package:hello\nlost = of_package:lost\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])

    def rlforge(*words):
        command = [sys.executable, "-m", "rlforge", *words]
        return subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
        )

    assert rlforge("hello", "you").stdout == "hello you\n"
    assert rlforge("lost").returncode == 2
    offered = rlforge("plugins")
    assert offered.returncode == 1
    assert "of_package.py has no lost" in " ".join(offered.stdout.split())
