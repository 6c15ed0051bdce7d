"""Extensions of an installed package, used by runs in an environment of its own.

The package is ``examples/plugins``. Each run uses some extensions by their short names and some as
``package.module:Thing``.
"""

import csv
import importlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from tests import factories
from tests.harness.live_run import RUN, actor_pids, change_config, rows, train_arguments
from tests.plugins.conftest import PACKAGE

from rlforge.config.plugins import KINDS
from rlforge.config.schema import RunConfig
from rlforge.record.judge import Judge

GAMES = (
    *("name=nim", "env.train=[{id: nim-short, source: nim, max_turns: 20}]"),
    "env.eval=[{id: nim-long, source: 'example_plugins.games:Nim', max_turns: 40}]",
    *("model.kind=random_llama", "model.prompt_template=example_plugins.prompts:SHORT"),
    *("model.action_extraction=first_number", "model.dtype=float32", "model.lora.rank=4"),
    *("pool.mode=example_plugins.modes:strongest", "pool.fixed_opponents=[greedy]"),
    *("algorithm=batch_mean", "algorithm.clip=0.4", "rewards.sampling=[{name: squash}]"),
    "rewards.final=[{name: 'example_plugins.rewards:Centre', share: 0.5}]",
    "rewards.step=[{name: turn_cost, cost: 0.02}]",
    "buffer.save_batches_as=[parquet, csv]",
    "tracker.sinks=[{name: csv, file: numbers.csv}]",
    *("engine.max_tokens=24", "engine.max_model_len=256", "collector=tiny"),
    *("collector.num_train_workers=8", "learner.total_updates=2", "learner.batch_size=16"),
    *("eval.opponents=['example_plugins.players:Greedy']", "eval.games=4", "eval.final_games=4"),
    *("hardware=cpu", "tracker.progress=plain", f"run_dir={RUN}"),
)


@pytest.mark.ray
def test_the_package_offers_each_kind_of_extension(with_examples):
    with_examples.run("plugins", "--json", "plugins.json")
    offered = json.loads(Path("plugins.json").read_text())
    added = [row for row in offered if row["origin"] != "rlforge"]
    kinds = {*(kind.name for kind in KINDS), "commands", "observers", "signals"} - {"engines"}
    assert sorted(row["kind"] for row in added) == sorted([*kinds, "sinks", "sinks", "signals"])
    assert {row["origin"] for row in added} == {"rlforge-example-plugins 1.0"}
    assert not any(row["problem"] for row in added)


def test_an_observer_says_once_that_a_mark_is_passed(monkeypatch):
    monkeypatch.syspath_prepend(PACKAGE / "src")
    observers, said = importlib.import_module("example_plugins.observers"), list[str]()
    context = SimpleNamespace(note=said.append)
    first = observers.Milestones(context)
    for step, wins in ((1, 80), (2, 91), (3, 95)):
        first.evaluated(factories.evaluation(step, wins))
    assert said == ["step-2 wins 91% against random_legal"]
    resumed = observers.Milestones(context)
    resumed.load_state_dict(first.state_dict())
    resumed.evaluated(factories.evaluation(4, 99))
    assert len(said) == 1


def test_its_signals_are_judged_beside_those_of_rlforge(monkeypatch):
    monkeypatch.syspath_prepend(PACKAGE / "src")
    own = {"example_plugins.signals:DRAWS": 0.5, "example_plugins.signals:LONG_ANSWERS": 100}
    judge = Judge(RunConfig(signals=own))
    games = {"draw_rate": 0.6, "completion_length": 300.0}
    figures = {f"collection-TicTacToe-v0-train/{name}": x for name, x in games.items()}
    found = judge.add({"step": 1, "games": 100, **figures})
    assert [one.text for one in found] == [
        "60% of the games of TicTacToe-v0-train are drawn",
        "answers in TicTacToe-v0-train have 300 tokens",
    ]


def test_the_package_has_only_short_pieces():
    """It is documentation: each file of one or two things has at most 60 lines, or 90 of sinks."""
    lines = {file: len(file.read_text().splitlines()) for file in (PACKAGE / "src").rglob("*.py")}
    kind = lines.pop(PACKAGE / "src" / "example_plugins" / "tournament.py")
    assert 60 < kind <= 120
    most = max(n for file, n in lines.items() if file.parent.name == "example_plugins")
    assert 0 < most <= 60
    assert max(lines.values()) <= 90


def test_a_kind_of_run_is_checked_started_recorded_and_not_resumed_as_another(
    monkeypatch, in_process, small_model, capsys
):
    monkeypatch.syspath_prepend(PACKAGE / "src")
    model = ("model=hf", f"model.name={small_model}", "model.prompt_template=board")
    line = ["train", "kind=example_plugins.tournament:TOURNAMENT", "env=tictactoe", *model]
    line += ["engine.max_tokens=16", "hardware=cpu", "tournament.games=4", f"run_dir={RUN}"]
    assert in_process.rlforge_here(*line, "tournament.player=minimx") == 2
    assert "tournament.player=minimx (command line" in capsys.readouterr().err
    assert not RUN.exists()
    assert in_process.rlforge_here("doctor", *line[1:]) == 0
    assert "at the fullest" not in capsys.readouterr().out  # no process of it holds the model
    assert in_process.rlforge_here(*line) == 0
    (ending,) = (one for one in capsys.readouterr().err.splitlines() if "] done" in one)
    assert ending.endswith("] done")
    (result,) = rows("evals.jsonl")
    assert (result["policy_uid"], result["opponent"], result["games"]) == (
        "minimax",
        "random_legal",
        4,
    )
    assert result["losses"] == 0
    assert json.loads((RUN / "plan.json").read_text())["nodes"][0]["name"] == "tracker"
    assert (RUN / "report.html").is_file()
    assert in_process.rlforge_here("continuous", "--resume", str(RUN)) == 2
    assert "is a tournament; this command is for a continuous run" in capsys.readouterr().err
    assert in_process.rlforge_here("train", "--resume", str(RUN)) == 1
    assert "run: already finished; start a new run" in capsys.readouterr().err
    assert len(rows("evals.jsonl")) == 1


@pytest.mark.ray
def test_a_run_trains_with_all_of_them_and_is_resumed(with_examples):
    with_examples.run("train", *GAMES)
    assert [row["step"] for row in rows("metrics.jsonl")] == [1, 2]
    change_config("total_updates", 2, 3)
    with_examples.run("train", "--resume", RUN, actors_in_process=True)
    metrics = rows("metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3]
    assert all("clipped_advantages" in row for row in metrics)  # a metric of batch_mean alone
    for row in metrics:  # notes of turn_cost
        with (RUN / "batches" / f"batch-{row['step']:06d}.csv").open(newline="") as file:
            left = [json.loads(step["info"])["turns_left"] for step in csv.DictReader(file)]
        assert row["info/turns_left"] == pytest.approx(sum(left) / len(left))
    with (RUN / "numbers.csv").open(newline="") as file:
        assert {int(step) for step, _, _ in csv.reader(file)} >= {2, 3}
    evals, greedy = rows("evals.jsonl"), "example_plugins.players:Greedy"
    assert {row["env_id"] for row in evals} == {"nim-long"}
    # The model knows no move: no batch has a signal, no update makes a version to be evaluated.
    assert {row["skipped_no_signal"] for row in metrics} == {1.0}
    assert {row["step"] for row in evals if row["opponent"] == greedy} == {0}
    assert "greedy" in rows("ratings.jsonl")[-1]["ratings"]


@pytest.mark.ray
def test_a_continuous_run_scores_with_it(with_examples, small_market):
    scorer = "ruler.scoring_method=by_rank"
    sink = "tracker.sinks=[{name: 'example_plugins.sinks:CsvSink'}]"
    few = ("continuous.windows=1", f"run_dir={RUN}")
    with_examples.run("continuous", *small_market, scorer, sink, *few, actors_in_process=True)
    (scores,) = (RUN / "scores").iterdir()
    assert "of the others" in scores.read_text()
    assert (RUN / "metrics.csv").read_text()


@pytest.mark.ray
def test_wrong_settings_end_a_command_before_it_starts(with_examples):
    other = with_examples.packages / "other_nim-2.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other-nim\nVersion: 2.0\n")
    (other / "entry_points.txt").write_text("[rlforge.players]\ngreedy = other_nim:Greedy\n")
    unusable = (
        "two packages offer it: other-nim 2.0 (other_nim:Greedy) and "
        "rlforge-example-plugins 1.0 (example_plugins.players:Greedy)"
    )
    wrong = {
        "algorithm.clip=0": "algorithm.clip=0 (command line, algorithm.clip=0): must be above 0",
        "algorithm.clp=1": "no such key in BatchMeanConfig; did you mean algorithm.clip",
        "rewards.step=[{name: turn_cost, cost: -1}]": "rewards.step[0].cost: -1 must be 0 or more",
        "rewards.step=[{name: turn_cost, price: 1}]": "turn_cost has no such parameter",
        "pool.fixed_opponents=[greedy]": unusable,
    }
    given = [line for line in GAMES if not line.startswith("pool.fixed_opponents")]
    started = {line: with_examples.start("train", *given, line) for line in wrong}
    try:
        for line, process in started.items():
            _, err = process.communicate(timeout=120)
            assert process.returncode == 2, (line, err)
            assert wrong[line] in " ".join(err.split())
            assert "Traceback" not in err
    finally:
        shutil.rmtree(other)
    assert not RUN.exists()


MINE = """
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import rlforge

with Path({imported!r}).open("a") as file:
    print(os.getpid(), file=file)


def anyone(view):
    rlforge.log_scalar("pool", len(view.everyone))
    return dict.fromkeys(view.everyone, 1.0)


@dataclass
class Half:
    adds_feedback = False

    def __call__(self, trajectory, step_index, base_reward):
        rlforge.log_scalar("buffer/turn", step_index)
        return base_reward / 2


@dataclass
class PlainConfig(rlforge.AlgorithmConfig):
    pass


class Plain(rlforge.Reinforce):
    config_class = PlainConfig

    def targets(self, steps, values):
        rlforge.log_scalar("learner", len(steps))
        return super().targets(steps, values)


def read(answer):
    rlforge.log_scalar("collector", len(answer))
    return answer.strip() or None


BRACKETS = rlforge.Extractor(
    read=read, request="Act.", feedback="No action."
)


@dataclass
class Silent:
    def open(self, run, name): ...
    def write(self, step, scalars): ...
    def rewind(self, step): ...
    def close(self): ...
"""


@pytest.mark.ray
def test_actors_import_a_module_of_the_current_directory_and_record_its_numbers(
    environment, small_model
):
    Path("mine.py").write_text(MINE.format(imported=str(Path("imported").absolute())))
    own = ["pool.mode=mine:anyone", "algorithm=mine:Plain", "rewards.step=[{name: 'mine:Half'}]"]
    own += ["model.action_extraction=mine:BRACKETS", "tracker.sinks=[{name: 'mine:Silent'}]"]
    environment.run(*train_arguments(small_model, *own, "buffer=step", "learner.total_updates=1"))
    imported = set(map(int, Path("imported").read_text().split()))
    shared = (RUN / "logs" / "state.log").exists()  # by cores of the machine
    for process in (*(("state",) if shared else ("pool", "buffer", "tracker")), "collector-0"):
        assert actor_pids(process)[0] in imported
    assert actor_pids("learner")[0] in imported
    assert yaml.safe_load((RUN / "config.yaml").read_text())["pool"]["mode"] == "mine:anyone"
    (row,) = rows("metrics.jsonl")
    assert row["custom/learner"] == row["samples"] == 32
    assert row["custom/pool"] >= 1
    assert row["custom/buffer/turn"] > 0
    assert row["custom/collector"] > 0
    reported = {key for key in row if key.startswith("custom/")}
    assert reported <= {key for line in rows("scalars.jsonl") for key in line}
