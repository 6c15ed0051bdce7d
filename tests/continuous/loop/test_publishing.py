"""When the decisions of a run go to the hub, and what goes there."""

import logging

import pyarrow.parquet as pq
import pytest
from tests import factories

from rlforge.continuous.config.continuous import StoreConfig
from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.continuous.loop.publishing import DailyPush
from rlforge.errors import RlforgeError, counted

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
