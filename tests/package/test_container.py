"""The steps of the Containerfile, one after the other, in a folder instead of an image.

A machine with a container runtime builds the image itself; these tests need none.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Containerfile").read_text()
STEPS = [
    tuple(line.split(" ", 1))
    for line in TEXT.replace("\\\n", "").splitlines()
    if line and not line.startswith("#")
]


class Image:
    """A folder in which the steps of a container file are taken.

    Programs come from a fresh environment that sees the packages of the running one.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._folder = root / "image", root / "image"
        self._folder.mkdir()
        programs = root / "programs"
        venv.create(programs, symlinks=True, with_pip=True)
        (packages,) = programs.glob("lib/python3*/site-packages")
        (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        hidden = ("PYTHONPATH", "VIRTUAL_ENV", "RLFORGE_CACHE")
        self._variables = {key: text for key, text in os.environ.items() if key not in hidden}
        self._variables["PATH"] = f"{programs / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self._entry: list[str] = []

    def take(self, instruction: str, rest: str) -> str:
        """What the step prints; a step that fails is an error, and so is an unknown one."""
        return getattr(self, f"_{instruction.lower()}")(rest) or ""

    def _from(self, image: str) -> None:
        name, _, tag = image.partition(":")
        wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
        least = re.fullmatch(r">=(\d+)\.(\d+)", wanted)
        assert name == "python"
        assert least is not None
        assert tuple(map(int, tag.split("."))) >= tuple(map(int, least.groups()))

    def _env(self, rest: str) -> None:
        for pair in shlex.split(rest):
            key, _, text = pair.partition("=")
            self._variables[key] = f"{self._root}{text}" if text.startswith("/data") else text

    _arg = _env

    def _workdir(self, path: str) -> None:
        self._folder = self._root / path.lstrip("/")
        self._folder.mkdir(parents=True)

    def _copy(self, rest: str) -> None:
        *sources, target = rest.split()
        for source in sources:
            assert f"!{source}" in (ROOT / ".dockerignore").read_text().splitlines()
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, self._folder / target)
            else:
                shutil.copy(ROOT / source, self._folder / target)

    def _run(self, line: str) -> str:
        place = {"cwd": self._folder, "env": self._variables, "timeout": 400}
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, **place)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _entrypoint(self, rest: str) -> None:
        self._entry = json.loads(rest)

    def _cmd(self, rest: str) -> str:
        return self._run(shlex.join([*self._entry, *json.loads(rest)]))


@pytest.mark.release
@pytest.mark.timeout(600)
def test_every_step_of_the_container_file_works(tmp_path):
    image = Image(tmp_path)
    shown = [image.take(instruction, rest) for instruction, rest in STEPS]
    assert "Train language models" in shown[-1]
    installed = image.take("RUN", "python -c 'import rlforge; print(rlforge.__file__)'")
    assert Path(installed.strip()).is_relative_to(tmp_path / "programs")
    listed = re.findall(r"^\w+", image.take("RUN", "rlforge list experiments"), re.MULTILINE)
    presets = sorted(file.stem for file in (ROOT / "conf" / "experiment").glob("*.yaml"))
    assert [name for name in listed if name in presets] == presets


def test_the_page_on_installation_has_its_commands():
    page = (ROOT / "docs" / "install.md").read_text()
    built = re.findall(r"(?:docker|podman) build [^`\n]*", page)
    assert built, "how to build the image"
    for line in built:
        assert "-f Containerfile" in line or line.startswith("podman")
    mounted = re.findall(r"-v \S+:(/\w+)", page)
    assert set(mounted) == {"/data"}
    assert "WORKDIR /data" in TEXT
