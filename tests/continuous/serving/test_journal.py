"""The journal reads back what it wrote, and a damaged file is replaced by its copy."""

import contextlib
import logging

import pytest

from rlforge.continuous.serving.journal import BACKUP, FILE, Journal, read_history
from rlforge.continuous.serving.records import Check, TrialOutcome
from rlforge.errors import DeploymentError


@contextlib.contextmanager
def _journal(folder):
    journal = Journal(folder)
    try:
        yield journal
    finally:
        journal.close()


def _promoted(journal, count):
    for _ in range(count):
        begun = journal.begin("somewhere", strategy="replace")
        journal.promote(begun.number)


def test_a_deployment_is_read_back_as_it_was_written(tmp_path):
    checks = (Check(name="fit", passed=True, detail="rank 4"),)
    with _journal(tmp_path) as journal:
        journal.begin("base", strategy="replace")
        journal.begin("/runs/a", strategy="ab_test", updates=40, phase="validating")
        journal.advance(1, "checkpointing", checks=checks)
        written = journal.advance(1, "swapping", path=str(tmp_path / "versions/deploy-1"))
    with _journal(tmp_path) as journal:
        assert journal.history()[1] == written
    assert read_history(tmp_path)[1] == written
    assert (written.uid, written.updates, written.checks) == ("deploy-1", 40, checks)


def test_places_in_the_run_follow_it_where_it_is_moved(tmp_path):
    state = tmp_path / "run" / "deployments"
    state.mkdir(parents=True)
    with _journal(state) as journal:
        journal.begin("base", strategy="replace")
        own = journal.begin(str(tmp_path / "run/checkpoints/step-1"), strategy="replace")
        journal.advance(1, "swapping", path=str(state / "versions" / "deploy-1"))
        other = journal.begin(str(tmp_path / "run-2/checkpoints/step-1"), strategy="replace")
        assert own.source == "checkpoints/step-1"
        assert other.source == str(tmp_path / "run-2/checkpoints/step-1")
    moved = (tmp_path / "run").rename(tmp_path / "moved") / "deployments"
    with _journal(moved) as journal:
        _, again, _ = journal.history()
        assert again.path == str(moved / "versions" / "deploy-1")
        assert again.source == "checkpoints/step-1"


def test_going_back_takes_the_later_versions_off_the_stack(tmp_path):
    with _journal(tmp_path) as journal:
        _promoted(journal, 4)
        assert [d.number for d in journal.live()] == [3, 2, 1, 0]
        assert [d.phase for d in journal.history()] == ["former"] * 3 + ["live"]
        journal.go_back_to(1, "worse")
        assert [d.number for d in journal.live()] == [1, 0]
        phases = [d.phase for d in journal.history()]
        assert phases == ["former", "live", "rolled_back", "rolled_back"]
        assert journal.history()[3].reason == "worse"
        _promoted(journal, 1)
        assert [d.number for d in journal.live()] == [4, 1, 0]


def test_an_outcome_counts_once(tmp_path):
    first = TrialOutcome(arm="new", reward=1.0, cluster="agent-1/3", stage="3")
    second = TrialOutcome(arm="current", reward=0.5)
    with _journal(tmp_path) as journal:
        _promoted(journal, 1)
        assert journal.add_outcome(0, first, "answer-1")
        assert not journal.add_outcome(0, first, "answer-1")
        assert journal.add_outcome(0, second, None)
        assert journal.add_outcome(0, second, None)
    with _journal(tmp_path) as journal:
        assert journal.outcomes(0) == [first, second, second]


@pytest.mark.parametrize("damage", ["overwritten", "truncated", "emptied"])
def test_a_damaged_file_is_replaced_by_its_copy(tmp_path, damage, caplog):
    with _journal(tmp_path) as journal:
        _promoted(journal, 3)
        journal.back_up()
    file = tmp_path / FILE
    whole = file.read_bytes()
    cut = {"overwritten": b"x" * len(whole), "truncated": whole[:5000], "emptied": b""}
    file.write_bytes(cut[damage])
    with caplog.at_level(logging.ERROR, logger="rlforge"), _journal(tmp_path) as journal:
        assert [d.number for d in journal.live()] == [2, 1, 0]
        _promoted(journal, 1)
    assert str(file) in caplog.text
    assert [p.read_bytes() for p in tmp_path.glob(f"{FILE}.damaged-*")] == [cut[damage]]


def test_transactions_are_synced_and_a_full_disk_changes_nothing(tmp_path):
    with _journal(tmp_path) as journal:
        assert journal.database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert journal.database.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL
        _promoted(journal, 1)
        (pages,) = journal.database.execute("PRAGMA page_count").fetchone()
        journal.database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DeploymentError, match="full"):
            journal.begin("x" * 100_000, strategy="replace")
        assert [d.number for d in journal.history()] == [0]
        journal.database.execute("PRAGMA max_page_count = 100000")
        assert journal.begin("x", strategy="replace").number == 1


def test_a_copy_that_cannot_be_made_is_only_logged(tmp_path, caplog):
    with _journal(tmp_path) as journal:
        _promoted(journal, 1)
        (tmp_path / BACKUP).mkdir()
        with caplog.at_level(logging.WARNING, logger="rlforge"):
            journal.back_up()
    assert "no copy of" in caplog.text


def test_a_folder_without_a_service_has_no_history_and_one_with_damage_is_an_error(tmp_path):
    assert read_history(tmp_path) == []
    (tmp_path / FILE).write_bytes(b"no database at all" * 100)
    with pytest.raises(DeploymentError, match="cannot be read"):
        read_history(tmp_path)
    with pytest.raises(DeploymentError, match=rf"{FILE} is damaged.*move it away"):
        Journal(tmp_path)
