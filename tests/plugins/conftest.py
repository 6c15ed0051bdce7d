"""An environment of its own, into which packages with extensions are installed."""

import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

import rlforge

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "plugins"

#: ``rlforge`` with the actors of its runs as objects of its own process.
IN_PROCESS = f"""
import sys
sys.path.insert(1, {str(ROOT)!r})
from rlforge.cli import main
from tests.harness.in_process import use_actors_in_process
use_actors_in_process(setattr)
main()
"""


class Environment:
    """A virtual environment that also sees the packages of the running one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._python = folder, folder / "venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        seen = [str(Path(rlforge.__file__).parents[1]), *site.getsitepackages()]
        lines = [f"import site; site.addsitedir({path!r})\n" for path in seen]
        (self.packages / "running.pth").write_text("".join(lines))

    @property
    def packages(self) -> Path:
        """The folder into which packages are installed."""
        (found,) = (self._folder / "venv" / "lib").glob("python*/site-packages")
        return found

    def install(self, source: Path) -> None:
        """Build a wheel of ``source`` and install that."""
        wheels = self._folder / "wheels"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        build = ["wheel", "--no-deps", "--no-build-isolation", "-w", wheels, source]
        subprocess.run([*pip, *build], check=True)
        into = ["--python", self._python, "install", "--no-deps", "--no-index"]
        subprocess.run([*pip, *into, *wheels.glob("*.whl")], check=True)

    def start(
        self, *arguments: str | Path, actors_in_process: bool = False
    ) -> subprocess.Popen[str]:
        """Start ``rlforge`` here. actors_in_process: a run starts no other process."""
        rlforge = ["-c", IN_PROCESS] if actors_in_process else ["-m", "rlforge"]
        command = [self._python, *rlforge, *arguments]
        variables = os.environ | {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=variables)

    def run(self, *arguments: str | Path, actors_in_process: bool = False) -> tuple[str, str]:
        """Run ``rlforge`` to a successful end: its output and its errors (see ``start``)."""
        process = self.start(*arguments, actors_in_process=actors_in_process)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        return out, err


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """One into which nothing was installed yet."""
    return Environment(tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="session")
def with_examples(environment: Environment) -> Environment:
    """One with the wheel of ``examples/plugins``."""
    environment.install(PACKAGE)
    return environment
