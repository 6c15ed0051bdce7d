"""Mutants: how many planted faults do the tests find, those of 846ea8a and those of today?

    python benchmarks/mutants.py before|after [--most N] [--after COMMIT] [--whole-runs TEST ...]

Forty places of six packages are drawn with a seed, on lines that 846ea8a and the commit ``--after``
both have; the draw stays in the results: both trees get the same mutants. Each is planted in a copy
of the tree. The tests that mirror its package run until the first failure, and where it survives,
the whole runs; one that takes a quarter of an hour is found, too. One whose line has left the tree
is skipped. A call goes on where the last stopped; two at a time would share the copies.
"""

import argparse
import ast
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from common import RESULTS, record

ROOT = Path(__file__).resolve().parents[1]
BEFORE, MUTANTS, SEED = "846ea8a", 40, 0
PACKAGES = ("algorithms", "buffer", "rewards", "rollout", "learner", "league")
PAIRS = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, Add Sub, Mult Div, And Or"
SWAPS = dict(pair.split() for pair in PAIRS.split(", "))
SWAPS |= {other: one for one, other in SWAPS.items()} | {"FloorDiv": "Mult", "Mod": "Mult"}
REMOVED = (ast.Expr, ast.AugAssign, ast.Raise, ast.Continue, ast.Break)


def changes(node: Any) -> Iterator[tuple[Any, str, Callable[[], None]]]:
    """What may be changed in ``node``: where it stands, what it is, and a call that does it."""
    inside = [(node.ops, index) for index in range(len(getattr(node, "ops", ())))]
    for holder, key in inside or ([(vars(node), "op")] if hasattr(node, "op") else []):
        if new := SWAPS.get(old := type(holder[key]).__name__):
            yield node, f"{old} to {new}", partial(holder.__setitem__, key, getattr(ast, new)())
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        new = not node.value if isinstance(node.value, bool) else node.value + 1
        yield node, f"{node.value} to {new}", partial(setattr, node, "value", new)
    negation = isinstance(getattr(node, "op", None), ast.Not)
    if (name := "operand" if negation else "test") in node._fields:
        turned = ast.UnaryOp(ast.Not(), getattr(node, name))
        yield getattr(node, name), "negated", partial(setattr, node, name, turned)
    blocks = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
    for block in (block for block in blocks if isinstance(block, list)):
        for index, each in enumerate(block):
            target = getattr(each, "targets", [None])[0]
            removed = isinstance(each, REMOVED) or isinstance(target, ast.Attribute | ast.Subscript)
            text = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
            if removed and not text:
                yield each, "left out", partial(block.__setitem__, index, ast.Pass())


def places(file: str, source: str) -> tuple[ast.Module, dict[tuple[Any, ...], Callable[[], None]]]:
    """The module in ``source``, and all changes to it, by file, line, kind, and which of equals."""
    tree, lines, seen, named = ast.parse(source), source.splitlines(), Counter(), {}
    nodes = list(ast.walk(tree))
    hints = [getattr(node, key, None) for node in nodes for key in ("annotation", "returns")]
    typed = {id(node) for hint in hints if hint is not None for node in ast.walk(hint)}
    found = [each for node in nodes if id(node) not in typed for each in changes(node)]
    for node, what, change in sorted(found, key=lambda it: (it[0].lineno, it[0].col_offset)):
        key = (file, lines[node.lineno - 1].strip(), what)
        named[*key, seen[key]] = change
        seen[key] += 1
    return tree, named


def copied(commit: str) -> tuple[Path, set[Any]]:
    """A copy of the tree of a commit, and all its places."""
    folder = ROOT / "build" / "mutants" / commit
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True)
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x"], cwd=folder, check=True, input=archive.stdout)
    sources = [path for name in PACKAGES for path in (folder / "src/rlforge" / name).rglob("*.py")]
    known = [places(str(path.relative_to(folder)), path.read_text())[1] for path in sources]
    return folder, set().union(*known)


#: Bytes of memory that tests of a package may take: a loop without end fills it.
MEMORY = 12 * 2**30


def found_by(tree: Path, tests: list[str], limit: float = 900.0, *, bounded: bool = False) -> str:
    """The test file that fails first; empty where all pass.

    bounded: a test may take 100 s and ``MEMORY``, as whole runs, with Ray's processes, may not.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider"]
    command += [*(("-o", "timeout=100") if bounded else ()), *tests]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    if bounded:
        pipe["preexec_fn"] = partial(resource.setrlimit, resource.RLIMIT_AS, (MEMORY, MEMORY))
    process = subprocess.Popen(command, cwd=tree, env=environment, start_new_session=True, **pipe)
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"{limit:g} seconds"
    named = re.search(r"^(?:FAILED|ERROR) (?:collecting )?([^\s:]+\.py)", out, re.MULTILINE)
    ended = named[1] if named else f"pytest ended with {process.returncode}"
    return ended if process.returncode else ""


def tried(tree: Path, place: tuple[Any, ...], whole_runs: list[str]) -> str:
    """What finds the mutant at ``place``."""
    file, package = tree / place[0], Path(place[0]).parts[2]
    module, known = places(place[0], source := file.read_text())
    if place not in known:
        return "skipped: the line has left the tree"
    known[place]()
    file.write_text(ast.unparse(ast.fix_missing_locations(module)))
    found = found_by(tree, [f"tests/{package}"], bounded=True)
    if not found and whole_runs:  # also those of tiers that are left out by default
        found = found_by(tree, ["-m", "not gpu", *whole_runs])
    file.write_text(source)
    return f"found: {found}" if found else "survived"


def outcomes(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """How the mutants of each tree ended."""
    kinds = {
        name: Counter(row.get(name, "to do").partition(":")[0] for row in rows)
        for name in ("before", "after")
    }
    return {name: dict(sorted(each.items())) for name, each in kinds.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tree", choices=("before", "after"))
    parser.add_argument("--after", help="a commit; default: that of the draw, at first HEAD")
    parser.add_argument("--most", type=int, help="mutants of this call")
    parser.add_argument("--whole-runs", nargs="+", default=[], metavar="TEST")
    given, file = parser.parse_args(), RESULTS / "mutants.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"before": BEFORE}
    line = ["git", "rev-parse", "--short", given.after or results.get("after", "HEAD")]
    after = subprocess.check_output(line, cwd=ROOT, text=True).strip()
    trees = {"before": copied(BEFORE), "after": copied(after)}
    rows: list[dict[str, Any]] = results.get("mutants", [])
    if not rows:
        shared = sorted(trees["before"][1] & trees["after"][1])
        drawn = random.Random(SEED).sample(shared, MUTANTS)
        rows = [dict(zip(("file", "line", "change", "which"), one, strict=True)) for one in drawn]
        results |= {"seed": SEED, "places": len(shared)}
    if results.get("after") != after:  # tests of another day
        rows = [{key: each for key, each in row.items() if key != "after"} for row in rows]
    tree, kept = trees[given.tree][0], {key: results[key] for key in ("before", "seed", "places")}
    passing: set[str] = set()
    for row in [row for row in rows if given.tree not in row][: given.most]:
        package = f"tests/{Path(row['file']).parts[2]}"
        if package not in passing and (wrong := found_by(tree, [package], 1e4)):
            sys.exit(f"without a mutant, {package} of {given.tree} fails in {wrong}")
        passing.add(package)
        row[given.tree] = tried(tree, tuple(row.values())[:4], given.whole_runs)
        print(*row.values(), sep="  ", flush=True)
        record("mutants", {**kept, "after": after, "ended": outcomes(rows), "mutants": rows})
    print(outcomes(rows))


if __name__ == "__main__":
    main()
