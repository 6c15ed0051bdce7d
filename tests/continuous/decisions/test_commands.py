"""``rlforge windows`` on the command line."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlforge.cli import main
from rlforge.continuous.decisions.records import Metadata
from rlforge.continuous.decisions.store import FILE, TrajectoryStore
from rlforge.record.files import write_jsonl

from .conftest import Make


@pytest.fixture
def windows(monkeypatch, capsys):
    """``rlforge windows ARGUMENTS`` in this process, 80 columns wide: exit code, output, errors."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["rlforge", "windows", *map(str, arguments)])
        with pytest.raises(SystemExit) as ending:
            main()
        out, err = capsys.readouterr()
        assert isinstance(ending.value.code, int)
        assert max(map(len, out.splitlines()), default=0) <= 80
        return ending.value.code, out, err

    return run


@pytest.fixture
def run_dir(tmp_path):
    """A run with a ready window at 10:00, one that lacks all at 11:00, and an open one."""
    make, root = Make(), tmp_path / "runs" / "market" / "first"
    root.mkdir(parents=True)
    (root / "config.yaml").write_text(
        "kind: continuous\nstore: {}\nwindow: {clock: simulated, avg_reward_threshold: 0.3}\n"
    )
    with TrajectoryStore(root / "store") as store:
        store.append([make.whole(n, f"agent-{a}") for a in range(3) for n in range(5)])
        store.append([make.whole(60, "agent-0", reward=0.1), make(61, "agent-1")])
        bold = Metadata(provider="[bold]")
        store.append([make.whole(130, "[red]agent", action={"type": "NO_OP"}, metadata=bold)])
    return root


def test_the_list_says_why_a_window_is_not_ready(windows, run_dir):
    code, out, _ = windows("list", run_dir, "--last", "1")
    assert code == 0
    assert "10:00" not in out
    assert "and 2 earlier windows; --last 3 shows all" in out
    for where in (run_dir, run_dir / "store"):
        code, out, err = windows("list", where)
        words = " ".join(out.split())
        assert (code, err) == (0, "")
        assert "2024-11-13-10:00 3 15 100% 0.5 yes" in words
        assert "2024-11-13-11:00 2 2 50% 0.1 no: 0 of 3 learning agents have 5" in words
        assert "outcome" in words
        assert "it is open for" in words
    write_jsonl(run_dir / "windows.jsonl", [{"window": 3, "window_id": "2024-11-13-12:00"}])
    for where in (run_dir, run_dir / "store"):  # a run has trained on it
        _, out, _ = windows("list", where)
        assert "12:00" in out
        assert "open" not in out


def test_one_window_with_its_agents(windows, run_dir):
    code, out, _ = windows("show", run_dir, "2024-11-13-11:00")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "2024-11-13-11:00 UTC, 60 minutes" in lines
    assert "not ready:" in lines
    assert "- 0 of 3 learning agents have 5 decisions and 5 actions" in lines
    assert "- 1 of 2 decisions have no known outcome" in lines
    assert "- average reward 0.1 is below 0.3" in lines
    assert "agent-0 1 1 1 0.1 no" in lines
    assert "agent-1 1 1 0 – no" in lines
    _, out, _ = windows("show", run_dir, "2024-11-13-10:00")
    assert "\nready\n" in out
    _, out, _ = windows("show", run_dir, "2024-11-13-12:00")
    assert "[red]agent" in out


def test_decisions_with_what_was_seen_said_done_and_scored(windows, tmp_path):
    make, run = Make(), tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("kind: continuous\nstore: {}\nwindow: {clock: simulated}\n")
    scripted = Metadata(provider="scripted:noise", reasoning="")
    refused = {"type": "NO_OP", "problem": "Your answer held no JSON action."}
    with TrajectoryStore(run / "store") as store:
        store.append([make.whole(n, f"agent-{n % 2}", reward=n / 10) for n in range(4)])
        store.append([make.whole(5, reward=-1.0, action=refused, observation="What now? " * 99)])
        store.append([make.whole(6, "noise-1", metadata=scripted, reward=0.9, completion=None)])
    scores = {"agent-0-000005": {"score": 0.125, "explanation": "It said [nothing]."}}
    (run / "scores").mkdir()
    (run / "scores" / "2024-11-13-10.00.json").write_text(
        json.dumps({"window_id": "2024-11-13-10:00", "metrics": {}, "scores": scores})
    )
    for where in (run, run / "store"):
        code, out, err = windows("decisions", where, "2024-11-13-10:00", "--worst", "--last", "2")
        assert (code, err) == (0, "")
        words = " ".join(out.split())
        assert "2024-11-13 10:05:00 agent-0, tiny_market, step-3" in words
        assert "refused Your answer held no JSON action." in words
        assert "reward -1, profit +1.50 on 5.00" in words
        assert "score 0.125 It said [nothing]." in words
        assert "answer cheap" in words
        assert words.count("What now?") < 50
        assert words.endswith("2 of 5 decisions")
        assert words.index("reward -1") < words.index("reward 0")
        assert "noise-1" not in words
    _, out, _ = windows("decisions", run, "2024-11-13-10:00", "--worst", "--full")
    assert " ".join(out.split()).count("What now?") == 99 + 4
    _, out, _ = windows("decisions", run, "2024-11-13-10:00", "--agent", "noise-1")
    assert "noise-1, scripted:noise" in out
    code, _, err = windows("decisions", run, "2024-11-13-10:00", "--agent", "agent-7")
    assert code == 2
    assert "no agent agent-7 decided in 2024-11-13-10:00; did you mean agent-" in err


def test_each_mistake_has_one_error_message(windows, run_dir, tmp_path):
    for arguments, message in (
        (("show", run_dir, "2024-11-13-10:30"), "did you mean 2024-11-13-10:00"),
        (("show", run_dir, "x"), "no window x in "),
        (("list", "runs/market/frist"), "no run directory runs/market/frist; did you mean"),
        (
            ("list", tmp_path),
            "runs/market/first; nor is it a trajectory store: it has no decisions.sqlite",
        ),
        (("export", run_dir, "out", "--window", "x"), "no window x in "),
        (("export", run_dir, run_dir), "exists already"),
        (("import", "nowhere", "new"), "nowhere: no such folder"),
        (("list", run_dir, "--last", "0"), "--last"),
    ):
        code, out, err = windows(*arguments)
        assert (code, out) == (2, ""), arguments
        assert message in err
        assert "Traceback" not in err
    assert not (tmp_path / "new").exists()


def test_a_run_that_wrote_nothing_and_one_without_windows(windows, run_dir, tmp_path):
    (tmp_path / "config.yaml").write_text("kind: continuous\nstore: {}\nwindow: {}\n")
    code, _, err = windows("list", tmp_path)
    assert (code, "has written no decisions yet" in err) == (2, True)
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    code, _, err = windows("list", tmp_path)
    assert (code, "this command is for a continuous run" in err) == (2, True)
    (tmp_path / "config.yaml").write_text("kind: continuous\nstore: {}\nwindow: {minutes: 0}\n")
    code, _, err = windows("list", tmp_path)
    assert (code, "window.minutes=0: must be above 0" in err) == (2, True)
    TrajectoryStore(tmp_path / "empty" / "store").close()
    code, out, _ = windows("list", Path("empty") / "store")
    assert (code, "holds no decisions yet" in out) == (0, True)


def test_export_and_import_and_bad_rows_by_name(windows, tmp_path, run_dir):
    code, out, err = windows("export", run_dir, "part", "--window", "2024-11-13-10:00")
    assert (code, out, err) == (0, "part\n", "15 decisions\n")
    code, out, _ = windows("import", "part", "copy")
    assert (code, out) == (0, "15 decisions imported, 0 were there already\n")
    code, out, _ = windows("list", "copy")
    assert (code, "yes" in out) == (0, True)

    windows("export", run_dir, "out")
    (file,) = (tmp_path / "out" / "data").iterdir()
    table = pq.read_table(file)
    actions = ["{}", *table["action"].to_pylist()[1:]]
    pq.write_table(table.set_column(4, "action", pa.array(actions)), file)
    code, _, err = windows("import", "out", "new")
    assert (code, "row 1: action has no type" in err) == (1, True)
    code, out, err = windows("import", "out", "new", "--skip-bad")
    assert (code, out) == (0, "17 decisions imported, 0 were there already\n")
    assert "left out: data/train-00000.parquet row 1" in err


def test_damage_is_named(windows, run_dir):
    file = run_dir / "store" / FILE
    file.write_bytes(b"no database" * 1000)
    code, _, err = windows("list", run_dir)
    assert code == 1
    assert f"{FILE} is damaged" in err
    file.unlink()
    (run_dir / "store" / "store.json").write_text("{}")
    for where in (run_dir, run_dir / "store"):
        code, out, err = windows("list", where)
        assert (code, out) == (1, "")
        assert "store.json: the store of an earlier rlforge; begin a new one (store.path)" in err
