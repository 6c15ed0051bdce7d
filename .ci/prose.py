"""Find docstrings that are half sentences: ``python .ci/prose.py``; exit code 1 where there are.

A docstring begins with a verb or with the noun that is returned or described, never with *Of*,
*Those*, *That*, *As* or *What*, whose subject would be the name of the function. So do the lines
about parameters.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HALF = re.compile(r"(?:Of|Those|That|As|What)\b")
PARAMETER = re.compile(rf"^ +\*{{0,2}}\w+(?:, \w+)*: {HALF.pattern}.*", re.MULTILINE)


def half_sentences(file: Path) -> Iterator[tuple[int, str]]:
    """Line and first line of each docstring of a file that begins so."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if HALF.match(text):
                yield getattr(node, "lineno", 1), text.splitlines()[0]
            for entry in PARAMETER.findall(text):
                yield getattr(node, "lineno", 1), entry.strip()


def main() -> int:
    """Print what was found."""
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file in sorted((ROOT / "src").rglob("*.py"))
        for line, text in half_sentences(file)
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
