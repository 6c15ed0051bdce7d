"""Names that stand for code: where it is found, and what is said of a wrong one."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from rlforge.config import names
from rlforge.config.plugins import KINDS, MODES, PLAYERS
from rlforge.errors import ConfigError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)


def offer(monkeypatch: pytest.MonkeyPatch, **targets: list[str]) -> None:
    """Short names of sampling modes, each with the targets of the packages that offer it."""
    points = {
        name: [EntryPoint(name=name, value=value, group="rlforge.modes") for value in values]
        for name, values in targets.items()
    }
    monkeypatch.setattr(
        names, "entry_points_of", lambda group: points if group == "rlforge.modes" else {}
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_name_of_rlforge_can_be_found(kind):
    for name in kind.names():
        assert kind.problem(name) is None
        if kind.name != "engines":  # vLLM may not be installed
            assert kind.find(name) is not None


def test_a_thing_of_a_module_in_the_current_directory_is_found(here):
    write(here, "modes_of_mine", "def first(view):\n    return {view.current: 1.0}\n")
    assert MODES.problem("modes_of_mine:first") is None
    assert MODES.find("modes_of_mine:first").__name__ == "first"
    write(here, "nested_modes", "class Modes:\n    @staticmethod\n    def one(view): return {}\n")
    assert callable(MODES.find("nested_modes:Modes.one"))


def test_a_short_name_of_a_package_is_found(monkeypatch):
    offer(monkeypatch, quiet=["rlforge.league.modes:mirror"])
    assert MODES.find("quiet") is MODES.find("mirror")
    assert "quiet" in MODES.names()


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("absent_module:Thing", None, "there is no module absent_module: it is neither installed"),
        ("os.absent:Thing", None, "no module os.absent"),
        (
            "raises:Thing",
            "x = 1\nraise ValueError('no luck')",
            r"ValueError: no luck .*raises.py, line 2",
        ),
        (
            "needs_more:Thing",
            "import absent_too",
            r"No module named 'absent_too' .*needs_more.py, line 1",
        ),
        ("unreadable:Thing", "def (", "SyntaxError: invalid syntax"),
        ("misspelt:Thng", "def Thing(view): ...", "misspelt.py has no Thng; did you mean Thing"),
        ("unnamed:", "x = 1", "has no name after the colon"),
        ("numbers_only:THING", "THING = 3", "is not a function from a PoolView"),
    ],
)
def test_what_is_wrong_is_said_with_its_file(here, name, source, message):
    if source is not None:
        write(here, name.partition(":")[0], source)
    with pytest.raises(ConfigError, match=message) as caught:
        MODES.find(name)
    assert caught.value.exit_code == 2


def test_an_unknown_name_is_answered_with_the_nearest_and_the_way_to_ones_own():
    with pytest.raises(ConfigError, match=r"did you mean mirror.*package\.module:Thing"):
        MODES.find("miror")


def test_two_packages_with_one_name_are_refused_when_it_is_chosen(monkeypatch):
    offer(monkeypatch, twice=["one.modes:best", "other.modes:best"])
    assert MODES.problem("mirror") is None
    problem = MODES.problem("twice")
    assert problem is not None
    assert "two packages offer it" in problem
    assert "one.modes:best" in problem
    assert "other.modes:best" in problem


def test_a_package_cannot_replace_a_name_of_rlforge(monkeypatch):
    offer(monkeypatch, mirror=["rlforge.league.modes:fixed"])
    assert MODES.find("mirror").__name__ == "mirror"
    (row,) = (row for row in MODES.rows() if row.origin != "rlforge")
    assert "hidden" in row.problem


def test_errors_of_an_extension_on_trial_name_its_line(here):
    write(here, "bad_player", "class Bad:\n    def __init__(self, env, rng):\n        1 / 0\n")
    message = r"player 'bad_player:Bad' fails: .*bad_player.py, line 3"
    with pytest.raises(ConfigError, match=message), PLAYERS.trial("bad_player:Bad"):
        PLAYERS.find("bad_player:Bad")(None, None)


def test_errors_of_rlforge_on_trial_stay_what_they_are():
    with pytest.raises(ZeroDivisionError), PLAYERS.trial("minimax"):
        raise ZeroDivisionError
