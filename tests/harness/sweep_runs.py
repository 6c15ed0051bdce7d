"""A small sweep as rlforge writes it, for tests of what reads sweeps."""

from tests.factories import SHARES, evaluation, update

from rlforge.config.schema import TrackerConfig
from rlforge.record.sweeps import write_sweep
from rlforge.record.tracker import Tracker

SHARED = ("+experiment=demo",)
#: Seed and learning rate of each job, and its wins of 100 games at the end.
JOBS = ((0, 0.001, 40), (0, 0.01, 60), (1, 0.001, 50), (1, 0.01, 90))
GRID = [[*SHARED, f"seed={seed}", f"learner.learning_rate={rate}"] for seed, rate, _ in JOBS]


def write_job(sweep, number, *, done=True):
    """A job of ``JOBS``: two updates, evaluated before and, where it is done, after them."""
    run, (seed, rate, wins) = sweep / str(number), JOBS[number]
    tracker = Tracker(run, TrackerConfig(), "demo", 2, ())
    (run / "command.txt").write_text(f"rlforge train {' '.join(GRID[number])}\n")
    (run / "config.yaml").write_text(
        f"name: demo\nseed: {seed}\nrun_dir: {run}\n"
        f"learner: {{learning_rate: {rate}, betas: [0.9, 0.99]}}\nrewards: {{}}\n"
    )
    tracker.add_eval(evaluation(0, 30))
    for version in (1, 2):
        tracker.log_learner(update(version), SHARES)
    if done:
        tracker.add_eval(evaluation(2, wins))
        tracker.close({"status": "done", "objective": wins / 100})
    return run


def write_jobs(sweep, jobs=(0, 1, 2, 3)):
    """A sweep over ``JOBS`` of which ``jobs`` are done and the others have not started."""
    sweep.mkdir(parents=True)
    write_sweep(sweep, SHARED, GRID)
    for number in jobs:
        write_job(sweep, number)
    return sweep
