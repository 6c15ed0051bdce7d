"""benchmarks/release.sh runs all tests of its tier."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "release.sh"


def test_each_file_with_tests_of_a_release_is_in_a_part():
    text = SCRIPT.read_text()
    places = [ROOT / path for path in re.findall(r"\btests/[\w./]+", text)]
    marked = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark.release" in path.read_text() and path != Path(__file__)
    ]
    assert len(marked) > 5
    assert [path for path in marked if not any(map(path.is_relative_to, places))] == []


def test_an_unknown_part_is_refused_with_those_that_there_are():
    done = subprocess.run([SCRIPT, "wheels"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    parts = done.stderr.partition("the parts are: ")[2].split()
    assert parts
    assert all(f"\n{part}() {{" in SCRIPT.read_text() for part in parts)
