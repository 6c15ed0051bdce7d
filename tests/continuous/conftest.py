"""A clock, trackers and a recorded run."""

from tests.harness.records import clock, full_run, new_tracker, own_run, tracker

__all__ = ["clock", "full_run", "new_tracker", "own_run", "tracker"]
