"""A run's config.yaml that is not as it was written is not read."""

import pytest

from rlforge.config.compose import compose, from_yaml, run_yaml
from rlforge.errors import DamagedError

CONFIG = compose(["+experiment=kuhn_grpo"]).config


@pytest.fixture(params=["", "made longer, from 4 to 6 at 4"], ids=["plain", "with a comment"])
def file(tmp_path, request):
    path = tmp_path / "config.yaml"
    path.write_text(run_yaml(CONFIG, request.param))
    return path


def test_what_was_written_is_read_with_any_ends_of_lines(file):
    assert from_yaml(file) == CONFIG
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert from_yaml(file) == CONFIG


def test_a_file_that_is_cut_at_any_place_is_refused(file):
    content = file.read_bytes()
    for length in (*range(140), *range(140, len(content), 97), len(content) - 1):
        file.write_bytes(content[:length])
        with pytest.raises(
            DamagedError, match=r"config\.yaml: (is cut short|is empty|not a mapping)"
        ):
            from_yaml(file)


def test_a_change_by_hand_is_refused_until_the_first_line_is_deleted(file):
    text = file.read_text().replace("seed: 0", "seed: 3")
    file.write_text(text)
    with pytest.raises(DamagedError, match="delete that line if the change is meant"):
        from_yaml(file)
    file.write_text(text.partition("\n")[2])
    assert from_yaml(file).seed == 3


def test_a_folder_in_place_of_the_file_is_named(file):
    file.unlink()
    file.mkdir()
    with pytest.raises(DamagedError, match=r"config\.yaml: is a folder; restore the file from a"):
        from_yaml(file)
