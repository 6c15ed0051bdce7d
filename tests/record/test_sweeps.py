"""sweep.json, and which job of a sweep a run is."""

from tests.harness.sweep_runs import GRID, SHARED, write_jobs

from rlforge.record.files import create_run
from rlforge.record.sweeps import (
    FAILED,
    Job,
    all_jobs,
    job_label,
    job_of,
    members,
    under_way,
    waiting,
    write_sweep,
)
from rlforge.system.locks import RunLock


def test_a_job_knows_its_number_and_what_only_it_has(tmp_path):
    sweep = write_jobs(tmp_path / "sweep", ())
    overrides = ("seed=1", "learner.learning_rate=0.001")
    assert job_of(sweep / "2") == Job(number=2, total=4, overrides=overrides)
    assert job_label(sweep / "2") == "3/4 seed=1 learning_rate=0.001"
    create_run(tmp_path / "0")  # a run of its own
    assert (job_of(tmp_path / "0"), job_label(tmp_path / "0")) == (None, "")


def test_jobs_that_a_sweeper_chooses_have_no_total(tmp_path):
    write_sweep(tmp_path, SHARED, None)
    assert job_of(tmp_path / "7", GRID[3]) == Job(
        number=7, total=None, overrides=("seed=1", "learner.learning_rate=0.01")
    )
    run = create_run(tmp_path / "7")
    run.command.write_text("rlforge train +experiment=demo 'name=a b' --config-dir x=y\n")
    assert job_label(run.root) == "8 name=a b x=y"


def test_long_overrides_are_not_in_every_line():
    long = Job(number=0, total=2, overrides=(f"env.train.0.id={'x' * 60}",))
    assert long.label == "1/2"
    assert str(long).endswith("x" * 60)


def test_jobs_stand_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 9, 0):
        create_run(tmp_path / str(number)).config.write_text("seed: 0\n")
    (tmp_path / "11").mkdir()
    (tmp_path / "11" / FAILED).write_text("no such model\n")
    create_run(tmp_path / "②").config.write_text("seed: 0\n")  # a digit, and no number to Python
    assert [path.name for path in members(tmp_path)] == ["0", "9", "10", "11", "②"]


def test_the_overrides_of_jobs_that_have_not_begun_are_known(tmp_path):
    sweep = write_jobs(tmp_path / "sweep", (0, 2))
    (sweep / "1").mkdir()
    (sweep / "1" / FAILED).touch()
    assert waiting(sweep) == {sweep / "3": GRID[3]}


def test_jobs_that_have_not_started_are_known_and_a_sweep_goes_on_between_two(tmp_path):
    sweep = write_jobs(tmp_path / "sweep", (0,))
    assert [path.name for path in members(sweep)] == ["0"]
    assert [path.name for path in all_jobs(sweep)] == ["0", "1", "2", "3"]
    with RunLock(sweep):
        assert under_way(sweep)
    assert not under_way(sweep)
