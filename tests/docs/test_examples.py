"""Every ``Example:`` in a docstring runs, and the classes that the pages name have one."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "rlforge"
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if "    >>> " in path.read_text()
)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_of_a_module_run(module):
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def named_classes() -> list[type]:
    """Classes of rlforge whose dotted name stands on a page."""
    names = {
        name for page in PAGES for name in re.findall(r"\brlforge(?:\.\w+)+", page.read_text())
    }
    found = set()
    for name in names:
        module, _, last = name.rpartition(".")
        try:
            candidate = getattr(importlib.import_module(module), last, None)
        except ImportError:
            continue
        if inspect.isclass(candidate):
            found.add(candidate)
    return sorted(found, key=lambda cls: cls.__qualname__)


def test_a_class_that_a_page_names_shows_an_example():
    without = []
    for cls in named_classes():
        text = inspect.getdoc(cls) or ""
        # One example may stand for several classes.
        if "Example:" not in text or (">>> " not in text and "see ``" not in text):
            without.append(cls.__qualname__)
    assert without == []
