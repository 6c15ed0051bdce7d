"""The run directory: its paths, and files that are read back as written or named when damaged."""

import faulthandler
import logging
import math
import os
from pathlib import Path

import numpy as np
import pytest

from rlforge.config.compose import compose, to_yaml
from rlforge.continuous.config.serving import ServingConfig
from rlforge.errors import RlforgeError
from rlforge.record.files import (
    JsonlFile,
    RunPaths,
    create_run,
    mend_jsonl,
    open_log,
    open_run,
    read_intact,
    read_json,
    read_jsonl,
    runs_below,
    write_json,
)
from rlforge.record.growth import parts
from rlforge.record.results import read_evals
from rlforge.show.report.data import load_run


def a_run(path):
    create_run(path).config.write_text("name: x\n")
    return path


def test_create_run_makes_the_folders_of_the_contract_and_keeps_what_is_there(tmp_path):
    run = a_run(tmp_path / "runs" / "exp" / "now")
    paths = create_run(run)
    assert all(folder.is_dir() for folder in (paths.games, paths.checkpoints, paths.logs))
    files = (paths.metrics, paths.evals, paths.pool, paths.summary, paths.report, paths.plan)
    assert [file.relative_to(run).as_posix() for file in files] == [
        *("metrics.jsonl", "evals.jsonl", "pool.json", "summary.json", "report.html", "plan.json")
    ]
    assert (run / "config.yaml").read_text() == "name: x\n"
    assert open_run(str(run)).root == run


@pytest.mark.parametrize(
    ("there", "asked", "message"),
    [
        (
            "runs/simpletak_mirror/2026-01-01",
            "runs/simpletak_miror/2026-01-01",
            "no run directory runs/simpletak_miror/.* mean runs/simpletak_mirror/2026-01-01",
        ),
        ("runs/tictactoe/monday", "zzzz", "the newest runs are runs/tictactoe/monday"),
        (None, "nothing", r"^no run directory nothing$"),
        ("exp/one", "exp", r"holds 1 run but is not one; the newest is .*one"),
        ("empty/folder/run", "empty/folder/run/games", "is not a run directory: it has no config"),
        ("exp/one", "exp/one/config.yaml", "is a file"),
    ],
)
def test_the_error_of_what_is_no_run_names_the_nearest_or_newest(there, asked, message):
    if there:
        a_run(Path(there))
    with pytest.raises(RlforgeError, match=message):
        open_run(asked)


def test_the_state_folder_of_a_service_is_no_run(tmp_path):
    run = a_run(tmp_path / "exp" / "one")
    state = run / "deployments"
    state.mkdir()
    (state / "config.yaml").write_text(to_yaml(compose(["model=tiny"], root=ServingConfig).config))
    assert runs_below(tmp_path) == [run]
    assert not RunPaths(root=state).is_run()
    with pytest.raises(RlforgeError, match="deployments is the state folder of a service, not a"):
        open_run(state)


def test_runs_in_one_process_have_a_log_each_and_leave_logging_as_it_was(tmp_path):
    root, log = logging.getLogger("rlforge"), logging.getLogger("rlforge.training")
    before = (list(root.handlers), root.level, root.propagate, faulthandler.is_enabled())
    for name in ("first", "second"):
        with open_log("run", str(tmp_path / name)):
            log.info("in the %s run", name)
            assert not root.propagate
    assert (list(root.handlers), root.level, root.propagate, faulthandler.is_enabled()) == before
    for name, other in (("first", "second"), ("second", "first")):
        text = (tmp_path / name / "logs" / "run.log").read_text()
        assert text.count(f"in the {name} run") == 1
        assert other not in text


def test_write_json_replaces_the_whole_file_or_nothing_and_leaves_no_other(tmp_path):
    path = tmp_path / "pool.json"
    write_json(path, {"a": [1, 2, 3]})
    write_json(path, {"b": math.nan, "c": np.float32(0.5), "d": (Path("x"),)})
    with pytest.raises(TypeError, match="cannot write a object as JSON"):
        write_json(path, {"a": object()})
    assert read_json(path) == {"b": None, "c": 0.5, "d": ["x"]}
    assert [file.name for file in tmp_path.iterdir()] == ["pool.json"]


def test_missing_files_are_empty_and_damaged_ones_are_named(tmp_path):
    assert read_json(tmp_path / "none.json") == {}
    assert read_jsonl(tmp_path / "none.jsonl") == []
    for text in ("{", "[1]"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(RlforgeError, match=r"bad\.json is damaged"):
            read_json(tmp_path / "bad.json")


def test_lines_that_lack_a_field_are_named(tmp_path):
    run = RunPaths(root=a_run(tmp_path))
    run.evals.write_text('{"step": 1}\n')
    lacks = r"evals\.jsonl is damaged \(.*missing @ \$\[0\]\.wins.*remove the line"
    for read in (lambda: read_evals(run), lambda: load_run(tmp_path)):
        with pytest.raises(RlforgeError, match=lacks):
            read()


@pytest.mark.parametrize(
    ("line", "why"), [(b"{oops", "Expecting"), (b"3", "no object"), (b'{"a\xff', "not UTF-8")]
)
def test_a_damaged_line_is_named_and_the_others_are_read(tmp_path, caplog, line, why):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b'\n{"a": 3}\n')
    assert read_jsonl(path) == [{"a": 1}, {"a": 3}]
    (warning,) = caplog.messages
    assert warning.startswith(f"{path}:2 is damaged ({why}")
    path.write_bytes(b"\x00\n" * 3)
    assert read_intact(path)[0] == []
    assert str(read_intact(path)[1]).endswith("and left out, as 2 further lines")


def test_a_damaged_file_is_kept_beside_the_mended_one(tmp_path):
    path, damaged = tmp_path / "m.jsonl", b'{"step": 1}\n\xff\n{"step": 3}\n{"st'
    for aside in ("m.jsonl.damaged", "m.jsonl.damaged.1"):
        path.write_bytes(damaged)
        file = JsonlFile(path)
        file.append({"step": 4})
        file.close()
        assert read_jsonl(path) == [{"step": 1}, {"step": 3}, {"step": 4}]
        assert (tmp_path / aside).read_bytes() == damaged
    assert mend_jsonl(path) is None
    assert len(list(tmp_path.iterdir())) == 3


def test_a_log_that_cannot_be_written_says_so_once(tmp_path, capsys):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "run.log").symlink_to("/dev/full")
    with open_log("run", str(tmp_path)):
        logging.getLogger("rlforge").error("lost")
    assert capsys.readouterr().err.splitlines() == [
        f"{tmp_path}/logs/run.log: lines are lost (No space left on device)"
    ]


def test_a_line_cut_short_is_not_read_and_is_removed_before_the_next(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    assert read_jsonl(path) == [{"step": 1}]
    file = JsonlFile(path)
    file.append({"step": 2})
    file.close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_rewind_drops_later_lines_and_appending_continues(tmp_path):
    path = tmp_path / "m.jsonl"
    file = JsonlFile(path)
    for step in range(5):
        file.append({"step": step, "loss": math.nan})
        assert read_jsonl(path)[-1] == {"step": step, "loss": None}  # on disk at once
    file.rewind(1)
    file.append({"step": 2, "again": True})
    file.close()
    file.close()
    first = [{"step": step, "loss": None} for step in (0, 1)]
    assert read_jsonl(path) == [*first, {"step": 2, "again": True}]


def test_the_newest_run_is_the_one_that_last_recorded_something(tmp_path):
    """Not the one in whose folder a report or a deployment was put."""
    for age, name in enumerate(("new", "old")):
        run = RunPaths(root=tmp_path / name)
        run.root.mkdir()
        run.config.write_text("kind: games\n")
        os.utime(run.config, (1000 - age, 1000 - age))
    assert [path.name for path in runs_below(tmp_path)] == ["new", "old"]
    (tmp_path / "old" / "report.html").touch()
    (tmp_path / "old" / "deployments").mkdir()
    assert [path.name for path in runs_below(tmp_path)] == ["new", "old"]
    RunPaths(root=tmp_path / "old").metrics.touch()
    assert [path.name for path in runs_below(tmp_path)] == ["old", "new"]


def test_a_folder_that_vanishes_during_the_search_hides_no_run(tmp_path, monkeypatch):
    run, gone = a_run(tmp_path / "exp" / "one"), tmp_path / "ray" / ".probe"
    gone.mkdir(parents=True)
    scandir = os.scandir

    def late(folder):
        if Path(folder) == gone:
            gone.rmdir()
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", late)
    assert runs_below(tmp_path) == [run]
    gone.mkdir()
    (tmp_path / "file").write_text("12345")
    assert [(part.name, part.size) for part in parts(tmp_path)][-1] == ("ray", 0)


def test_an_empty_name_is_not_the_current_folder(tmp_path):
    (tmp_path / "config.yaml").write_text("kind: games\n")
    with pytest.raises(RlforgeError, match="the name of a run is empty"):
        open_run("")
