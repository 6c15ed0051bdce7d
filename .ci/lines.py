"""Check the budget of lines: ``[tool.rlforge.lines]`` of pyproject.toml, per room of the package.

Usage: ``python .ci/lines.py``; exit code 1 where a room has outgrown its figure. With ``--lower``
write today's figures, rounded up to 10, where they are below the budget's.
"""

import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def lines_by_room() -> Counter[str]:
    """Lines of Python in each package of ``src/rlforge``, in its top-level files, and in tests."""
    package, rooms = ROOT / "src/rlforge", Counter[str]()
    for file in [*package.rglob("*.py"), *package.rglob("*.pyi"), *(ROOT / "tests").rglob("*.py")]:
        if file.parent == package:
            room = "top-level"
        else:
            room = file.relative_to(package).parts[0] if package in file.parents else "tests"
        rooms[room] += len(file.read_text(encoding="utf-8").splitlines())
    return rooms


def main() -> int:
    """Compare with the budget, or lower it."""
    pyproject = ROOT / "pyproject.toml"
    text = pyproject.read_text(encoding="utf-8")
    budget: dict[str, int] = tomllib.loads(text)["tool"]["rlforge"]["lines"]
    rooms = lines_by_room()
    if "--lower" in sys.argv[1:]:
        table = "".join(
            f"{room} = {min(figure, -(-rooms[room] // 10) * 10)}\n"
            for room, figure in budget.items()
            if rooms[room]
        )
        text = re.sub(r"(?<=\[tool\.rlforge\.lines\]\n)(.+\n)+", table, text)
        pyproject.write_text(text, encoding="utf-8")
        return 0
    problems = [
        f"{room}: {lines} lines, {budget.get(room, 0)} in [tool.rlforge.lines] of pyproject.toml"
        for room, lines in sorted(rooms.items())
        if lines > budget.get(room, 0)
    ]
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
