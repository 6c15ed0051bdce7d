"""Messages lead to what an installed package has."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_no_message_points_to_a_file_of_the_repository():
    pages = r"(?<!/main/)\b(?:docs/\w+\.md|see README|constraints\.txt)"
    generators = ("config/docs.py", "config/schema.py")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (ROOT / "src").rglob("*.py")
        if not str(path).endswith(generators)
        for line in path.read_text().splitlines()
        if re.search(pages, line) and '"' in line.replace('"""', "")
    ]
    assert found == []
