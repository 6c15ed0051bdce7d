"""Whatever becomes of a file of a run, each command that reads it ends in a line that names it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
        "why RUN",
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
#: Commands that between them read all JSON of a run.
_FEW = {
    "games": ["runs runs", "report RUN --output page.html", "why RUN", "monitor RUN --once"],
    "market": [
        "runs runs",
        "report RUN --output page.html",
        "monitor RUN --once",
        "windows decisions RUN 2024-11-13-10:00",
    ],
}
#: Files that libraries open without telling Python.
_NATIVE = (".parquet", ".safetensors")
#: Commands that list several runs, of which one is damaged.
_LISTS = ("runs runs", "monitor runs", "compare RUN", "report RUN OTHER")

#: Commands that read tables, and no JSON of which a value can be another.
_NO_JSON = ("replay", "batches", "deployments", "windows decisions")

_opened: set[str] = set()

#: Names of damages of a file, each with its content then.
Damaging = Callable[[Path, bytes], Iterable[tuple[str, bytes]]]


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


#: Values of other types, by the type that stands there.
_RETYPED: Mapping[type, tuple[Any, ...]] = {
    int: ("3", None, [3]),
    float: ("0.5", None, [0.5]),
    str: (3, None, ["a"]),
    list: ("a", None, {"a": 1}, ["a", 3]),
    dict: (None, "a", [1]),
}
#: Keys without which a line is left out, and nothing else of it is read.
_NEEDED = ("step", "window", "window_id")


def retyped(file: Path, content: bytes) -> Iterator[tuple[str, bytes]]:
    """The same JSON with a value of another type in one place, of places that are alike in one."""
    seen: dict[tuple[object, ...], int] = {}
    for number, whole in enumerate(values(file, content)):
        for place, part in places(whole):
            alike = (*(re.sub(r"\d+", "#", str(key)) for key in place), type(part))
            if place and alike not in seen and type(part) in _RETYPED:
                seen[alike] = len(seen)
                others = _RETYPED[type(part)]
                other = others[seen[alike] % len(others)]
                yield (
                    f"{place}: {other!r}",
                    written(file, content, {number: put(whole, place, other)}),
                )


def all_retyped(file: Path, content: bytes) -> Iterator[tuple[str, bytes]]:
    """The same JSON with all values of a type as others."""
    wholes = [*enumerate(values(file, content))]
    for kinds, other in (((int, float), "0.5"), ((str,), 3), ((list, dict), None), ((list,), "a")):
        changed = dict(wholes)
        for number, whole in wholes:
            # The innermost ones first, as the others hold them.
            for place, part in reversed([*places(whole)]):
                if place and type(part) in kinds and place[0] not in _NEEDED:
                    changed[number] = put(changed[number], place, other)
        yield f"{kinds}: {other!r}", written(file, content, changed)


def rewritten(file: Path, content: bytes) -> Iterator[tuple[str, bytes]]:
    """The same SQLite file with something else in a cell of JSON, of each column in one."""
    if file.suffix != ".sqlite":
        return
    others = itertools.cycle(("3", '["a"]', "no JSON", '{"trained": 3}'))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, file.name)
        copy.write_bytes(content)
        with contextlib.closing(sqlite3.connect(copy)) as database:
            cells = [*_json_cells(database)]
        for table, column, packed in cells:
            other = next(others)
            copy.write_bytes(content)
            with contextlib.closing(sqlite3.connect(copy)) as database, database:
                cell = zlib.compress(other.encode()) if packed else other
                database.execute(f"UPDATE {table} SET {column} = ?", (cell,))
            yield f"{table}.{column}: {other}", copy.read_bytes()


def _json_cells(database: sqlite3.Connection) -> Iterator[tuple[str, str, bool]]:
    """Tables and columns with JSON, and whether it is compressed."""
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
        rows = database.execute(f"SELECT * FROM {table} LIMIT 1")
        names = [column[0] for column in rows.description]
        for name, cell in zip(names, rows.fetchone() or (), strict=False):
            packed = isinstance(cell, bytes)
            text = zlib.decompress(cell).decode() if packed else cell
            if isinstance(text, str) and text[:1] in ("{", "["):
                yield table, name, packed


def values(file: Path, content: bytes) -> list[Any]:
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in content.splitlines()]
    return [json.loads(content)] if file.suffix == ".json" else []


def written(file: Path, content: bytes, changed: Mapping[int, Any]) -> bytes:
    wholes = dict(enumerate(values(file, content))) | changed
    return "".join(f"{json.dumps(whole)}\n" for whole in wholes.values()).encode()


def places(part: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value within ``part`` with the keys that lead to it, outer ones first."""
    yield place, part
    items = enumerate(part) if isinstance(part, list) else ()
    for key, one in part.items() if isinstance(part, dict) else items:
        yield from places(one, (*place, key))


def put(part: Any, place: tuple[Any, ...], other: Any) -> Any:
    """A copy of ``part`` with ``other`` at a place."""
    if not place:
        return other
    copy = dict(part) if isinstance(part, dict) else list(part)
    copy[place[0]] = put(part[place[0]], place[1:], other)
    return copy


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

    def faults(self, commands: Sequence[str], damaging: Damaging = damages) -> dict[str, str]:
        """What is wrong with answers, by file, damage and command."""
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
                for name, other in damaging(file, content):
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
        # Keys without a digest above them are those of a hand, which may be wrong as typed ones.
        typed = file.read_bytes() == b"a: 1\n"
        expected = 2 if typed else 1
        if command.startswith(_LISTS):
            return f"hides the other run: {answer}"
        fine = code == expected and err.splitlines()[-1:] == said and file.name in said[0]
        return "" if fine else str(answer)


@pytest.fixture
def games(rlforge, golden_run, monkeypatch):
    return Damaged(rlforge, golden_run, golden_run, monkeypatch)


@pytest.fixture
def market(rlforge, golden_market, monkeypatch):
    return Damaged(rlforge, golden_market, golden_market, monkeypatch)


def some_damages(file: Path, content: bytes) -> Iterator[tuple[str, bytes]]:
    few = ("two thirds", repr(b'{"a": 1}\n'))
    yield from (damage for damage in damages(file, content) if damage[0] in few)


@pytest.mark.parametrize("kind", _QUICK)
def test_a_damaged_file_is_a_line_or_a_row_that_names_it(request, kind):
    damaged = request.getfixturevalue(kind)
    assert damaged.faults(_QUICK[kind], some_damages) == {}
    assert damaged.calls > 50


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", _FEW)
def test_values_of_other_types_are_a_line_or_a_row_that_names_the_file(request, kind):
    damaged = request.getfixturevalue(kind)
    assert damaged.faults(_FEW[kind], all_retyped) == {}
    assert damaged.calls > 50


def test_other_json_in_a_database_is_a_line_or_a_row_that_names_the_file(market):
    others = ["deployments --state RUN", "windows show RUN 2024-11-13-10:00", "windows list RUN"]
    assert market.faults([*_FEW["market"], *others], rewritten) == {}
    assert market.calls > 20


def each_damaging() -> Iterator[tuple[str, str, Damaging]]:
    for kind in _QUICK:
        for command in [*_QUICK[kind], *_THOROUGH[kind]]:
            yield kind, command, damages
            yield kind, command, all_retyped
            if not command.startswith(_NO_JSON):
                yield kind, command, retyped


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("kind", "command", "damaging"), [*each_damaging()])
def test_each_command_names_every_file_however_it_is_damaged(request, kind, command, damaging):
    damaged = request.getfixturevalue(kind)
    assert damaged.faults([command], damaging) == {}
    assert damaged.calls >= {damages: 18, retyped: 46, all_retyped: 12}[damaging]


@pytest.mark.slow
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
