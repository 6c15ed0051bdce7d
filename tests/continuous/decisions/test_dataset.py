"""The real ``datasets`` reads exports; imports are checked."""

import errno
import json
import os
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlforge.continuous.decisions import dataset
from rlforge.continuous.decisions.columns import decision_row
from rlforge.continuous.decisions.dataset import export_dataset, import_dataset
from rlforge.continuous.decisions.records import Metadata
from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.errors import RlforgeError, StoreError
from rlforge.record.files import RunPaths, write_jsonl


@pytest.fixture
def decisions(make):
    whole = [make.whole(n, f"agent-{n % 3}") for n in range(0, 180, 6)]
    return [*whole, make(179, "agent-123")]


@pytest.fixture
def store(tmp_path, decisions):
    with TrajectoryStore(tmp_path / "store") as opened:
        opened.append(decisions)
        yield opened


@pytest.fixture
def load(tmp_path, monkeypatch):
    """The library's ``load_dataset``, without a network and with a cache of the test's own."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    from datasets import load_dataset

    return lambda folder, *name: load_dataset(str(folder), *name, cache_dir=str(tmp_path / "cache"))


def test_datasets_loads_and_filters_an_export(tmp_path, store, decisions, load):
    assert export_dataset(store, tmp_path / "data set") == 31
    loaded = load(tmp_path / "data set")
    window_data = loaded.filter(lambda x: x["windowId"] == "2024-11-13-10:00")
    agent_data = loaded.filter(lambda x: x["agentId"] == "agent-123")
    assert (len(loaded["train"]), len(window_data["train"])) == (31, 10)
    (row,) = agent_data["train"]
    assert (row["reward"], row["complete"]) == (None, False)
    first = loaded["train"][0]
    assert first["timestamp"] == datetime.fromtimestamp(decisions[0].timestamp, UTC)
    assert first["metadata"] == {"provider": "tiny_market", "reasoning": "cheap", "confidence": 0.7}
    assert first["state"] == decisions[0].state
    assert first["nextState"]["portfolio"]["balance"] == 999.0
    assert first["action"]["marketId"] == "m1"
    assert (first["score"], first["explanation"]) == (None, None)
    assert first["completion"]["tokenIds"] == [4, 5]
    assert first["agentStats"] == {"winRate": 0.6}


def test_the_dataset_of_a_run_has_scores_explanations_and_metrics_of_windows(
    tmp_path, store, decisions, load
):
    run = RunPaths(root=tmp_path / "run")
    ten = "2024-11-13-10:00"
    run.scores(ten).parent.mkdir(parents=True)
    scores = {decisions[1].id: {"score": 0.75, "explanation": "won 3 comparisons"}}
    run.scores(ten).write_text(json.dumps({"window_id": ten, "scores": scores}))
    metrics = [
        {"window_id": ten, "avg_reward": 0.5, "players": {"policy": {"trades": 3}}, "reason": ""},
        {"window_id": "2024-11-13-11:00", "avg_reward": 1, "kl_divergence": 0.25},
        {"window_id": "2024-11-13-23:00", "avg_reward": 0.0},
    ]
    write_jsonl(run.windows, [{"window": n, **row} for n, row in enumerate(metrics, 1)])
    export_dataset(store, tmp_path / "out", run_dir=run.root)
    by_id = {row["id"]: row for row in load(tmp_path / "out")["train"]}
    assert by_id[decisions[1].id]["score"] == 0.75
    assert by_id[decisions[1].id]["explanation"] == "won 3 comparisons"
    assert by_id[decisions[2].id]["score"] is None
    first, second = load(tmp_path / "out", "windows")["train"]
    assert (first["window_id"], first["players"]) == (ten, {"policy": {"trades": 3}})
    assert (second["avg_reward"], second["kl_divergence"], second["reason"]) == (1.0, 0.25, None)


@pytest.mark.parametrize("known", [0, 8])
def test_an_export_is_read_back_as_it_was_by_a_store_that_may_hold_a_part(
    tmp_path, store, decisions, known
):
    export_dataset(store, tmp_path / "out")
    with TrajectoryStore(tmp_path / "copy") as copy:
        copy.append(decisions[::4][:known])
        done = import_dataset(tmp_path / "out", copy)
        assert (done.written, done.known, done.bad) == (31 - known, known, ())
        assert copy.decisions() == store.decisions() == decisions
        assert import_dataset(tmp_path / "out", copy).known == 31


def test_chosen_windows_in_files_of_limited_size(tmp_path, store, monkeypatch):
    monkeypatch.setattr(dataset, "_FILE_ROWS", 5)
    wanted = ("2024-11-13-11:00", "2024-11-13-12:00")
    assert export_dataset(store, tmp_path / "out", wanted) == 21
    names = sorted(path.name for path in (tmp_path / "out" / "data").iterdir())
    assert names == ["train-00000.parquet", "train-00001.parquet"]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "21 decisions" in card
    assert all(f"| `{name}` |" in card for name in decision_row(store.decisions()[0]))


def test_an_export_overwrites_nothing_and_leaves_no_part_after_an_error(
    tmp_path, store, monkeypatch
):
    (tmp_path / "taken").mkdir()
    with pytest.raises(RlforgeError, match="taken exists already"):
        export_dataset(store, tmp_path / "taken")
    with pytest.raises(RlforgeError, match="has no decisions to export"):
        export_dataset(store, tmp_path / "none", ("2000-01-01-00:00",))

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", full)
        with pytest.raises(StoreError, match=r"no space on disk for .*out"):
            export_dataset(store, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "taken"]


def rows_file(folder, rows):
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return folder


def test_bad_rows_are_named_and_nothing_is_imported_unless_they_are_left_out(tmp_path, make):
    good = decision_row(make.whole(1))
    bad = [
        ("state", "{", "JSONDecodeError"),
        ("state", "[]", "state is not a JSON object"),
        ("action", '{"amount": 1}', "action has no type"),
        ("action", '{"type": 3}', "action has no type"),
        ("windowId", "2024-11-13", "window id '2024-11-13' is not a time"),
        ("agentId", None, "no agentId"),
        ("agentId", "", "both need a name"),
        ("timestamp", float("nan"), "timestamp nan is not a time"),
        ("reward", float("inf"), "reward is inf"),
        ("nextState", "[1]", "nextState is not a JSON object"),
        ("id", good["id"], f"id {good['id']} occurs twice"),
    ]
    rows = [
        good,
        *({**good, "id": f"x{place}", bad[place][0]: bad[place][1]} for place in range(11)),
    ]
    folder = rows_file(tmp_path / "in", rows)
    with TrajectoryStore(tmp_path / "store") as store:
        with pytest.raises(RlforgeError) as caught:
            import_dataset(folder, store)
        head, *named, more = str(caught.value).split("\n")
        assert "11 bad rows, nothing was imported" in head
        assert store.decisions() == []
        done = import_dataset(folder, store, skip_bad=True)
        assert (list(done.bad[:10]), more) == (named, "and 1 more")
        for number, ((_, _, problem), said) in enumerate(zip(bad, done.bad, strict=True), start=2):
            assert said.startswith(f"rows.parquet row {number}: ")
            assert problem in said
        assert (done.written, store.decisions()) == (1, [make.whole(1)])


def test_imported_datasets_may_hold_structs_dates_and_fewer_columns(tmp_path, make):
    moment = datetime(2024, 11, 13, 10, 30, tzinfo=UTC)
    rows = [
        {
            "id": f"t{number}",
            "agentId": "agent-1",
            "windowId": "2024-11-13-10:00",
            "state": {"portfolio": {"balance": 10.0}},
            "action": {"type": "NO_OP"},
            "timestamp": timestamp,
        }
        for number, timestamp in enumerate(["2024-11-13T10:30:00Z", "2024-11-13T10:30:00"])
    ]
    with TrajectoryStore(tmp_path / "store") as store:
        import_dataset(rows_file(tmp_path / "in", rows), store)
        back = store.decisions()
    assert [d.timestamp for d in back] == [moment.timestamp()] * 2
    assert back[0].state == {"portfolio": {"balance": 10.0}}
    assert (back[0].metadata, back[0].complete) == (Metadata(provider=""), False)


def test_a_folder_without_a_dataset_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.parquet").write_bytes(b"PAR1 and no more")
    with TrajectoryStore(tmp_path / "store") as store:
        with pytest.raises(RlforgeError, match=r"empty holds no dataset"):
            import_dataset(tmp_path / "empty", store)
        with pytest.raises(RlforgeError, match=r"a\.parquet cannot be read"):
            import_dataset(tmp_path / "broken", store)
