"""Runs over a store, first windows by the wall clock, and what goes to the hub when."""

import hashlib
import json
import logging

import pyarrow.parquet as pq
import pytest
from tests import factories

from rlforge.continuous.config.continuous import StoreConfig
from rlforge.continuous.decisions.records import WindowGrid, window_start
from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.continuous.loop.sources import DailyPush, first_window
from rlforge.errors import RlforgeError, RunError, counted
from rlforge.record.files import read_jsonl


def from_store(store):
    return ("continuous.source=store", f"store.path={store}", "continuous.windows=null")


def rows(run_dir):
    return read_jsonl(run_dir / "windows.jsonl")


def digests(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_run_learns_from_all_windows_of_another_runs_store_and_from_those_that_come_meanwhile(
    make_config, execute
):
    played = execute(make_config("continuous.windows=1", "continuous.compare_episodes=0"), "played")
    config = make_config(*from_store(played / "store"))
    learned = execute(config, "learned")
    assert [row["version"] for row in rows(learned)] == ["step-1"]
    execute(make_config("continuous.windows=3", "continuous.compare_episodes=0"), "played")
    before = digests(played / "store")
    execute(config, "learned")
    assert [row["window_id"] for row in rows(learned)] == [row["window_id"] for row in rows(played)]
    assert [row["version"] for row in rows(learned)] == ["step-1", "step-2", "step-3"]
    # Decisions of version 2 are learned from by version 1, and none is stale.
    assert [row["batch/stale"] for row in rows(learned)] == [0, 0, 0]
    assert not any("lag_max" in row for row in read_jsonl(learned / "metrics.jsonl"))
    assert digests(played / "store") == before
    assert not (learned / "store").exists()
    comparison = json.loads((learned / "comparison.json").read_text())
    assert comparison["after"]["version"] == "step-3"


def test_a_store_without_decisions_or_with_those_of_another_tokenizer_is_refused(
    make_config, execute, tmp_path
):
    config = make_config(*from_store(tmp_path / "store"))
    with TrajectoryStore(tmp_path / "store") as store:
        with pytest.raises(RunError, match="holds no decisions to learn from"):
            execute(config, "learned")
        store.append([factories.decision(1, tokens=(9,))])
    with pytest.raises(RunError, match=r"agent-1-1 are not its answer '\[hold\]' in this model's"):
        execute(config, "again")


@pytest.mark.parametrize(
    ("minute", "first", "left"),
    # Ticks at 10:05 to 10:25 are the five that an agent needs.
    [(0, "10:00", None), (4.9, "10:00", None), (5, "10:30", 4), (29.9, "10:30", 0)],
)
def test_a_window_that_too_few_ticks_are_left_of_is_not_the_first(make_config, minute, first, left):
    keys = ("window.minutes=30", "window.min_trajectories_per_agent=5", "market.tick_minutes=5")
    now = window_start("2024-11-13-10:00") + minute * 60
    window, said = first_window(make_config(*keys), WindowGrid(30), now)
    assert window == f"2024-11-13-{first}"
    if left is None:
        assert said == ""
    else:
        assert f"needs 5 decisions in it, and {left} of its ticks are left" in said
    rolling = make_config(*keys, "window.mode=rolling")
    assert first_window(rolling, WindowGrid(30), now) == ("2024-11-13-10:00", "")


def test_ticks_that_are_left_are_counted_in_spite_of_rounding(make_config):
    keys = ("window.minutes=0.05", "market.tick_minutes=0.005")
    config = make_config(*keys, "window.min_trajectories_per_agent=10")
    begin = window_start("2026-11-30-12:00")
    # Ten ticks a window: the first is over as soon as it begins.
    for window in range(2000):
        now = begin + 3 * window + 0.1
        first, _ = first_window(config, WindowGrid(0.05), now)
        assert window_start(first) == begin + 3 * (window + 1)


# ---------------------------------------------------------------- the hub


HOUR = 3600.0
#: 2024-11-13 00:00 UTC.
MIDNIGHT = 1731456000.0


class Hub:
    """Takes what is pushed; fails while ``down``."""

    def __init__(self):
        self.down = False
        self.pushed = []

    def __call__(self, folder, repo, message, **options):
        if self.down:
            raise RlforgeError(f"{repo} was not pushed: no network")
        rows = sum(len(pq.read_table(path)) for path in (folder / "data").iterdir())
        assert message == counted(rows, "decision")
        assert options["kind"] == "dataset"
        assert not options["kept"], "the folder is a temporary one"
        self.pushed.append((repo, rows, options["public"]))


@pytest.fixture
def store(tmp_path):
    with TrajectoryStore(tmp_path / "store") as opened:
        opened.append([factories.decision(1)])
        yield opened


async def hours(push, first, last):
    for hour in range(first, last):
        await push.after_window(MIDNIGHT + hour * HOUR, MIDNIGHT + (hour + 1) * HOUR)


async def test_all_decisions_are_pushed_once_a_day_also_after_a_restart(tmp_path, store):
    hub = Hub()
    config = StoreConfig(push="me/market", push_hour=2)
    await hours(DailyPush(config, store, tmp_path, hub), 0, 20)
    assert hub.pushed == [("me/market", 1, False)]
    store.append([factories.decision(2)])
    restarted = DailyPush(config, store, tmp_path, hub)
    await hours(restarted, 20, 25)
    assert len(hub.pushed) == 1
    await hours(restarted, 25, 48)
    assert hub.pushed[1:] == [("me/market", 2, False)]


async def test_a_day_that_passed_while_no_process_ran_is_made_up_for(tmp_path, store):
    hub, config = Hub(), StoreConfig(push="me/market")
    await hours(DailyPush(config, store, tmp_path, hub), 0, 4)
    await hours(DailyPush(config, store, tmp_path, hub), 40, 42)
    assert len(hub.pushed) == 2


async def test_what_fails_is_tried_again_after_the_next_window(tmp_path, store, caplog):
    hub = Hub()
    push = DailyPush(StoreConfig(push="me/market"), store, tmp_path, hub)
    hub.down = True
    with caplog.at_level(logging.WARNING):
        await hours(push, 0, 3)
    assert "no network; it is tried again after the next window" in caplog.text
    hub.down = False
    await hours(push, 3, 6)
    assert hub.pushed == [("me/market", 1, False)]


async def test_without_a_dataset_nothing_is_pushed(tmp_path, store):
    hub = Hub()
    await hours(DailyPush(StoreConfig(), store, tmp_path, hub), 0, 48)
    assert hub.pushed == []
