"""Names and paths of all printable characters, on command lines that are typed and printed."""

import ast
import re
import shlex
import string
from pathlib import Path

import pytest
import typer.main
from hydra.core.hydra_config import HydraConfig
from hypothesis import example, given, settings
from hypothesis import strategies as st

import rlforge
from rlforge import launch, sweeps
from rlforge.cli import app
from rlforge.config.compose import compose
from rlforge.config.overrides import assignment, in_grammar, override_problems, parse_overrides
from rlforge.config.roots import compose_any
from rlforge.config.schema import RunConfig
from rlforge.errors import ConfigError, command_line
from rlforge.kinds import kind_of

SOURCE = Path(rlforge.__file__).parent
SIGNS = "a" + string.punctuation.replace("/", "").replace("\\", "") + " läuft 日本 ${seed} 'b'"
"""A name of a folder with every sign that a shell or Hydra could take for its own."""

printable = st.characters(exclude_categories=["C", "Zl", "Zp"])
names = st.text(printable.filter(lambda sign: sign not in "/\\"), min_size=1, max_size=20).filter(
    lambda name: name.strip() == name and name not in (".", "..")
)
paths = st.lists(st.text(printable.filter(lambda sign: sign != "/"), min_size=1, max_size=12)).map(
    lambda parts: Path("runs", *parts)
)


@settings(max_examples=6, deadline=None)
@given(name=names)
@example(name=SIGNS)
def test_own_files_are_read_from_a_folder_of_any_name(tmp_path_factory, name):
    folder = tmp_path_factory.mktemp("own") / name / "mine"
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment" / "q.yaml").write_text("# @package _global_\nseed: 7\n")
    composed = compose_any(["+experiment=q"], folder)
    assert composed.config.seed == 7
    assert composed.origin("seed") == str(folder / "experiment" / "q.yaml")


@settings(max_examples=6, deadline=None)
@given(name=names, run_dir=paths)
@example(name=SIGNS, run_dir=Path("-runs") / SIGNS)
def test_a_name_and_a_path_are_what_was_quoted(name, run_dir):
    config = compose([f"name={in_grammar(name)}", assignment("run_dir", run_dir)]).config
    assert (config.name, config.run_dir) == (name, str(run_dir))


@settings(max_examples=60, deadline=None)
@given(text=st.text(printable.filter(lambda sign: sign not in "\\$"), max_size=12))
@example(text="ä")
@example(text="a'b")
@example(text=" (1) a=b;c")
@example(text="a, b's")
def test_a_bare_text_is_taken_as_it_is_or_refused_with_one_that_can_be_pasted(text):
    text = f"x{text}y"
    line = f"run_dir={text}"
    if refused := list(override_problems([line], RunConfig)):
        (line,) = shlex.split(refused[0].rpartition("a text as ")[2])
        assert list(override_problems([line], RunConfig)) == []
    (override,) = parse_overrides([line])
    assert override.value() == text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sääd=1", "keys are of letters a to z, digits, _ and dots; did you mean seed?"),
        (" ", "cannot read override ' ': write key=value, for example seed=1"),
        ("seed =1", "write it without spaces, seed=1"),
        ("run_dir='a", """quotes of its own, 'run_dir="'"'"'a"'"""),
    ],
)
def test_a_line_that_is_none_is_refused_with_a_mend(line, said):
    with pytest.raises(ConfigError) as refused:
        compose([line])
    assert said in str(refused.value)


@given(words=st.lists(st.text(printable)), path=paths)
def test_a_printed_command_gives_back_its_words(words, path):
    assert shlex.split(command_line("train", *words, path)) == [
        "rlforge",
        "train",
        *words,
        str(path),
    ]


def test_a_path_that_begins_like_an_option_is_none():
    assert shlex.split(command_line("report", Path("-x"))) == ["rlforge", "report", "./-x"]


@pytest.mark.parametrize("kind", ["kind=games", "kind=continuous"])
def test_next_steps_name_the_run_in_one_word(kind):
    run_dir, config = Path("runs") / SIGNS, compose_any([kind]).config
    for step in kind_of(config).next_steps(config, run_dir):
        assert str(run_dir) in shlex.split(step)


def test_a_folder_that_holds_a_run_is_refused_with_the_command_that_resumes_it(tmp_path):
    folder = tmp_path / SIGNS
    folder.mkdir()
    (folder / "config.yaml").touch()
    with pytest.raises(ConfigError) as refused:
        launch.new_run_dir(RunConfig(run_dir=str(folder)))
    command = str(refused.value).rpartition("name another, or ")[2]
    assert shlex.split(command) == ["rlforge", "train", "--resume", str(folder)]


def test_a_sweep_of_any_name_in_any_folder_makes_its_jobs_below_its_own(monkeypatch, tmp_path):
    here, jobs = tmp_path / SIGNS, []
    (here / "mine" / "experiment").mkdir(parents=True)
    own = here / "mine" / "experiment" / "q.yaml"
    own.write_text("# @package _global_\ndefaults: [kuhn_grpo]\n")
    monkeypatch.chdir(here)

    def job(config):
        jobs.append((config.name, config.seed, Path(HydraConfig.get().sweep.dir)))
        return 0.0

    monkeypatch.setattr(sweeps, "sweep_job", job)
    lines = ["+experiment=q", "seed=0,1", f"name={in_grammar(SIGNS)}"]
    folder = sweeps.sweep(lines, Path("mine"))
    assert folder.parent == Path("runs") / SIGNS
    assert jobs == [(SIGNS, seed, folder) for seed in (0, 1)]


def test_every_printed_command_is_made_in_one_place():
    """Of messages that put a name or a path behind a command: ``command_line`` quotes it."""
    commands = "|".join(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    loose = [
        f"{file.relative_to(SOURCE)}:{node.lineno}"
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr)
        and re.search(rf"\brlforge ({commands}) ([a-z]+ )?(--[a-z-]+ )?\0", _with_gaps(node))
    ]
    assert loose == []


def _with_gaps(text):
    return "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in text.values)


@pytest.fixture
def own_condition(own_folder):
    Path("mine2").mkdir()
    Path("mine2/checks.py").write_text(
        "from rlforge.record.signals import Condition\n"
        "FEW = Condition('few', 0.5, (), lambda seen, threshold: None)\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        "signals={mine2.checks:FEW: 0.1}",
        'signals={"mine2.checks:FEW": 0.1}',
        "signals={turn_limit: 0.9, 'mine2.checks:FEW' :0.1}",
        "signals={mine2.checks\\:FEW: 0.1}",
        "signals.mine2.checks:FEW=0.1",
    ],
)
def test_an_own_condition_has_its_threshold_by_its_name(own_condition, line):
    assert compose([line]).config.signals["mine2.checks:FEW"] == 0.1


@pytest.mark.parametrize("line", ["~signals.mine2.checks:FEW", "signals.mine2.checks:FEW"])
def test_a_line_that_sets_no_threshold_is_answered_with_one_that_is_read(own_condition, line):
    with pytest.raises(ConfigError) as refused:
        compose([line])
    [shown] = shlex.split(str(refused.value).rpartition(", ")[2])
    assert compose([shown]).config.signals == {"mine2.checks:FEW": None}


def test_a_mapping_as_json_has_it_is_read_and_an_unfinished_one_has_no_false_mend():
    (parsed,) = parse_overrides([r'prompts={"terse": {"system": "a \"b\": c, d:e: f"}}'])
    assert parsed.value() == {"terse": {"system": 'a "b": c, d:e: f'}}
    with pytest.raises(ConfigError, match="write a list as"):
        parse_overrides(["signals={turn_limit: 1"])
