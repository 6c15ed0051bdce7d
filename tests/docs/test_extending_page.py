"""Files on the page on extensions and in the README work as they stand, with their YAML."""

import asyncio
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import factories

import rlforge
from rlforge.config.games import RewardsConfig
from rlforge.config.names import Kind
from rlforge.config.plugins import KINDS
from rlforge.record.files import RunPaths
from rlforge.rewards import RewardPipeline

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
README = (ROOT / "README.md").read_text().partition("## Make it yours")[2]
SECTIONS = re.findall(r"```python\n# (\w+)\.py\n(.*?)```\n\n```yaml\n(.*?)```", PAGE, re.DOTALL)
OF_KIND = {kind.name: kind for kind in KINDS}


def sample(reward: float) -> rlforge.Sample:
    return factories.sample(raw_reward=reward, reward=reward)


def write_metrics(sink_class: Any) -> None:
    sink = sink_class(file="loss.log")
    sink.open(RunPaths(root=Path.cwd()), "name")
    sink.write(1, {"learner/loss": 0.5})
    sink.rewind(1)
    sink.close()
    assert Path("loss.log").read_text() == "1 0.5\nresumed at 1\n"


def score_a_window(scorer_class: Any) -> None:
    given = [factories.decision(i, reward=reward) for i, reward in enumerate((0.5, -0.5, None))]
    scorer = scorer_class(None, 0, None)
    assert asyncio.run(scorer.score(given)).values == (1.0, 0.0, None)
    assert scorer.learn([]) == {}


class Adds:
    """A session whose model calls the tool ``add``, and then repeats its result."""

    number, seed = 2, 4040

    async def chat(self, messages: Any, tools: Any = None) -> rlforge.Answer:
        if tools is None:
            return rlforge.Answer(text=f"It is {messages[-1]['content']}.")
        function = {"name": tools[0]["function"]["name"], "arguments": {"a": 2, "b": 40}}
        return rlforge.Answer(text="…", tool_calls=({"type": "function", "function": function},))


def play_episode(play: Any) -> None:
    assert asyncio.run(play(Adds())) == 1.0


def hide_addresses(redact: Any) -> None:
    asked = [{"role": "user", "content": "write to ann@example.org now"}]
    assert redact(asked, "I did")[0]["content"] == "write to [address] now"
    assert redact("from bob@example.org", "yes") == "from [address]"
    assert redact(asked, "done: ann@example.org") is None


def make_model(made: rlforge.MadeModel) -> None:
    assert (made.make(print) / "config.json").is_file()
    assert (made.folder / "tokenizer_config.json").is_file()


def compare_advantages(algorithm: Any) -> None:
    config = algorithm.config_class(name="reinforce", clip=0.25)
    targets = algorithm(config, 8).targets([sample(1.0), sample(0.0), sample(0.5)], None)
    assert targets.advantages == (0.25, -0.25, 0.0)


#: What a configuration's checks leave untried.
EXERCISES: dict[str, Callable[[Any], None]] = {
    "algorithms": compare_advantages,
    "final_rewards": lambda made: assert_equal(
        made(0.5)({0: 1.0, 1: 0.0}, "e"), {0: 0.75, 1: -0.25}
    ),
    "step_rewards": lambda made: assert_equal(made(0.25)(None, 0, 1.0), 0.75),
    "sampling_rewards": lambda made: assert_equal(made(0.5)([sample(1.0)])[0].reward, 0.5),
    "extractions": lambda made: assert_equal((made.read("I play 4!"), made.read("4")), ("4", None)),
    "sinks": write_metrics,
    "scorers": score_a_window,
    "episodes": play_episode,
    "redactions": hide_addresses,
    "models": make_model,
}


def assert_equal(one: object, other: object) -> None:
    assert one == other


def kind_of(name: str) -> Kind:
    """The kind of the section with the file ``name``: sections are in the order of the table."""
    order = re.findall(r"^\| \[(\w+)\]\(#", PAGE, re.MULTILINE)
    return OF_KIND[order[[module for module, _, _ in SECTIONS].index(name)]]


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch, small_model: Path, tmp_path: Path) -> None:
    """The files of the page in the current directory, with the model that one of them copies."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("RLFORGE_CACHE", str(tmp_path / "cache"))
    shutil.copytree(small_model, "my-model")
    for module, source, _ in SECTIONS:
        Path(f"{module}.py").write_text(source)


def test_every_kind_that_a_package_can_add_has_a_section():
    assert {kind_of(module).name for module, _, _ in SECTIONS} == OF_KIND.keys() - {
        "engines",
        "run_kinds",
    }
    headings = {
        re.sub(r"[^a-z ]", "", line.lower()).strip().replace(" ", "-")
        for line in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= headings


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("module", "source", "chosen"), SECTIONS, ids=[one[0] for one in SECTIONS])
def test_the_file_and_the_yaml_of_a_section_work(module, source, chosen):
    kind = kind_of(module)
    assert len(source.splitlines()) <= (40 if kind.name == "sources" else 20)
    (name,) = re.findall(rf'"({module}:\w+)"', chosen)
    assert kind.problem(name) is None
    experiment = Path("mine", "experiment", "of_mine.yaml")
    experiment.parent.mkdir(parents=True)
    experiment.write_text(f"# @package _global_\n{chosen}")
    config = rlforge.compose("of_mine", config_dir="mine")
    assert name in repr(config)
    EXERCISES.get(kind.name, lambda thing: None)(kind.find(name))


def block(language: str) -> str:
    """The README's block in ``language``."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return str(found)


def test_the_files_of_the_readmes_environment_make_an_experiment():
    for path, content in re.findall(r"# (mine/\S+)\n(.*?)(?=# mine/|\Z)", block("yaml"), re.DOTALL):
        Path(path).parent.mkdir(parents=True)
        Path(path).write_text(content)
    config = rlforge.compose("two_games", config_dir="mine")
    assert [env.id for env in config.env.train] == ["kuhn_poker", "tic_tac_toe"]


def test_the_readmes_command_takes_the_readmes_file():
    Path("mine.py").write_text(block("python"))
    program, command, experiment, *overrides = shlex.split(block("bash").replace("\\\n", ""))
    assert (program, command) == ("rlforge", "train")
    config = rlforge.compose(experiment.partition("=")[2], *overrides)
    assert (config.pool.mode, config.algorithm.clip) == ("mine:strongest", 2.0)


def test_the_curiosity_of_the_page_is_noted_and_paid():
    (source,) = re.findall(r"```python\n(from collections import Counter\n.*?)```", PAGE, re.DOTALL)
    Path("my_notes.py").write_text(source)
    pipeline = RewardPipeline(RewardsConfig(step=[{"name": "my_notes:Curiosity", "weight": 0.5}]))
    spec = factories.game_spec(env=rlforge.EnvSpec(id="e", num_players=1))
    turns = [factories.turn(0, action) for action in "aaaab"]
    (episode,) = pipeline.shape(factories.game_record(spec, turns, {0: 1.0}))
    noted = [sample.info["curiosity"] for sample in episode]
    assert noted == [1.0, 2**-0.5, 3**-0.5, 0.5, 1.0]
    assert [sample.reward for sample in episode] == [1.0 + 0.5 * number for number in noted]
