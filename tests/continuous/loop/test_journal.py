"""The journal: phases in order, one window after the other, kept over a restart."""

import pytest

from rlforge.continuous.loop.journal import PHASES, Journal, check_windows_left
from rlforge.errors import DamagedError, RunError
from rlforge.record.files import write_jsonl


def test_a_window_goes_through_its_phases_and_keeps_their_facts(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    assert journal.current() is None
    entry = journal.begin("2024-11-13-10:00")
    for phase in PHASES[1:]:
        assert not entry.reached(phase)
        entry = journal.reach(entry, phase, note=phase)
        assert entry.reached(phase)
    journal.close()

    again = Journal(tmp_path / "journal.sqlite")
    assert again.entries() == [entry]
    assert again.last() == entry
    assert again.current() is None
    assert again.entries()[0].facts["trained"] == {"note": "trained"}


def test_the_window_under_way_is_found_again(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    first = journal.begin("a")
    for phase in PHASES[1:]:
        first = journal.reach(first, phase)
    second = journal.reach(journal.begin("b"), "collected")
    journal.close()
    again = Journal(tmp_path / "journal.sqlite")
    assert again.current() == second
    assert again.done() == 1
    assert second.number == 2


def test_phases_are_not_skipped_and_windows_do_not_overlap(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    entry = journal.begin("a")
    with pytest.raises(AssertionError, match="begun to trained"):
        journal.reach(entry, "trained")
    with pytest.raises(AssertionError, match="one window after the other"):
        journal.begin("b")


def test_a_file_that_is_no_journal_is_one_message(tmp_path):
    path = tmp_path / "journal.sqlite"
    path.write_text("this is no database, however long it goes on" * 100)
    with pytest.raises(RunError, match=r"journal\.sqlite: file is not a database.*--resume"):
        Journal(path)


def test_an_emptied_journal_does_not_let_the_run_begin_again(tmp_path):
    window = {"window": 1, "window_id": "2024-11-13-10:00"}
    write_jsonl(tmp_path / "windows.jsonl", [window])
    (tmp_path / "journal.sqlite").touch()
    lacks = r"journal\.sqlite is damaged \(it has 0 windows, and windows\.jsonl has 1\); put a copy"
    with pytest.raises(DamagedError, match=lacks):
        check_windows_left(tmp_path, None)
