"""rlforge as people install it: the wheel, its metadata, and what works without the repository."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import yaml

import rlforge

pytestmark = pytest.mark.release

ROOT = Path(__file__).resolve().parents[2]
USER_FILE = """\
import rlforge
from rlforge import EnvSpec, GameRecord, PoolView, View

def strongest(view: PoolView) -> dict[str, float]:
    return {uid: view.mu(uid) for uid in view.past}

record: GameRecord = rlforge.play_game("tictactoe", "minimax", lambda view: view.observation)
reveal_type(record.rewards)
reveal_type(rlforge.load_run("runs/one").policy().act(View(player_id=0, observation="")))
EnvSpec(id=3)
rlforge.resume()
rlforge.nosuch
"""
SKIPPED = """
[mypy-torch.*,transformers.*,ray.*,peft.*,numpy.*,pandas.*,openai.*,omegaconf.*,hydra.*,yaml.*]
follow_imports = skip
ignore_missing_imports = true
"""


def command(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run outside of the repository; the variables of this process find no sources."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "MYPYPATH")
    variables = {name: text for name, text in os.environ.items() if name not in hidden}
    place = {"cwd": folder, "env": variables, "timeout": 240}
    return subprocess.run(list(map(str, arguments)), capture_output=True, text=True, **place)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    built = command(
        sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=ROOT
    )
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def files(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def metadata(wheel: Path, files: list[str]) -> Message:
    (name,) = (name for name in files if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel; it sees the packages of the running one."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    here = sysconfig.get_path("purelib")
    (packages,) = home.glob("lib/python3*/site-packages")
    (packages / "others.pth").write_text(f"{here}\n")
    install = ["install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check"]
    python = ["--python", home / "bin" / "python"]
    done = command(sys.executable, "-m", "pip", *python, *install, wheel, folder=home)
    assert done.returncode == 0, done.stderr
    return home / "bin"


# ---------------------------------------------------------------- what is inside


def test_the_wheel_has_the_version_of_the_sources(wheel, metadata):
    assert wheel.name == f"rlforge-{rlforge.__version__}-py3-none-any.whl"
    assert metadata["Version"] == rlforge.__version__


def test_the_wheel_holds_all_that_the_sources_read_and_nothing_else(files):
    options = [f"rlforge/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")]
    modules = [str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")]
    assert len(options) > 50
    needed = {*options, *modules, "rlforge/py.typed", "rlforge/show/report/style.css"}
    assert needed - set(files) == set()
    assert {name.split("/")[0].partition("-")[0] for name in files} == {"rlforge"}
    assert [name for name in files if "__pycache__" in name or "/tests/" in name] == []


def test_the_metadata_names_authors_licence_and_places(metadata):
    assert metadata["Author"] == "The rlforge developers"
    assert metadata["License-Expression"] == "Apache-2.0"
    places = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    assert set(places) == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert all(place.startswith("https://") for place in places.values())
    assert {"reinforcement learning", "self-play"} <= set(metadata["Keywords"].split(","))
    assert "Typing :: Typed" in metadata.get_all("Classifier")


def test_links_of_the_long_description_are_absolute_and_lead_to_files(metadata):
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    links = re.findall(r"\]\(([^)\s]+)", text) + re.findall(
        r'\b(?:src|srcset|href)="([^"]+)"', text
    )
    assert len(links) > 5
    assert [link for link in links if not re.match(r"https://|#", link)] == []
    places = re.findall(
        r"github(?:usercontent)?\.com/rlforge/rlforge/(?:blob/)?main/([^)#\s\"]+)", text
    )
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_the_citation_names_the_version_and_authors_of_the_package(metadata):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}
    assert citation["version"] == metadata["Version"]
    assert [author["name"] for author in citation["authors"]] == [metadata["Author"]]
    assert citation["license"] == metadata["License-Expression"]


# ---------------------------------------------------------------- what works when installed


def test_the_installed_command_says_its_version(installed, tmp_path):
    answer = command(installed / "rlforge", "--version", folder=tmp_path)
    assert answer.stdout == f"rlforge {rlforge.__version__}\n", answer.stderr
    code = (
        "import rlforge, importlib.metadata; from rlforge.config.compose import conf_dir; "
        "print(importlib.metadata.version('rlforge'), conf_dir())"
    )
    version, folder = command(installed / "python", "-c", code, folder=tmp_path).stdout.split()
    assert version == rlforge.__version__
    assert Path(folder).is_relative_to(installed.parent)


def test_the_installed_command_composes_an_experiment(installed, tmp_path):
    answer = command(
        installed / "rlforge", "config", "+experiment=simpletak_mirror", folder=tmp_path
    )
    assert answer.returncode == 0, answer.stderr
    assert yaml.safe_load(answer.stdout)["name"] == "simpletak_mirror"


def test_help_names_only_what_is_installed(installed, tmp_path):
    overview = command(installed / "python", "-m", "rlforge", "--help", folder=tmp_path)
    assert "simpletak" in command(installed / "rlforge", "train", "-h", folder=tmp_path).stdout
    assert overview.returncode == 0, overview.stderr
    assert "Train language models" in overview.stdout
    keys = command(installed / "rlforge", "show", "learner.betas", folder=tmp_path)
    assert keys.stdout.startswith("learner.betas=[0.9, 0.999]"), keys.stderr


def test_a_type_checker_reads_the_installed_package(installed, tmp_path):
    (tmp_path / "mine.py").write_text(USER_FILE)
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n" + SKIPPED)
    answer = command(
        *(sys.executable, "-m", "mypy", "--python-executable", installed / "python"),
        *("--config-file", "mypy.ini", "--cache-dir", tmp_path / "cache", "mine.py"),
        folder=tmp_path,
    )
    lines = answer.stdout.splitlines()
    assert lines[-1].startswith("Found 3 errors in 1 file"), answer.stdout + answer.stderr
    assert 'Revealed type is "typing.Mapping[int, float]"' in lines[0].replace("builtins.", "")
    assert 'Revealed type is "str"' in lines[1].replace("builtins.", "")
    assert 'incompatible type "int"; expected "str"' in lines[2]
    assert 'Missing positional argument "run_dir"' in lines[3]
    assert 'Module has no attribute "nosuch"' in lines[4]
