"""Acknowledged rows survive kills of the process and failures of the disk."""

import contextlib
import dataclasses
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlforge.continuous.config.continuous import StoreConfig
from rlforge.continuous.decisions.store import FILE, StoreReader, TrajectoryStore, store_folder
from rlforge.errors import DamagedError, RlforgeError, RunError, StoreError

from .conftest import Make


def test_one_process_writes_at_a_time_and_readers_see_decisions_at_once(tmp_path, make):
    root = tmp_path / "store"
    decisions = [make.whole(number) for number in range(4)] + [make(4)]
    with TrajectoryStore(root) as store:
        with pytest.raises(RunError, match=f"in use by process {os.getpid()}"):
            TrajectoryStore(root)
        readers = [StoreReader(root) for _ in range(3)]
        assert [reader.decisions() for reader in readers] == [[]] * 3
        assert store.append(decisions[:3]) == 3
        assert [reader.decisions() for reader in readers] == [decisions[:3]] * 3
        assert store.append(decisions[3:]) == 2
        assert readers[0].decisions() == store.decisions() == decisions
    store.close()
    assert readers[0].decisions() == decisions
    assert {path.name for path in root.iterdir()} == {FILE, "run.lock"}
    with TrajectoryStore(root) as store:
        assert store.decisions() == decisions


def test_outcomes_may_come_after_their_window_was_left_and_the_store_closed(tmp_path, make):
    decisions = [make(number) for number in (0, 60, 120)]
    outcomes = [make.outcome(decision, reward=0.1) for decision in decisions]
    with TrajectoryStore(tmp_path) as store:
        store.append(decisions)
        assert store.complete(outcomes[2:]) == 1
    with TrajectoryStore(tmp_path) as store:
        assert store.complete(outcomes) == 2
        late = make.whole(1)
        assert store.append([late]) == 1
        assert store.decisions(decisions[0].window_id)[1] == late
    back = StoreReader(tmp_path).decisions()
    known = {name: getattr(outcomes[0], name) for name in ("reward", "next_state", "result")}
    completed = [dataclasses.replace(decision, **known) for decision in decisions]
    assert back == [completed[0], late, *completed[1:]]


def test_a_name_that_cannot_be_written_is_found_again(tmp_path, make):
    with TrajectoryStore(tmp_path) as store:
        odd = make(9, id="half \ud83d of a sign")
        assert (store.append([odd]), store.append([odd])) == (1, 0)
        assert store.complete([make.outcome(odd)]) == 1
        assert store.decisions()[-1].complete


def test_one_bad_decision_or_unknown_outcome_keeps_its_whole_batch_out(tmp_path, make):
    with TrajectoryStore(tmp_path) as store:
        with pytest.raises(RlforgeError, match="reward is nan"):
            store.append([make(1), make(2, reward=float("nan"))])
        assert store.decisions() == []
        store.append([make(1)])
        with pytest.raises(RlforgeError, match="reward is inf"):
            store.complete([make.outcome(make(1), reward=float("inf"))])
        with pytest.raises(StoreError, match=r"no decision 'agent-0-000002' in .*"):
            store.complete([make.outcome(make(1)), make.outcome(make(2))])
        assert not store.decisions()[0].complete
        assert store.complete([make.outcome(make(1))]) == 1


def test_late_and_unordered_decisions_belong_to_the_window_of_their_time(tmp_path, make):
    decisions = [make.whole(number * 14) for number in range(20)]
    shuffled = random.Random(0).sample(decisions, len(decisions))
    with TrajectoryStore(tmp_path) as store:
        assert store.window_ids() == []
        for start in range(0, len(shuffled), 3):
            store.append(shuffled[start : start + 3])
        windows = {window: store.decisions(window) for window in store.window_ids()}
        assert store.decisions("2030-01-01-00:00") == []
    assert list(windows) == sorted({d.window_id for d in decisions})
    for window, found in windows.items():
        assert found == [d for d in decisions if make.grid.id_of(d.timestamp) == window]


def test_the_newest_complete_decisions_may_be_of_several_windows(tmp_path, make):
    decisions = [
        make.whole(number * 20) if number % 2 else make(number * 20) for number in range(12)
    ]
    with TrajectoryStore(tmp_path) as store:
        store.append(decisions)
        end = decisions[10].timestamp
        newest = store.newest(4, before=end, complete=True)
        assert [d.id for d in newest] == [decisions[n].id for n in (3, 5, 7, 9)]
        assert len(store.newest(100, before=end, complete=True)) == 5


def test_deleted_windows_are_gone(tmp_path, make):
    ids = [make.grid.id_of(make(hour * 60).timestamp) for hour in range(3)]
    with TrajectoryStore(tmp_path) as store:
        store.append([make(0), make(60), make(120)])
        store.delete([ids[0], ids[2], "2030-01-01-00:00"])
        assert store.window_ids() == [ids[1]]
        with pytest.raises(StoreError, match="no decision 'agent-0-000000'"):
            store.complete([make.outcome(make(0))])
        assert store.append([make(0)]) == 1
    assert StoreReader(tmp_path).window_ids() == ids[:2]


numbers = st.lists(st.integers(0, 30), max_size=4)
calls = st.tuples(st.sampled_from(["append", "complete", "reopen"]), numbers)


@settings(max_examples=12)
@given(st.lists(calls, max_size=10))
def test_any_sequence_of_calls_ends_as_with_a_plain_dictionary(tmp_path_factory, history):
    root, make = tmp_path_factory.mktemp("store"), Make()
    store = TrajectoryStore(root)
    expected = {}
    for step, (what, numbers) in enumerate(history):
        if what == "append":
            new = {n: None for n in numbers if n not in expected}
            assert store.append([make(n * 9, f"a{n % 2}") for n in numbers]) == len(new)
            expected |= new
        elif what == "complete":
            known = [n for n in numbers if n in expected]
            new = {n: float(step) for n in known if expected[n] is None}
            outcomes = [make.outcome(make(n * 9, f"a{n % 2}"), reward=step) for n in known]
            assert store.complete(outcomes) == len(new)
            expected |= new
        else:
            store.close()
            store = TrajectoryStore(root)
    rewards = {d.id: d.reward for d in StoreReader(root).decisions()}
    store.close()
    assert rewards == {make(n * 9, f"a{n % 2}").id: reward for n, reward in expected.items()}


def test_many_threads_append_and_complete_concurrently(tmp_path, make):
    with TrajectoryStore(tmp_path) as store:

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
for start in range(first, first + 100000, 20):
    with TrajectoryStore(sys.argv[1]) as store:
        for number in range(start, start + 20):
            decision = make(number * 5)
            store.append([decision])
            print("a", number, flush=True)
            store.complete([make.outcome(decision)])
            print("c", number, flush=True)
"""


@pytest.mark.ray
def test_a_writer_killed_at_any_moment_is_read_all_the_while_and_loses_nothing(tmp_path, make):
    """The writer, another process, also closes the store and opens it again."""
    appended, completed = set(), set()
    root = Path(__file__).resolve().parents[3]
    for turn in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITE, str(tmp_path / "store"), str(turn * 100000)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"},
        )
        for _ in range(11 + 20 * turn):
            kind, number = process.stdout.readline().split()
            {"a": appended, "c": completed}[kind].add(make(int(number) * 5).id)
            found = {d.id: d.complete for d in StoreReader(tmp_path / "store").decisions()}
            assert appended <= found.keys()
            assert all(found[one] for one in completed)
        process.send_signal(signal.SIGKILL)
        for line in process.communicate()[0].splitlines(keepends=True):
            if line.endswith("\n"):  # else it was killed while it said so
                kind, number = line.split()
                {"a": appended, "c": completed}[kind].add(make(int(number) * 5).id)
        decisions = StoreReader(tmp_path / "store").decisions()
        found = {d.id: d.complete for d in decisions}
        assert appended <= found.keys()
        assert all(found[one] for one in completed)
        assert len(found) == len(decisions) <= len(appended) + turn + 1
    assert len(completed) > 40


def test_interrupted_at_any_byte_a_call_is_written_as_a_whole_or_not_at_all(tmp_path, make):
    """A kill, or a loss of power, leaves any beginning of what a call wrote to the log."""
    log = f"{FILE}-wal"

    def contents(store):
        return {decision.id: decision.complete for decision in store.decisions()}

    with TrajectoryStore(tmp_path / "store") as store:
        store.append([make(n) for n in (0, 1, 60, 61)])
        for call in (
            lambda: store.append([make(3), make(63), make(123)]),
            lambda: store.complete([make.outcome(make(n)) for n in (60, 61, 3)]),
            lambda: store.delete([make(0).window_id, make(123).window_id]),
        ):
            begin = (tmp_path / "store" / log).stat().st_size
            before = contents(store)
            call()
            after = contents(store)
            end = (tmp_path / "store" / log).stat().st_size
            assert before != after
            assert end > begin
            for length in (*range(begin, end, 5000), end - 1, end):
                root = tmp_path / str(length)
                shutil.copytree(tmp_path / "store", root)
                os.truncate(root / log, length)
                with TrajectoryStore(root) as again:
                    assert contents(again) == (after if length == end else before), length
                shutil.rmtree(root)


def test_what_a_killed_process_left_half_written_is_undone_by_the_first_reader(tmp_path, make):
    """While a store is opened and closed it has a journal in place of the log."""
    root, left = tmp_path / "store", tmp_path / "left"
    with TrajectoryStore(root) as store:
        store.append([make(n) for n in range(40)])
    with contextlib.closing(sqlite3.connect(root / FILE, isolation_level=None)) as killed:
        killed.execute("PRAGMA cache_size = 1")  # pages are written before the transaction ends
        killed.execute("BEGIN")
        killed.execute("UPDATE decisions SET state = zeroblob(9000)")
        shutil.copytree(root, left)
    assert (left / f"{FILE}-journal").stat().st_size > 0
    assert (
        StoreReader(left).decisions()
        == StoreReader(root).decisions()
        == [make(n) for n in range(40)]
    )


# ---------------------------------------------------------------- disks and files


def test_damage_is_named_with_the_mend(tmp_path, make):
    with TrajectoryStore(tmp_path) as store:
        store.append([make.whole(1)])
    file = tmp_path / FILE
    sound = file.read_bytes()
    uses = (lambda: StoreReader(tmp_path).decisions(), lambda: TrajectoryStore(tmp_path))
    file.write_bytes(b"no database" * 1000)
    for use in uses:
        with pytest.raises(
            DamagedError, match=rf"{FILE} is damaged \(file is not a database\); put a copy"
        ):
            use()
    state = sound.index(b"\x78\x01")  # begins a compressed text
    file.write_bytes(sound[: state + 9] + bytes([sound[state + 9] ^ 1]) + sound[state + 10 :])
    with pytest.raises(DamagedError, match=rf"{FILE} is damaged \(.*decompress.*\); put a copy"):
        uses[0]()
    file.write_bytes(sound)
    with TrajectoryStore(tmp_path) as store:
        other = sqlite3.connect(file)
        other.execute("DROP TABLE decisions")
        other.close()
        for use in (lambda: store.append([make.whole(2)]), StoreReader(tmp_path).decisions):
            with pytest.raises(StoreError, match=rf"{FILE} cannot be used: no such table"):
                use()


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
        message = rf"no space on disk for {tmp_path}.*: [\d.]+ \w+ free; free some; .* is kept"
        with pytest.raises(StoreError, match=message):
            store.append([make(n) for n in range(1, 100)])
        outcome = dataclasses.replace(
            make.outcome(make(1)), next_state={"noise": random.Random(0).randbytes(30_000).hex()}
        )
        with pytest.raises(StoreError, match=message):
            store.complete([outcome])
        assert [d.complete for d in store.decisions()] == [False]
        writer.execute("PRAGMA max_page_count = 100000")
        assert store.append([make(2)]) == 1
        assert store.complete([outcome]) == 1
    assert [d.complete for d in StoreReader(tmp_path).decisions()] == [True, False]


def test_a_folder_that_is_no_store_of_this_version_is_refused(tmp_path, make):
    kinds = (StoreReader, TrajectoryStore)
    with pytest.raises(StoreError, match=r"no trajectory store .*nowhere"):
        StoreReader(tmp_path / "nowhere")
    (tmp_path / "other").mkdir()
    notes = tmp_path / "other" / "notes.txt"
    notes.write_text("mine")
    for kind in kinds:
        for root in (tmp_path / "other", notes):
            with pytest.raises(StoreError, match=rf"{root.name} is no trajectory store: it has no"):
                kind(root)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]
    (tmp_path / "old" / "windows").mkdir(parents=True)
    (tmp_path / "old" / "store.json").write_text('{"schema_version": 3}')
    for kind in kinds:
        with pytest.raises(StoreError, match=r"store\.json: .*earlier rlforge; begin a new one \("):
            kind(tmp_path / "old")
    TrajectoryStore(tmp_path / "new").close()
    file = tmp_path / "new" / FILE
    for version, mend in ((3, r"begin a new store \(store\.path\)"), (9, "update rlforge")):
        other = sqlite3.connect(file)
        other.execute(f"PRAGMA user_version = {version}")
        other.close()
        for kind in kinds:
            with pytest.raises(StoreError, match=rf"version {version}, .* reads 4; {mend}"):
                kind(tmp_path / "new")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / FILE).touch()
    with TrajectoryStore(tmp_path / "begun") as store:  # whose creation was interrupted
        assert store.append([make(1)]) == 1


def test_a_store_lies_in_the_run_or_where_its_path_says(tmp_path):
    assert store_folder(StoreConfig(), tmp_path / "run") == tmp_path / "run" / "store"
    assert store_folder(StoreConfig(path="there"), tmp_path / "run") == Path("there")
