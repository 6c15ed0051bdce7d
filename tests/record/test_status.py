"""A run is running while a process holds it; its end is read where one was written."""

from rlforge.record.files import create_run, read_json
from rlforge.record.progress import Progress
from rlforge.record.status import read_progress, read_summary, why_it_ended, write_end, write_start
from rlforge.system.locks import RunLock
from rlforge.system.values import from_json


def test_a_run_is_running_while_a_process_holds_it(tmp_path):
    run = create_run(tmp_path)
    write_start(run, "demo", 8)
    assert read_summary(run)["status"] == "running"  # as long as there is no file of a lock
    with RunLock(tmp_path):
        write_start(run, "demo", 8)
        updates = {"updates": 0, "total_updates": 8}
        assert read_summary(run) == {"run_name": "demo", "status": "running", **updates}
        assert from_json(Progress, read_progress(run)).status == "running"
    # Its process has neither written how it ended nor holds the lock.
    assert read_summary(run)["status"] == read_progress(run)["status"] == "killed"
    assert read_json(run.summary)["status"] == "running"
    with RunLock(tmp_path):
        write_start(run, "demo", 8)
        write_end(run, "failed", "the learner died")
    assert (read_summary(run)["status"], read_progress(run)["status"]) == ("failed", "failed")
    assert why_it_ended(read_summary(run)) == "failed: the learner died"
    with RunLock(tmp_path):
        write_start(run, "demo", 8)
        assert "error" not in read_summary(run)
