"""Templates and extractions of other packages are theirs, token by token."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from textarena.agents import basic_agents

from rlforge import launch
from rlforge.config.compose import compose
from rlforge.config.plugins import EXTRACTIONS, PROMPTS
from rlforge.errors import ConfigError
from rlforge.games import originals
from rlforge.games.base import View
from rlforge.games.prompts import Prompter
from rlforge.games.registry import make_game
from rlforge.models.load import load_tokenizer
from rlforge.preflight.games import validate
from rlforge.types import EnvSpec, Form

ANSWERS = [r"\boxed{4}", r"\boxed{[2]} no, \boxed{ [3] }", r"\boxed{}", "I take [5].", r"\boxed{a"]
TEMPLATES = """
OBSERVATION_FORMATTING = {"short": lambda seen: f"<pad>Seen: {seen}<eos>", "long": repr}


def judged(answer):
    found = answer.rpartition("!")[2]
    return (found, {"correct_answer_format": bool(found)})


ACTION_EXTRACTION = {"shouted": judged}
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that cannot be imported as a whole, with a module of templates."""
    folder = tmp_path / "site" / "unstable"
    (folder / "utils").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('it would start an engine')")
    (folder / "utils" / "templates.py").write_text(TEMPLATES)
    monkeypatch.syspath_prepend(str(folder.parent))


def test_only_the_module_with_the_templates_is_imported(package, small_model):
    template = originals.unstable_template("short")
    view = View(player_id=0, observation=" Board\n<eos>", news="Move\n")
    tokenizer = load_tokenizer(compose([f"model.name={small_model}", "model.kind=hf"]).config.model)
    prompt = template.render(template.messages(view, "Answer."), tokenizer)
    assert prompt.text == "<pad>Seen:  Board\n<eos><eos>"
    assert template.reply(view, "Answer.") == "Move\n"
    ids = Prompter(tokenizer).ids(prompt)
    assert ids.count(tokenizer.eos_token_id) == 1  # that of the template
    extractor = originals.unstable_extraction("shouted")
    assert extractor.extract("so! [4]").action == " [4]"
    assert not extractor.extract("so!").well_formed


def test_an_unknown_name_of_a_package_is_refused_with_the_nearest(package):
    with pytest.raises(ConfigError, match=r"no template 'shot'; did you mean short"):
        originals.unstable_template("shot")


@pytest.mark.skipif(importlib.util.find_spec("unstable") is not None, reason="it is installed")
@pytest.mark.parametrize(
    ("override", "project"),
    [
        ("model.prompt_template=unstable:qwen3-zs", "unstable-rl"),
        ("model.action_extraction=unstable:default", "unstable-rl"),
        ("env.train.0.prompt_template=spiral:qwen3", "spiral-rl"),
    ],
)
def test_without_the_package_the_message_says_what_to_install(override, project):
    with pytest.raises(ConfigError, match=rf"{override}.*pip install --no-deps {project}"):
        validate(compose(["env=tictactoe", override]), keys=False)


def installed(requirement, folder):
    """The folder, with a package in it and none of what it needs."""
    asked = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
    done = subprocess.run([*asked, requirement], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{requirement} cannot be installed here: {done.stderr[-200:]}")


@pytest.fixture(params=["unstable-rl==0.1.2", "unstable-rl==0.2.2", "spiral-rl==0.2.0"])
def original(request, tmp_path, monkeypatch):
    """Name, templates and extractions of a package: the functions that it has itself."""
    installed(request.param, tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    for kind in (PROMPTS, EXTRACTIONS):
        monkeypatch.setattr(kind, "_found", {})
    if request.param.startswith("unstable"):
        theirs = executed(tmp_path / "site" / "unstable" / "utils" / "templates.py")
        return "unstable", theirs.OBSERVATION_FORMATTING, theirs.ACTION_EXTRACTION
    theirs = executed(tmp_path / "site" / "spiral" / "core" / "template.py")
    boxed = executed(tmp_path / "site" / "spiral" / "core" / "utils.py").extract_boxed_answer
    return "spiral", theirs.TEMPLATE_FACTORY, {"extract_boxed_answer": boxed}


def executed(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_prompts_and_actions_are_those_of_the_package(original, small_model):
    family, templates, extractions = original
    config = compose([f"model.name={small_model}", "model.kind=hf"]).config
    tokenizer = load_tokenizer(config.model)
    views = [make_game(EnvSpec(id=game), 1).view() for game in ("TicTacToe-v0", "KuhnPoker-v0")]
    assert len(templates) >= 6
    for name, write in templates.items():
        for view in views:
            text, ids = Prompter(tokenizer).encode(
                Form(template=f"{family}:{name}", extraction="raw"), view
            )
            assert text == write(view.observation)
            assert list(ids) == tokenizer.encode(text, add_special_tokens=False)
    for name, read in extractions.items():
        ours = EXTRACTIONS.find(f"{family}:{name}")
        for answer in ANSWERS:
            found = ours.extract(answer, ("north",))
            if family == "unstable":
                action, feedback = read(answer)
                assert (found.action, found.well_formed) == (action, all(feedback.values()))
            else:
                assert found.action == (read(answer) or "")


def test_textarenas_agent_is_asked_by_its_own_words():
    template = PROMPTS.find("textarena:agent")
    agent = basic_agents.OpenRouterAgent.__init__.__defaults__
    messages = template.messages(View(player_id=0, observation="Your card: K {x}"), "A request.")
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[0]["content"] in agent
    assert messages[1]["content"] == "Your card: K {x}"
    with pytest.raises(ConfigError, match="textarena has no template 'agents'; did you mean agent"):
        originals.textarena_template("agents")


@pytest.mark.skipif(importlib.util.find_spec("unstable") is not None, reason="it is installed")
def test_a_run_can_be_looked_at_without_the_package(capsys):
    script = ["qwen3_1p7b_simpletak", "pool=lagged", "hardware=multi_gpu"]
    config, graph = launch.composed(script, None, gpus=3)
    assert config.model.prompt_template == "unstable:qwen3-zs"
    assert {node.name for node in graph.nodes} >= {"learner", "engine"}
    absent = capsys.readouterr().err
    assert "note: the template unstable:qwen3-zs is part of unstable-rl" in absent
    assert "note: the extraction unstable:default is part of unstable-rl" in absent
    with pytest.raises(ConfigError, match="pip install --no-deps unstable-rl"):
        launch.check(compose(script))
