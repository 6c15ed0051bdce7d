"""benchmarks/mutants.py finds the same places in two versions of a file, and changes them."""

from __future__ import annotations

import ast
import importlib

import pytest

SOURCE = '''
"""A module."""
LIMIT: Annotated[int, 3] = 7

def least(of, known=True):
    """A docstring."""
    self.calls += 1
    if not known and of < LIMIT:
        print(of)
    return of * 2 if known else None
'''


@pytest.fixture
def mutants(on_path):
    return importlib.import_module("mutants")


def planted(mutants, *place):
    module, known = mutants.places("m.py", SOURCE)
    known["m.py", *place]()
    return ast.unparse(ast.fix_missing_locations(module))


def test_what_can_be_changed(mutants):
    places = {place[1:] for place in mutants.places("m.py", SOURCE)[1]}
    condition, result = "if not known and of < LIMIT:", "return of * 2 if known else None"
    assert places == {
        ("LIMIT: Annotated[int, 3] = 7", "7 to 8", 0),
        ("def least(of, known=True):", "True to False", 0),
        ("self.calls += 1", "left out", 0),
        ("self.calls += 1", "Add to Sub", 0),
        ("self.calls += 1", "1 to 2", 0),
        (condition, "negated", 0),
        (condition, "negated", 1),
        (condition, "And to Or", 0),
        (condition, "Lt to LtE", 0),
        ("print(of)", "left out", 0),
        (result, "negated", 0),
        (result, "Mult to Div", 0),
        (result, "2 to 3", 0),
    }


@pytest.mark.parametrize(
    ("place", "changed"),
    [
        (("if not known and of < LIMIT:", "Lt to LtE", 0), "if not known and of <= LIMIT:"),
        (("if not known and of < LIMIT:", "negated", 1), "if not not known and of < LIMIT:"),
        (("print(of)", "left out", 0), "LIMIT:\n        pass\n"),
        (("return of * 2 if known else None", "negated", 0), "of * 2 if not known else None"),
    ],
)
def test_one_place_is_changed(mutants, place, changed):
    assert changed in planted(mutants, *place)
    assert len(planted(mutants, *place).splitlines()) == len(
        ast.unparse(ast.parse(SOURCE)).splitlines()
    )


def test_a_place_is_found_again_where_other_lines_have_moved(mutants):
    places = mutants.places("m.py", SOURCE)[1].keys()
    assert mutants.places("m.py", f"import os\n\n{SOURCE}\nX = 5\n")[1].keys() > places
