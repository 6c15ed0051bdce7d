"""What the package imports is what pyproject.toml lists, and each listed package has its reason."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "rlforge"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Those of the user's environment: used where they are there, and never needed.
GUESTS = {"ipython", "pandas"}
#: The words of Jinja2's own interface, by the same project.
OF_OTHERS = {"markupsafe"}


def names(requirements: Iterable[str]) -> set[str]:
    return {re.split(r"[\[<>=~!; ]", line, maxsplit=1)[0].lower() for line in requirements}


def imported(*files: Path) -> set[str]:
    """The distributions that these files import, in functions, too."""
    modules = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules.add(str(node.module))
    others = {module.partition(".")[0] for module in modules} - {
        "rlforge",
        *sys.stdlib_module_names,
    }
    of_module = packages_distributions()
    # A module of a package that is not installed here is taken to be called after it.
    found = {of_module.get(module, [module])[0] for module in others}
    return {name.lower().replace("_", "-") for name in found}


FILES = set(PACKAGE.rglob("*.py"))
OF_WING = set((PACKAGE / "continuous").rglob("*.py"))
CORE = names(PROJECT["dependencies"])
EXTRAS = {extra: names(lines) for extra, lines in PROJECT["optional-dependencies"].items()}


def test_what_the_core_imports_is_listed_for_it_or_in_an_extra() -> None:
    found = imported(*(FILES - OF_WING))
    of_extras = set().union(
        *(each for extra, each in EXTRAS.items() if extra not in ("dev", "docs"))
    )
    assert found - CORE - of_extras - GUESTS - OF_OTHERS == set(), "list these in pyproject.toml"
    assert CORE - found == set(), "the core imports none of these: leave them out"


def test_what_continuous_training_imports_is_listed_for_the_core_or_in_its_extra() -> None:
    found = imported(*OF_WING)
    assert found - CORE - EXTRAS["continuous"] == set(), "list these in the extra continuous"
    assert EXTRAS["continuous"] - imported(*FILES) == set(), "nothing imports these: leave them out"


@pytest.mark.parametrize("listed", [CORE, EXTRAS["continuous"]], ids=["core", "continuous"])
def test_each_listed_package_has_its_reason_in_the_documentation(listed: set[str]) -> None:
    page = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    section = page.partition("## Dependencies\n")[2].partition("\n## ")[0]
    reasons = set(re.findall(r"^- \*\*([\w.-]+)\*\*", section, flags=re.MULTILINE))
    assert listed - reasons == set(), "docs/development.md says nothing of these"


def test_a_plain_installation_has_few_direct_dependencies() -> None:
    assert len(CORE) <= 23
