"""Whatever becomes of a file of a run, each command that reads it ends in a line that names it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest
from tests.harness.permissions import public_folder, without_rights

#: Commands that read a run, and need seconds for each.
_THOROUGH = {
    "games": [
        "verify RUN --all",
        "eval RUN --games 2 --opponent random_legal",
        "export RUN out --merge",
        "ladder RUN --against random_legal --games 2",
    ],
    "market": ["verify RUN --all", "export RUN out --merge"],
}
#: Commands that read a run at once. OTHER is a sound run of the same kind, beside which a damaged
#: one is shown.
_QUICK = {
    "games": [
        "runs runs",
        "compare RUN OTHER",
        "report RUN --output page.html",
        "report RUN OTHER --output page.html",
        "monitor RUN --once",
        "monitor runs --once",
        "replay RUN",
        "replay RUN latest",
        "batches RUN",
        "batches RUN 5 --sample 0",
        "doctor --run RUN",
    ],
    "market": [
        "runs runs",
        "compare RUN OTHER",
        "report RUN --output page.html",
        "report RUN OTHER --output page.html",
        "monitor RUN --once",
        "monitor runs --once",
        "doctor --run RUN",
        "deployments --state RUN",
        "windows list RUN",
        "windows show RUN 2024-11-13-10:00",
        "windows decisions RUN 2024-11-13-10:00",
        "windows export RUN out",
        "windows list RUN/store",
    ],
}
#: Files that libraries open without telling Python.
_NATIVE = (".parquet", ".safetensors")
#: Commands that list several runs, of which one is damaged.
_LISTS = ("runs runs", "monitor runs", "compare RUN", "report RUN OTHER")

_opened: set[str] = set()


def _note(event: str, given: Sequence[object]) -> None:
    if event in ("open", "sqlite3.connect") and isinstance(given[0], str | os.PathLike):
        _opened.add(str(given[0]).removeprefix("file://").partition("?")[0])


@pytest.fixture(scope="module", autouse=True)
def noted() -> None:
    """Files that Python opens are noted; such a hook stays until the process ends."""
    sys.addaudithook(_note)


def damages(file: Path, content: bytes) -> Iterator[tuple[str, bytes]]:
    """What may have become of a file: a name, and its content then."""
    size = len(content)
    yield "empty", b""
    if size > 3:
        yield "a third", content[: size // 3]
        yield "two thirds", content[: 2 * size // 3]
        yield "all but a byte", content[:-1]
        yield "bytes within", content[: size // 2] + b"\xff\xfe\xfd" + content[size // 2 + 3 :]
    yield "no text", b"\xff\xfe\x00"
    others = {
        ".json": (b"{}", b"[]", b'{"a": 1}\n'),
        ".yaml": (b"- 1\n", b"a: 1\n"),
        ".jsonl": (b"{}\n", b"[1]\n3\n", b'{"a": 1}\n'),
        ".txt": (b"rlforge train 'x\n",),
    }
    yield from ((repr(other), other) for other in others.get(file.suffix, ()))


def newest(run: Path) -> list[Path]:
    """The files of a run that commands read, of each numbered kind the newest."""
    kept: dict[str, Path] = {}
    for file in sorted(path for path in run.rglob("*") if path.is_file()):
        if file.suffix not in (".log", ".lock", ".html"):
            kept["".join("#" if part.isdigit() else part for part in str(file))] = file
    return list(kept.values())


class Damaged:
    """Runs commands on a run whose files are damaged, one after the other."""

    def __init__(self, rlforge, run: Path, other: Path, monkeypatch) -> None:
        self._rlforge = rlforge
        shutil.copytree(run, "runs/run")
        shutil.copytree(other, "other")
        self.run, self.calls = Path("runs/run"), 0
        monkeypatch.setenv("COLUMNS", "400")  # no line is broken

    def _call(self, command: str) -> tuple[int | str, str, str]:
        shutil.rmtree("out", ignore_errors=True)
        words = command.replace("RUN", str(self.run)).replace("OTHER", "other").split()
        try:
            return self._rlforge(*words)
        except Exception as error:  # a traceback for the user
            return f"{type(error).__name__}: {error}", "", ""

    def faults(self, commands: Sequence[str], few: Collection[str] = ()) -> dict[str, str]:
        """What is wrong with answers, by file, damage and command. few: only these damages."""
        wrong: dict[str, str] = {}
        for command in commands:
            _opened.clear()
            sound = self._call(command)
            read = {Path(path).absolute() for path in _opened}
            assert isinstance(sound[0], int), sound
            for file in newest(self.run):
                if file.absolute() not in read and file.suffix not in _NATIVE:
                    continue
                content = file.read_bytes()
                for name, other in damages(file, content):
                    if few and name not in few:
                        continue
                    file.write_bytes(other)
                    answer = self._call(command)
                    self.calls += 1
                    if fault := self._fault(file, command, answer, sound):
                        wrong[f"{file}, {name}: rlforge {command}"] = fault
                    self._restore(file, content)
        return wrong

    @staticmethod
    def _restore(file: Path, content: bytes) -> None:
        for journal in ("-wal", "-shm"):
            file.with_name(file.name + journal).unlink(missing_ok=True)
        file.write_bytes(content)

    @staticmethod
    def _fault(file: Path, command: str, answer, sound) -> str:
        code, _, err = answer
        if code == 0 or (code, err) == (sound[0], sound[2]):
            return ""
        said = [line for line in err.splitlines() if line.startswith("rlforge: ")]
        # A configuration is wrong before anything is read.
        expected = (1, 2) if file.name == "config.yaml" else (1,)
        if command.startswith(_LISTS):
            return f"hides the other run: {answer}"
        fine = code in expected and err.splitlines()[-1:] == said and file.name in said[0]
        return "" if fine else str(answer)


@pytest.fixture
def games(rlforge, golden_run, monkeypatch):
    return Damaged(rlforge, golden_run, golden_run, monkeypatch)


@pytest.fixture
def market(rlforge, golden_market, monkeypatch):
    return Damaged(rlforge, golden_market, golden_market, monkeypatch)


@pytest.mark.parametrize("kind", _QUICK)
def test_a_damaged_file_is_a_line_or_a_row_that_names_it(request, kind):
    damaged = request.getfixturevalue(kind)
    assert damaged.faults(_QUICK[kind], few=("two thirds", repr(b'{"a": 1}\n'))) == {}
    assert damaged.calls > 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", _QUICK)
def test_every_command_names_every_file_however_it_is_damaged(request, kind):
    damaged = request.getfixturevalue(kind)
    assert damaged.faults([*_QUICK[kind], *_THOROUGH[kind]]) == {}
    assert damaged.calls > 300


def test_a_file_that_may_not_be_read_is_named_and_hides_no_other_run(rlforge, golden_run):
    commands = ("runs runs", "compare RUN other", "monitor RUN --once", "replay RUN", "batches RUN")
    wrong = {}
    with public_folder() as folder, contextlib.chdir(folder):
        run = Path(shutil.copytree(golden_run, "runs/run"))
        shutil.copytree(golden_run, "other")
        for path in folder.rglob("*"):
            path.chmod(0o755)
        calls = [command.replace("RUN", str(run)).split() for command in commands]
        for words in calls:
            assert rlforge(*words).code == 0
        for file in newest(run):
            file.chmod(0)
            for words in calls:
                with without_rights():
                    code, _, err = rlforge(*words)
                fine = code == 0 or f"rlforge: {file}: Permission denied" in err
                if not fine or (code and words[0] in ("runs", "compare")):
                    wrong[f"{file}: {words}"] = err
            file.chmod(0o644)
    assert wrong == {}
