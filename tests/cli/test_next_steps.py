"""Every command that a finished run recommends works as it is printed."""

import builtins
import shlex
import shutil
import signal
from pathlib import Path

import pytest
from tests.harness.in_process import rlforge_here, use_actors_in_process
from tests.harness.live_run import start, wait_for

from rlforge import load_run
from rlforge.cli.runs import next_steps
from rlforge.config.compose import to_yaml
from rlforge.config.roots import compose_run
from rlforge.config.sft import SftConfig
from rlforge.models.made import MadeModel

#: A name that a shell would take apart.
RUN = Path("runs/my game/one")


#: As the tiny model is: nothing but its cache has its weights, and adapters name that folder.
MADE = MadeModel(cache_name="small", create=lambda folder, progress: None, reads="games")


def words_of(command):
    rlforge, *words = shlex.split(command)
    assert rlforge == "rlforge"
    return words


@pytest.fixture
def made_run(golden_run, small_model, monkeypatch, tmp_path):
    """A finished run of a model that is made on this machine."""
    monkeypatch.setenv("RLFORGE_CACHE", str(tmp_path / "models"))
    shutil.copytree(small_model, MADE.folder)
    shutil.copytree(golden_run, RUN)
    config = RUN / "config.yaml"
    text = config.read_text().partition("\n")[2].replace(f"name: {small_model}", "name: null")
    config.write_text(text.replace("kind: hf", f"kind: {__name__}:MADE"))
    return load_run(RUN)


def test_what_a_run_of_games_recommends_works(made_run, monkeypatch, capsys):
    play, export = map(words_of, next_steps(made_run))
    typed = iter(["[4]", "quit"])
    monkeypatch.setattr(builtins, "input", lambda prompt="": next(typed))
    assert rlforge_here(*play) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "you left the game"
    assert rlforge_here(*export) == 0
    assert Path("my-model/model.safetensors").is_file()


def test_what_a_supervised_run_recommends_trains_on_from_it(small_model, monkeypatch, capsys):
    use_actors_in_process(monkeypatch.setattr)
    model = ["model=hf", f"model.name={small_model}", "model.prompt_template=board"]
    model += ["model.action_extraction=bracket", "hardware=cpu"]
    own = ["data=random_legal", "data.games=20", "data.epochs=0.5", "learner.batch_size=32"]
    assert rlforge_here("sft", "tictactoe_mirror", *model, *own, f"run_dir={RUN}") == 0
    (printed,) = capsys.readouterr().err.splitlines()[-1:]
    command, *more = next_steps(load_run(RUN))
    assert (printed, more) == (f"next: {command}", [])
    few = ["learner.total_updates=1", "learner.batch_size=8", "eval.final_games=2", "run_dir=next"]
    assert rlforge_here(*words_of(command), *few) == 0
    trained = load_run("next").config
    assert (trained.name, trained.model.name) == ("tictactoe_mirror", str(small_model))
    assert Path(trained.learner.initial_adapter or "") == RUN


@pytest.mark.slow
def test_what_a_continuous_run_recommends_works(small_market, monkeypatch, capsys):
    use_actors_in_process(monkeypatch.setattr)
    few = ["continuous.windows=1", "continuous.compare_episodes=0", f"run_dir='{RUN}'"]
    assert rlforge_here("continuous", *small_market, *few) == 0
    serve, windows = map(words_of, next_steps(load_run(RUN)))
    assert rlforge_here(*windows) == 0
    assert "2024-11-13-10:00" in capsys.readouterr().out
    process = start(*serve, "serve.port=0")
    wait_for((RUN / "deployments" / "service.json").is_file, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode in (0, 130)


@pytest.mark.parametrize(
    ("command", "recommended"),
    [
        (
            "rlforge sft smollm2_market data=value_trader data.epochs=1 seed=3",
            "rlforge continuous +experiment=smollm2_market learner.initial_adapter=run",
        ),
        (
            "rlforge sft model=tiny env=tictactoe 'data.players=[random_legal]' --config-dir mine",
            "rlforge train model=tiny env=tictactoe learner.initial_adapter=run --config-dir mine",
        ),
        (
            "rlforge sft tictactoe_mirror data=random_legal learner.train=full",
            "rlforge export run my-model --merge",
        ),
    ],
)
def test_a_supervised_run_recommends_what_it_shares_with_training(command, recommended):
    Path("mine").mkdir()
    Path("run").mkdir()
    words = [word for word in words_of(command)[1:] if word not in ("--config-dir", "mine")]
    Path("run/config.yaml").write_text(to_yaml(compose_run(words, None, SftConfig).config))
    Path("run/command.txt").write_text(f"{command}\nrlforge sft --resume run\n")
    assert next_steps(load_run("run")) == [recommended]
