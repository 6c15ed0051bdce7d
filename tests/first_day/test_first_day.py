"""The walk of docs/walk.md: each step ends and shows what it should, and what the page records.

What README names runs in the folder of the walk.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.first_day.record import DOCS, PAGE, prepare
from tests.first_day.steps import STEPS
from tests.first_day.walk import COLUMNS, Walk
from tests.harness.in_process import rlforge_here

from rlforge.models.made import TINY

ALL = [one for step in STEPS for one in (step, *step.meanwhile)]
RECORDED = dict(
    re.findall(r"^## (.*?)\n.*?^```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
)
AGAIN = "record the walk again: python -m tests.first_day.record"

release = pytest.mark.release
pytestmark = pytest.mark.timeout(900)  # the first test takes all steps


@pytest.fixture(scope="module")
def day(small_model, tmp_path_factory):
    """The walk once all steps are taken; title -> the screen and its record, of every step."""
    folder, cache = tmp_path_factory.mktemp("day"), tmp_path_factory.mktemp("cache")
    # In place of the tiny model, which takes a minute to make.
    (cache / TINY.cache_name).symlink_to(small_model)
    prepare(folder)
    walk = Walk(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLFORGE_CACHE", str(cache))
        patch.setenv("OPENROUTER_API_KEY", "a key")
        screens = [screen for step in STEPS for screen in walk.take(step)]
        yield walk, {screen.step.title: (screen, walk.recorded(screen)) for screen in screens}


@pytest.fixture
def walked(day):
    """Title -> the screen and its record."""
    return day[1]


@release
@pytest.mark.parametrize("step", ALL, ids=lambda step: step.title)
def test_a_step_shows_what_it_should(step, walked):
    screen, _ = walked[step.title]
    assert screen.code == step.code, screen.text
    for pattern in step.shows:
        assert re.search(pattern, screen.text), f"{pattern} is not on\n{screen.text}"
    assert "Traceback" not in screen.text


@release
@pytest.mark.parametrize("step", ALL, ids=lambda step: step.title)
def test_a_step_shows_what_the_page_records(step, walked):
    _, shown = walked[step.title]
    recorded = RECORDED[step.title]
    assert shown.splitlines()[0].split()[:2] == recorded.splitlines()[0].split()[:2], AGAIN
    assert [one for one in step.shows if not re.search(one, recorded)] == [], AGAIN
    if step.same:
        assert shown.strip() == recorded.strip(), AGAIN


def test_the_page_has_the_steps_in_their_order():
    assert list(RECORDED) == [step.title for step in ALL], AGAIN


@release
def test_what_fits_in_80_columns_is_not_broken(walked):
    for title in ("The commands", "Watch it from another terminal", "Evaluate a version"):
        screen, _ = walked[title]
        assert max(map(len, screen.lines)) <= COLUMNS, screen.text


def test_pictures_are_small_and_load_nothing():
    pictures = sorted((DOCS / "walk").glob("*.svg"))
    assert {step.picture for step in ALL if step.picture} < {path.stem for path in pictures}
    for path in pictures:
        drawn = path.read_text()
        assert len(drawn) < 200_000
        names = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # not loaded
        assert set(re.findall(r"https?://[^\"\s)]+", drawn)) <= names


def test_the_record_names_no_machine():
    everything = PAGE.read_text() + "".join(
        path.read_text() for path in (DOCS / "walk").glob("*.svg")
    )
    assert not re.search(r"(?<![\w~])/(home|root|tmp|work|Users)/", everything)


# ---------------------------------------------------------------- README

README = (DOCS.parent / "README.md").read_text()
COMMANDS = [
    command
    for row in re.findall(r"^\| (`rlforge .*?) \| ", README, re.MULTILINE)
    for command in re.findall(r"`(rlforge [^`]+)`", row)
]
#: What trains takes minutes: it is checked, and not started.
TRAIN = ("rlforge train ", "rlforge sft ", "rlforge continuous ")
#: What the walk does itself, and what needs a continuous run.
ELSEWHERE = {"windows"} | {step.command.split()[1] for step in ALL if " " in step.command}


def run(*command, folder):
    """As a user at a terminal who leaves every game."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {"cwd": folder, "input": "quit\n", "env": os.environ | {"PATH": path}, "timeout": 300}
    return subprocess.run(command, capture_output=True, text=True, **given)


@release
@pytest.mark.parametrize(
    "line",
    [
        one
        for one in COMMANDS
        if "--resume" not in one and (one.startswith(TRAIN) or one.split()[1] not in ELSEWHERE)
    ],
)
def test_a_command_of_the_readme_works(line, day, monkeypatch, capsys):
    walk, _ = day
    monkeypatch.chdir(walk.folder)
    words = shlex.split(line.replace("RUN", walk.found["run"]).replace("GAME", "latest"))
    if line.startswith(TRAIN):
        kind = ["kind=sft"] if words[1] == "sft" else []
        words = ["rlforge", "doctor", *kind, *(word for word in words[2:] if word != "-m")]
        words = [re.sub(r"^(seed=\d),.*", r"\1", word) for word in words]
    code = rlforge_here(*words[1:])
    out, err = capsys.readouterr()
    if "--gpu-memory" in words:
        assert "fits with: " in out, out
        return
    assert code == 0, f"{shlex.join(words)}\n{out}{err}"


@release
def test_the_readmes_program_works(day):
    walk, _ = day
    (program,) = re.findall(r"## From Python\n\n```python\n(.*?)```", README, re.DOTALL)
    (walk.folder / "program.py").write_text(program)
    done = run("python", "program.py", folder=walk.folder)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\{0: [-\d.]+, 1: [-\d.]+\}", done.stdout.splitlines()[-1]), done.stdout
