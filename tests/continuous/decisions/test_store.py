"""Acknowledged rows survive kills of the process and failures of the disk."""

import contextlib
import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlforge.continuous.config.continuous import StoreConfig
from rlforge.continuous.decisions.layout import StoreLayout
from rlforge.continuous.decisions.open_windows import OpenWindows
from rlforge.continuous.decisions.reader import StoreReader
from rlforge.continuous.decisions.records import Metadata
from rlforge.continuous.decisions.store import TrajectoryStore, store_folder
from rlforge.continuous.decisions.windows import activity_of
from rlforge.errors import RlforgeError, RunError, StoreError

from .conftest import TEN, Make

#: So small that only the window written last stays open.
TINY = 1e-6


def room_for(states, make):
    """Windows with so many states may stay open."""
    size = len(json.dumps(make(0).state, separators=(",", ":")))
    return states * size / 2**20


def closed(root):
    """The windows that are in files."""
    return [file.window_id for file in StoreLayout(root=root).files()]


def all_ids(reader):
    return [decision.id for decision in reader.decisions()]


def test_another_reader_sees_decisions_at_once(tmp_path, make):
    decisions = [make.whole(number) for number in range(4)] + [make(4)]
    with TrajectoryStore(tmp_path / "store") as store:
        reader = StoreReader(tmp_path / "store")
        assert reader.decisions() == []
        assert store.append(decisions[:3]) == 3
        assert reader.decisions() == decisions[:3]
        assert store.append(decisions[3:]) == 2
        assert reader.decisions() == store.decisions() == decisions
    assert reader.decisions() == decisions
    assert closed(tmp_path / "store") == [decisions[0].window_id]


def test_an_outcome_completes_its_decision_in_any_file_or_log(tmp_path, make):
    decisions = [make(number) for number in range(3)]
    outcomes = [make.outcome(decision, reward=0.1) for decision in decisions]
    with TrajectoryStore(tmp_path) as store:
        store.append(decisions[:1])
        store.compact()
        store.append(decisions[1:])
        assert store.complete(outcomes[:2]) == 2
        store.compact()
        store.complete(outcomes[2:])
        back = store.decisions()
    assert [decision.reward for decision in back] == [0.1] * 3
    assert all(d.complete and d.result == make.result() for d in back)
    assert back == StoreReader(tmp_path).decisions()


class Counted(Mapping):
    """A state that counts how often it is read."""

    def __init__(self, content):
        self.content, self.reads = content, 0

    def __getitem__(self, key):
        return self.content[key]

    def __iter__(self):
        self.reads += 1
        return iter(self.content)

    def __len__(self):
        return len(self.content)


def test_a_state_is_read_once_however_often_its_window_is_written(tmp_path, make):
    states = [Counted(make(number).state) for number in (0, 1)]
    with TrajectoryStore(tmp_path) as store:
        store.append([make.whole(0, state=states[0]), make(1, state=states[1])])
        reads = [state.reads for state in states]
        outcome = make.outcome(make(1))
        store.complete([outcome])
        store.compact()
        known = {name: getattr(outcome, name) for name in ("reward", "next_state", "result")}
        assert store.decisions() == [make.whole(0), dataclasses.replace(make(1), **known)]
    assert [state.reads for state in states] == reads == [1, 1]


def test_the_windows_written_last_stay_open_within_their_size(tmp_path, make):
    with TrajectoryStore(tmp_path / "one", room_for(4.5, make)) as store:
        for minute in (0, 60, 120, 180, 61):
            store.append([make(minute)])
        assert closed(tmp_path / "one") == ["2024-11-13-10:00"]
        assert store.count() == 5
    assert len(closed(tmp_path / "one")) == 4
    with TrajectoryStore(tmp_path / "two", room_for(4.5, make)) as store:
        store.append([make(0), make(60), make(61)])
        assert closed(tmp_path / "two") == []
        store.complete([make.outcome(make(n)) for n in (60, 61, 0)])  # outcomes need room, too
        assert len(closed(tmp_path / "two")) == 1


def test_the_windows_of_a_killed_writer_keep_their_order_and_size(tmp_path, make):
    root, late = tmp_path / "store", tmp_path / "killed"
    with TrajectoryStore(root) as store:
        for minute in (60, 0, 120):
            store.append([make(minute)])
        shutil.copytree(root, late)
    with TrajectoryStore(late, room_for(3.5, make)) as store:
        store.append([make(121)])
        assert closed(late) == ["2024-11-13-11:00"]


def test_repeated_decisions_and_outcomes_are_skipped(tmp_path, make):
    decisions = [make(number) for number in range(3)]
    with TrajectoryStore(tmp_path, TINY) as store:
        assert store.append(decisions[:2]) == 2
        assert store.append(decisions) == 1
        assert store.complete([make.outcome(decisions[0], reward=0.1)]) == 1
        assert store.complete([make.outcome(decisions[0], reward=0.9)]) == 0
    with TrajectoryStore(tmp_path, TINY) as store:
        assert store.append(decisions) == 0
        assert store.complete([make.outcome(d, reward=0.9) for d in decisions]) == 2
        assert store.append([]) == store.complete([]) == 0
        assert [d.reward for d in store.decisions()] == [0.1, 0.9, 0.9]
        odd = make(9, id="half \ud83d of a sign")
        assert (store.append([odd]), store.append([odd])) == (1, 0)
        assert store.complete([make.outcome(odd)]) == 1
        assert store.decisions()[-1].complete


def test_one_bad_decision_or_unknown_outcome_keeps_its_whole_batch_out(tmp_path, make):
    with TrajectoryStore(tmp_path) as store:
        with pytest.raises(RlforgeError, match="reward is nan"):
            store.append([make(1), make(2, reward=float("nan"))])
        assert store.count() == 0
        store.append([make(1)])
        with pytest.raises(RlforgeError, match="reward is inf"):
            store.complete([make.outcome(make(1), reward=float("inf"))])
        with pytest.raises(StoreError, match=r"no decision 'agent-0-000002' in .*"):
            store.complete([make.outcome(make(1)), make.outcome(make(2))])
        assert not store.decisions()[0].complete
        assert store.complete([make.outcome(make(1))]) == 1


def test_queries_by_window_and_agent(tmp_path, make):
    decisions = [
        make.whole(0, agent, id=f"{hour}{agent}{number}", timestamp=TEN + hour * 3600 + number)
        for hour in range(3)
        for agent in ("a", "b's")
        for number in range(hour + 1)
    ]
    with TrajectoryStore(tmp_path, 0.002) as store:
        for decision in decisions:
            store.append([decision])
        ids = ["2024-11-13-10:00", "2024-11-13-11:00", "2024-11-13-12:00"]
        assert store.window_ids() == ids
        expected = {d.id for d in decisions if d.window_id == ids[2]}
        assert {d.id for d in store.decisions(window_id=ids[2])} == expected
        expected = {d.id for d in decisions if d.agent_id == "b's"}
        assert {d.id for d in store.decisions(agent_id="b's")} == expected
        both = store.decisions(window_id=ids[1], agent_id="a")
        assert [(d.window_id, d.agent_id) for d in both] == [(ids[1], "a")] * 2
        assert (store.count(), store.count(ids[2]), store.count(ids[2], "a")) == (12, 6, 3)
        assert store.decisions(window_id="2030-01-01-00:00") == []
        times = [d.timestamp for d in store.decisions()]
        assert times == sorted(times)


def test_late_and_unordered_decisions_belong_to_the_window_of_their_time(tmp_path, make):
    decisions = [make.whole(number * 14) for number in range(20)]
    shuffled = random.Random(0).sample(decisions, len(decisions))
    with TrajectoryStore(tmp_path, TINY) as store:
        for start in range(0, len(shuffled), 3):
            store.append(shuffled[start : start + 3])
        windows = {window: store.decisions(window_id=window) for window in store.window_ids()}
    for window, found in windows.items():
        assert found == [d for d in decisions if make.grid.id_of(d.timestamp) == window]
    assert sum(map(len, windows.values())) == 20


def test_the_newest_complete_decisions_may_be_of_several_windows(tmp_path, make):
    decisions = [
        make.whole(number * 20) if number % 2 else make(number * 20) for number in range(12)
    ]
    with TrajectoryStore(tmp_path) as store:
        store.append(decisions)
        end = decisions[10].timestamp
        newest = store.newest_complete(4, before=end)
        assert [d.id for d in newest] == [decisions[n].id for n in (3, 5, 7, 9)]
        assert len(store.newest_complete(100, before=end)) == 5


def test_activity_agrees_with_the_decisions(tmp_path, make):
    decisions = [make.whole(n, f"a{n % 3}", reward=n / 8) for n in range(9)]
    decisions += [make(n, "a0") for n in range(20, 24)]
    decisions += [make(30, "a1", action={"type": "NO_OP"}), make(31, "a1", action={})]
    for number, problem in enumerate(("no money is left", "Your answer held no JSON action.")):
        action = {"type": ("BUY_SHARES", "NO_OP")[number], "problem": problem}
        decisions.append(make.whole(32 + number, "a2", reward=-1.0, action=action))
    scripted = Metadata(provider="scripted:noise")
    decisions.append(make.whole(34, "noise-1", metadata=scripted, reward=-0.875))
    with TrajectoryStore(tmp_path, TINY) as store:
        store.append(decisions)
        store.complete([make.outcome(make(21, "a0"))])
        assert store.activity() == activity_of(store.decisions(), "2024-11-13-10:00")


actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 30), max_size=4)),
        st.tuples(st.just("complete"), st.lists(st.integers(0, 30), max_size=3)),
        st.tuples(st.just("compact"), st.just([])),
        st.tuples(st.just("reopen"), st.just([])),
    ),
    max_size=10,
)


@settings(max_examples=12)
@given(actions, st.sampled_from([1e-6, 0.001, 32.0]))
def test_any_sequence_of_calls_ends_as_with_a_plain_dictionary(tmp_path_factory, history, open_mb):
    root, make = tmp_path_factory.mktemp("store"), Make()
    store = TrajectoryStore(root, open_mb)
    expected = {}
    for step, (what, numbers) in enumerate(history):
        if what == "append":
            store.append([make(n * 9, f"a{n % 2}") for n in numbers])
            expected |= {n: None for n in numbers if n not in expected}
        elif what == "complete":
            known = [n for n in numbers if n in expected]
            store.complete([make.outcome(make(n * 9, f"a{n % 2}"), reward=step) for n in known])
            expected |= {n: float(step) for n in known if expected[n] is None}
        elif what == "compact":
            store.compact()
        else:
            store.close()
            store = TrajectoryStore(root, open_mb)
    rewards = {d.id: d.reward for d in StoreReader(root).decisions()}
    store.close()
    assert rewards == {make(n * 9, f"a{n % 2}").id: reward for n, reward in expected.items()}


def test_many_threads_append_and_complete_concurrently(tmp_path, make):
    with TrajectoryStore(tmp_path, 0.01) as store:

        def live(agent):
            for number in range(10):
                decision = make(number, f"agent-{agent}")
                store.append([decision])
                store.complete([make.outcome(decision, reward=float(agent))])

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(live, range(8)))
        back = store.decisions()
    assert len(back) == 80
    assert all(d.reward == int(d.agent_id.removeprefix("agent-")) for d in back)


# ---------------------------------------------------------------- crashes

WRITE = """
import sys
from rlforge.continuous.decisions.store import TrajectoryStore
from tests.continuous.decisions.conftest import Make
make = Make()
first = int(sys.argv[2])
store = TrajectoryStore(sys.argv[1], 0.005)
print("open", flush=True)
for number in range(first, first + 100000):
    decision = make(number * 5)
    store.append([decision])
    print("a", number, flush=True)
    store.complete([make.outcome(decision)])
    print("c", number, flush=True)
"""


@pytest.mark.ray
def test_a_kill_at_any_moment_loses_no_acknowledged_row(tmp_path, make, caplog):
    appended = set()
    completed = set()
    root = Path(__file__).resolve().parents[3]
    for turn in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITE, str(tmp_path / "store"), str(turn * 100000)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"},
        )
        assert process.stdout.readline() == "open\n"
        lines = [process.stdout.readline() for _ in range(5 + 14 * turn)]
        time.sleep(0.007 * turn)
        process.send_signal(signal.SIGKILL)
        said = "".join(lines) + process.communicate()[0]
        for line in said.splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # killed while it said so: nothing is acknowledged
            kind, number = line.split()
            {"a": appended, "c": completed}[kind].add(make(int(number) * 5).id)
        found = StoreReader(tmp_path / "store").decisions()
        ids = [decision.id for decision in found]
        assert len(set(ids)) == len(ids)
        assert appended <= set(ids)
        assert completed <= {decision.id for decision in found if decision.complete}
        assert len(ids) <= len(appended) + turn + 1
    assert len(completed) > 20
    with TrajectoryStore(tmp_path / "store") as store:
        assert {*all_ids(store)} >= appended
        assert "is damaged" not in caplog.text


def test_interrupted_between_any_two_steps_nothing_is_lost_or_doubled(tmp_path, make, monkeypatch):
    """Windows are opened again and closed; every step on disk is, in turn, the last one."""

    class Killed(BaseException):
        pass

    def calls(store):
        store.append([make(3), make(63), make(123)])
        yield
        store.complete([make.outcome(make(n)) for n in (60, 61, 3)])
        yield
        store.compact()

    with TrajectoryStore(tmp_path / "built") as store:
        store.append([make(n) for n in (0, 1, 60, 61)])
    minutes = [{0, 1, 60, 61}, {0, 1, 3, 60, 61, 63, 123}]
    for last in range(60):
        root, after = tmp_path / str(last), tmp_path / f"{last}-after"
        shutil.copytree(tmp_path / "built", root)
        left, returned, ended = [last], 0, False

        def counted(do, left=left):
            def step(*arguments, **options):
                if not left[0]:
                    raise Killed
                left[0] -= 1
                return do(*arguments, **options)

            return step

        store = TrajectoryStore(root)
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", counted(os.replace))
            patch.setattr(Path, "unlink", counted(Path.unlink))
            for name in ("insert", "complete", "delete"):
                patch.setattr(OpenWindows, name, counted(getattr(OpenWindows, name)))
            try:
                for _ in calls(store):
                    returned += 1
                ended = True
            except Killed:
                pass
        shutil.copytree(root, after)  # what a killed process leaves
        store.close()
        for reader in (StoreReader(after), TrajectoryStore(after)):
            found = reader.decisions()
            assert {make(n).id for n in minutes[returned > 0]} <= {d.id for d in found}, last
            assert len({d.id for d in found}) == len(found), last
            complete = {d.id for d in found if d.complete}
            assert complete == {make(n).id for n in (60, 61, 3) if returned > 1} or (
                returned == 1 and complete == {make(n).id for n in (60, 61, 3)}
            ), last
            reader.close()
        assert closed(after) == sorted({d.window_id for d in found}), last
        if ended:
            break
    else:
        raise AssertionError("never came to an end")
    assert last > 8


def test_one_process_writes_at_a_time_and_many_read(tmp_path, make):
    with TrajectoryStore(tmp_path) as store:
        store.append([make(1)])
        with pytest.raises(RunError, match=f"in use by process {os.getpid()}"):
            TrajectoryStore(tmp_path)
        readers = [StoreReader(tmp_path) for _ in range(3)]
        assert [reader.count() for reader in readers] == [1, 1, 1]
    store.close()
    with TrajectoryStore(tmp_path) as store:
        assert store.count() == 1


def test_a_reader_may_read_while_windows_are_closed_and_opened_again(tmp_path, make):
    with TrajectoryStore(tmp_path, TINY) as store:
        reader = StoreReader(tmp_path)
        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(
                lambda: [
                    store.append([make.whole(n, timestamp=TEN + 3600 * (n % 2) + n)])
                    for n in range(16)
                ]
            )
            seen = [0]
            while not writing.done():
                seen.append(len({d.id for d in reader.decisions()}))
        writing.result()
        seen.append(reader.count())
    assert seen == sorted(seen)
    assert seen[-1] == 16


# ---------------------------------------------------------------- disks and files


@pytest.mark.parametrize("harm", ["truncate", "flip", "empty"])
def test_a_damaged_file_is_named_once_and_the_rest_is_served(tmp_path, make, caplog, harm):
    with TrajectoryStore(tmp_path) as store:
        for number in (1, 61, 121):
            store.append([make.whole(number)])
            store.compact()
    bad = StoreLayout(root=tmp_path).files()[1].path
    data = bytearray(bad.read_bytes())
    if harm == "flip":
        data[len(data) // 2] ^= 1
    bad.write_bytes({"truncate": data[:-10], "flip": data, "empty": b""}[harm])
    reader = StoreReader(tmp_path)
    for _ in range(2):
        assert all_ids(reader) == ["agent-0-000001", "agent-0-000121"]
    assert caplog.text.count(f"{bad} is damaged") == 1
    with TrajectoryStore(tmp_path, TINY) as store:
        store.append([make.whole(62)])
        assert store.count() == 3
    assert StoreReader(tmp_path).count() == 3
    assert bad.exists()


def test_a_file_damaged_after_its_check_is_found_when_a_query_fails(tmp_path, make, caplog):
    with TrajectoryStore(tmp_path) as store:
        for number in (1, 61):
            store.append([make.whole(number)])
            store.compact()
    reader = StoreReader(tmp_path)
    assert reader.count() == 2
    bad = StoreLayout(root=tmp_path).files()[0].path
    bad.write_bytes(b"nothing")
    assert all_ids(reader) == ["agent-0-000061"]
    assert f"{bad} is damaged" in caplog.text


def test_a_damaged_database_is_named_with_the_mend(tmp_path, make):
    with TrajectoryStore(tmp_path) as store:
        store.append([make.whole(1)])
    database = StoreLayout(root=tmp_path).open_windows
    database.write_bytes(b"no database" * 1000)
    message = rf"{database.name} is damaged \(file is not a database\); move it away to use the oth"
    for use in (lambda: StoreReader(tmp_path).decisions(), lambda: TrajectoryStore(tmp_path)):
        with pytest.raises(StoreError, match=message):
            use()
    database.unlink()
    with TrajectoryStore(tmp_path) as store:
        assert store.count() == 1
        with contextlib.closing(sqlite3.connect(database)) as other:
            other.execute("DROP TABLE decisions")
        for use in (lambda: store.append([make.whole(2)]), StoreReader(tmp_path).count):
            with pytest.raises(StoreError, match=rf"{database.name} cannot be used: no such table"):
                use()


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_clear_error_and_nothing_is_half_written(tmp_path, make, monkeypatch):
    connections = []

    def connect(*arguments, **options):
        connections.append(connected(*arguments, **options))
        return connections[-1]

    connected = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    with TrajectoryStore(tmp_path) as store:
        writer = connections[0]
        assert writer.execute("PRAGMA synchronous").fetchone() == (2,)  # every commit is synced
        store.append([make(1)])
        writer.execute("PRAGMA max_page_count = 1")  # no page more than there are
        message = rf"no space on disk for {tmp_path}: [\d.]+ \w+ free; free some; .* is kept"
        with pytest.raises(StoreError, match=message):
            store.append([make(n) for n in range(1, 100)])
        outcome = dataclasses.replace(
            make.outcome(make(1)), next_state={"noise": random.Random(0).randbytes(9000).hex()}
        )
        with pytest.raises(StoreError, match=message):
            store.complete([outcome])
        assert all_ids(store) == ["agent-0-000001"]
        writer.execute("PRAGMA max_page_count = 100000")
        assert store.append([make(2)]) == 1
        assert store.complete([outcome]) == 1
    assert [d.complete for d in StoreReader(tmp_path).decisions()] == [True, False]


def test_a_disk_too_full_to_close_windows_still_appends_and_reads(
    tmp_path, make, monkeypatch, caplog
):
    store = TrajectoryStore(tmp_path, TINY)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert store.append([make(1)]) == 1
        assert store.append([make(61)]) == 1
        assert "no window can be closed now" in caplog.text
        assert all_ids(StoreReader(tmp_path)) == ["agent-0-000001", "agent-0-000061"]
        with pytest.raises(StoreError, match="no space on disk"):
            store.compact()
    assert not closed(tmp_path)
    store.close()
    assert len(closed(tmp_path)) == StoreReader(tmp_path).count() == 2


def test_a_folder_that_is_no_store_of_this_version_is_refused(tmp_path, make):
    with pytest.raises(StoreError, match=r"no trajectory store .*nowhere"):
        StoreReader(tmp_path / "nowhere")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    for kind in (StoreReader, TrajectoryStore):
        with pytest.raises(StoreError, match=r"other is no trajectory store: it has no store.json"):
            kind(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]
    with pytest.raises(StoreError, match=r"notes.txt/store.json is damaged"):
        TrajectoryStore(tmp_path / "other" / "notes.txt")
    TrajectoryStore(tmp_path / "new").close()
    about = tmp_path / "new" / "store.json"
    new = r"begin a new store \(store\.path\)"
    for version, mend in ((1, new), (2, new), (9, "update rlforge")):
        about.write_text(json.dumps({"schema_version": version}))
        for kind in (StoreReader, TrajectoryStore):
            message = rf"store\.json: .* is version {version} .*reads version 3; .*{mend}"
            with pytest.raises(StoreError, match=message):
                kind(tmp_path / "new")
    about.write_text("{")
    with pytest.raises(StoreError, match=r"store.json is damaged"):
        StoreReader(tmp_path / "new")
    (tmp_path / "begun" / "windows").mkdir(parents=True)
    with TrajectoryStore(tmp_path / "begun") as store:  # whose creation was interrupted
        assert store.append([make(1)]) == 1


def test_a_store_lies_in_the_run_or_where_its_path_says(tmp_path):
    assert store_folder(StoreConfig(), tmp_path / "run") == tmp_path / "run" / "store"
    assert store_folder(StoreConfig(path="there"), tmp_path / "run") == Path("there")


def test_deleted_windows_are_gone_open_or_closed(tmp_path, make):
    ids = [make.grid.id_of(make(hour * 60).timestamp) for hour in range(4)]
    with TrajectoryStore(tmp_path) as store:
        store.append([make(0), make(60)])
        store.compact()
        store.append([make(120), make(180)])
        store.delete([ids[0], ids[2], "2030-01-01-00:00"])
        assert store.window_ids() == [ids[1], ids[3]]
        with pytest.raises(StoreError, match="no decision 'agent-0-000000'"):
            store.complete([make.outcome(make(0))])
        assert store.append([make(0)]) == 1
    assert StoreReader(tmp_path).window_ids() == [ids[0], ids[1], ids[3]]
