"""Every test function of commit 846ea8a exists, or a row of ``*.tsv`` says where its fact is held.

``files.txt`` has the files that moved, old path and new one, with a tab between them.

Usage: ``python tests/moves/check.py``; exit code 1 where a name is missing or a target is unknown.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

BEFORE = "846ea8a"
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def functions(path: str, source: str) -> set[str]:
    """``path::name`` of each test function in ``source``, also in classes."""
    nodes = ast.walk(ast.parse(source))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = (node.name for node in nodes if isinstance(node, kinds))
    return {f"{path}::{name}" for name in names if name.startswith("test_")}


def placed(name: str, moved: Mapping[str, str]) -> str:
    """``path::name`` with the path that the file has now."""
    path, _, test = name.partition("::")
    return f"{moved.get(path, path)}::{test}"


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def main() -> int:
    """Print what is wrong with the table."""
    if subprocess.run(["git", "cat-file", "-e", BEFORE], cwd=ROOT, check=False).returncode:
        print(f"this clone is shallow: {BEFORE} is not in it, and nothing is checked")
        return 0
    before: set[str] = set()
    for path in git("ls-tree", "-r", "--name-only", BEFORE, "tests").splitlines():
        if path.endswith(".py"):
            before |= functions(path, git("show", f"{BEFORE}:{path}"))
    files = [line.split("\t") for line in (HERE / "files.txt").read_text().splitlines()]
    moved = dict(files)
    now: set[str] = set()
    for file in (ROOT / "tests").rglob("*.py"):
        now |= functions(file.relative_to(ROOT).as_posix(), file.read_text())
    rows: dict[str, str] = {}
    problems: list[str] = []
    for table in sorted(HERE.glob("*.tsv")):
        for number, line in enumerate(table.read_text().splitlines(), start=1):
            old, _, target = line.partition("\t")
            where = f"{table.name}:{number}"
            if old.partition("[")[0] not in before:
                problems.append(f"{where}: {old} is no test of {BEFORE}")
            for each in target.split(" "):
                if target.startswith("- ") and len(target) > 10:
                    break
                if placed(each.partition("[")[0], moved) not in now:
                    problems.append(f"{where}: there is no test {each or '(empty)'}")
            rows[old] = target
    gone = {name for name in before if placed(name, moved) not in now}
    problems += [f"no row for {name}" for name in sorted(gone - rows.keys())]
    print(*problems, f"{len(before)} tests before, {len(rows)} rows", sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
