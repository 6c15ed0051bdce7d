"""Sinks record what they get; packages and keys they need are checked before a run."""

import importlib.util
import json
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.record.two_parts import EVALUATED, RATINGS, checkpoint, write_two_parts

from rlforge.config.schema import TrackerConfig
from rlforge.errors import ConfigError
from rlforge.record import sinks
from rlforge.record.files import create_run, read_jsonl
from rlforge.record.metrics import NAMESPACES
from rlforge.record.sinks import JsonlSink, Sinks, TensorBoardSink, WandbSink, check_sinks
from rlforge.record.sweeps import write_sweep
from rlforge.record.tracker import Tracker


def without(monkeypatch, package):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else real(name)
    )


def test_jsonl_has_one_object_per_call_and_drops_rewound_ones(tmp_path):
    paths = create_run(tmp_path)
    sink = JsonlSink()
    sink.open(paths, "demo")
    sink.write(1, {"learner/loss": 0.5})
    sink.write(2, {"learner/loss": 0.25, "pool/base/mu": 25.0})
    sink.rewind(1)
    sink.write(2, {"learner/loss": 0.125})
    sink.close()
    rows = read_jsonl(paths.scalars)
    assert [(row["step"], row["learner/loss"]) for row in rows] == [(1, 0.5), (2, 0.125)]
    assert all(row["unix_time"] > 1.7e9 for row in rows)


def test_tensorboard_has_no_rewound_points_and_evaluations_below_the_newest_step(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    paths = create_run(tmp_path)
    write_two_parts(TensorBoardSink, paths)
    last = TensorBoardSink()
    last.open(paths, "demo")
    for step, loss in ((6, 0.5), (7, 0.25), (8, 0.125)):
        last.write(step, {"learner/loss": loss})
    last.rewind(5)
    last.write(6, {"learner/loss": 0.75})
    last.close()
    events = EventAccumulator(str(paths.root / "tensorboard"))
    events.Reload()
    losses = [(point.step, point.value) for point in events.Scalars("learner/loss")]
    assert losses == [*((step, pytest.approx(1 / step)) for step in range(1, 6)), (6, 0.75)]
    assert [point.step for point in events.Scalars(EVALUATED)] == [0, 2, 4]


def wandb_records(offline):
    """The records of an offline run: blocks of 32 KiB whose chunks have a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    (file,) = offline.glob("*.wandb")
    data, at, record = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last chunk
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def wandb_points(offline):
    """What was logged, without W&B's own numbers."""
    logged = [
        {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in wandb_records(offline)
        if record.WhichOneof("record_type") == "history"
    ]
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in logged]


@pytest.fixture
def offline_wandb(monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    return wandb


def test_wandb_works_offline_with_the_config_and_an_axis_for_evaluations(tmp_path, offline_wandb):
    paths = create_run(tmp_path)
    paths.config.write_text("seed: 7\n")
    sink = WandbSink(project="p")
    sink.open(paths, "demo")
    run = offline_wandb.run
    assert (run.name, run.group, run.config["seed"]) == ("demo", "", 7)
    sink.write(24, {"learner/loss": 0.5})
    assert (run.summary["learner/loss"], run.summary["update"]) == (0.5, 24)
    sink.write(20, {EVALUATED: 0.7})
    sink.close()
    assert sink.next_step() == f"wandb sync {tmp_path}/wandb/offline-run-*"
    assert WandbSink(project="p", mode="online").next_step() is None
    (offline,) = (tmp_path / "wandb").glob("offline-run-*")
    assert wandb_points(offline) == [
        {"learner/loss": 0.5, "update": 24},
        {EVALUATED: 0.7, "evaluated_update": 20},
    ]
    axes = {
        record.metric.glob_name: record.metric.step_metric
        for record in wandb_records(offline)
        if record.WhichOneof("record_type") == "metric"
    }
    evaluated = ("evaluation-*", "exact-*")
    assert axes == {
        **{f"{name}*": "update" for name in NAMESPACES},
        **dict.fromkeys(evaluated, "evaluated_update"),
        "": "",  # the axes themselves
    }


@pytest.mark.parametrize(("killed", "again"), [(True, [1, 2, 3]), (False, [])])
def test_a_resumed_run_stays_one_wandb_run_with_all_points(tmp_path, offline_wandb, killed, again):
    """Of a killed part W&B may lack some, also of before the state that is resumed."""
    write_two_parts(lambda: WandbSink(project="p"), create_run(tmp_path), killed=killed)
    parts = sorted((tmp_path / "wandb").glob("offline-run-*"))
    kept = json.loads((tmp_path / "trackers.json").read_text())["wandb"]
    assert len(parts) == 2
    assert all(kept in part.name for part in parts)
    points = [point for part in parts for point in wandb_points(part)]
    updates = [p["update"] for p in points if "learner/loss" in p]
    assert updates == [1, 2, 3, 4, 5, *again, 4, 5, 6]
    assert {p["evaluated_update"] for p in points if EVALUATED in p} == {0, 2, 4}


def test_jobs_of_a_sweep_are_a_wandb_group_and_are_named_by_their_overrides(
    tmp_path, offline_wandb
):
    paths = create_run(tmp_path / "sweep_2026-11-25" / "0")
    jobs = [["+experiment=kuhn", f"seed={seed}", "learner.learning_rate=1e-3"] for seed in (1, 2)]
    write_sweep(paths.root.parent, ["+experiment=kuhn"], jobs)
    sink = WandbSink(project="p", tags=["ablation"])
    sink.open(paths, "demo")
    run = offline_wandb.run
    assert run.name == "demo seed=1 learner.learning_rate=1e-3"
    assert (run.group, run.tags) == ("sweep_2026-11-25", ("ablation",))
    sink.close()
    sink = WandbSink(project="p", group="mine")
    sink.open(create_run(tmp_path / "sweep_2026-11-25" / "1"), "demo")
    run = offline_wandb.run
    assert (run.group, run.name) == ("mine", "demo seed=2 learner.learning_rate=1e-3")
    sink.close()


def test_wandb_takes_tables_and_adapters_without_their_state(tmp_path, offline_wandb):
    sink = WandbSink(project="p")
    sink.open(create_run(tmp_path), "demo")
    sink.table(2, "ratings", RATINGS)
    sink.adapter(checkpoint(tmp_path))
    sink.close()
    (offline,) = (tmp_path / "wandb").glob("offline-run-*")
    (table,) = offline.rglob("ratings*.table.json")
    assert json.loads(table.read_text()) == {
        "columns": ["uid", "mu"],
        "data": [["step-2", 27.0], ["base", 25.0]],
    }
    (artifact,) = (
        record.artifact
        for record in wandb_records(offline)
        if record.WhichOneof("record_type") == "artifact" and record.artifact.type == "model"
    )
    assert [entry.path for entry in artifact.manifest.contents] == [
        "adapter_model.safetensors",
        "manifest.json",
    ]
    assert set(artifact.aliases) == {"latest", "step-3"}


def test_the_sinks_of_a_configuration_are_made_and_not_opened(tmp_path):
    pytest.importorskip("tensorboard")
    assert [type(sink) for sink in check_sinks(TrackerConfig())] == [JsonlSink]
    both = check_sinks(TrackerConfig(tensorboard=True))
    assert [type(sink) for sink in both] == [JsonlSink, TensorBoardSink]


class Service:
    """A service on the network, which a run reaches by sinks."""

    def __init__(self):
        self.points: list[tuple[int, float]] = []
        self.opened = 0
        self.down = ""

    def sink(self):
        class Remote:
            open = lambda _, run, name: self.asked("open")  # noqa: E731
            write = lambda _, step, scalars: self.asked("write", (step, scalars["loss"]))  # noqa: E731
            rewind = lambda _, step: None  # noqa: E731
            close = lambda _: self.asked("close")  # noqa: E731
            table = lambda _, step, name, rows: self.asked("table")  # noqa: E731

        return Remote()

    def asked(self, method, point=None):
        if self.down in (method, "all"):
            raise ConnectionError("no answer")
        self.opened += method == "open"
        if point is not None:
            self.points.append(point)


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def fed(tmp_path, service, clock, monkeypatch):
    """Makes the sinks of one part of a run after another."""
    monkeypatch.setattr(sinks.time, "time", lambda: 1e9 + clock.now)
    paths = create_run(tmp_path)
    return lambda: Sinks([JsonlSink(), service.sink()], paths, "demo", clock)


def test_what_a_sink_may_not_have_is_sent_again_after_a_kill(fed, service, clock):
    first = fed()
    for step in range(1, 6):
        first.write(step, {"loss": 0.5})
        clock.now += 15
        first.mark()
    # The process dies here. The mark is a minute old, and the state of update 4 is resumed.
    service.points.clear()
    second = fed()
    second.rewind(4)
    assert service.points == [(step, 0.5) for step in (3, 4)]
    second.write(5, {"loss": 0.25})
    assert second.close() == []
    service.points.clear()
    third = fed()
    third.rewind(5)
    third.close()
    assert service.points == []


def test_a_sink_that_fails_is_a_line_and_gets_what_it_lacks_when_it_answers(fed, service, clock):
    run = fed()
    run.write(1, {"loss": 0.5})
    clock.now += 100
    run.mark()
    service.down = "write"
    for step in (2, 3):
        run.write(step, {"loss": 0.5})
    failed = "Remote failed at step 2 (no answer): points from step 2 on may be missing there"
    assert run.said() == [f"{failed}; scalars.jsonl has all, for a later try or --resume"]
    assert run.failures == {"Remote": failed}
    service.down = ""
    run.write(4, {"loss": 0.5})  # too early to ask again
    assert service.points == [(1, 0.5)]
    clock.now += 61
    run.write(5, {"loss": 0.25})
    assert (service.opened, service.points[1:]) == (2, [*((n, 0.5) for n in (2, 3, 4)), (5, 0.25)])
    assert run.said() == ["Remote answers again, and has all points"]
    run.write(6, {"loss": 0.125})
    assert run.close() == []
    assert service.points[-1] == (6, 0.125)
    assert run.failures["Remote"].endswith("missing there; it answers again, and has all points")


@pytest.mark.parametrize("down", ["open", "write", "table", "close", "all"])
def test_no_method_of_a_sink_ends_the_run(fed, service, clock, down):
    service.down = down
    run = fed()
    run.write(1, {"loss": 0.5})
    run.table(1, "ratings", RATINGS)
    run.mark()
    lines = [*run.said(), *run.close()]
    assert lines[0].startswith("Remote failed at step ")
    assert set(run.failures) == {"Remote"}
    service.down = ""
    service.points.clear()
    again = fed()
    again.rewind(1)
    # One that answers at the end of the first part has got all there.
    assert service.points == ([] if down == "table" else [(1, 0.5)])
    assert again.close() == []


@pytest.mark.parametrize(
    ("package", "config"),
    [("tensorboard", {"tensorboard": True}), ("wandb", {"wandb_project": "p"})],
)
def test_a_missing_package_is_named_with_its_extra(package, config, monkeypatch, tmp_path):
    without(monkeypatch, package)
    with pytest.raises(ConfigError, match=rf"pip install 'rlforge\[{package}\]'") as caught:
        check_sinks(TrackerConfig(**config))
    assert caught.value.exit_code == 2
    with pytest.raises(ConfigError):
        Tracker(tmp_path, TrackerConfig(**config), "demo", 1)
    assert not (tmp_path / "scalars.jsonl").exists()
    check_sinks(TrackerConfig(wandb_mode="online"))  # without a project


@pytest.fixture
def wandb_server(monkeypatch):
    """The address of a server of W&B on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_server_of_wandb_that_does_not_answer_is_named_before_the_run(wandb_server, monkeypatch):
    """It is waited for no longer than a proxy takes to refuse, wandb itself tries for 90 s."""
    monkeypatch.setenv("WANDB_API_KEY", "k")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    online = TrackerConfig(wandb_project="p", wandb_mode="online")
    check_sinks(online)  # this machine is asked without a proxy
    monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.example")
    with pytest.raises(
        ConfigError, match=r"http://wandb\.example does not answer through http_proxy=http://127"
    ) as caught:
        check_sinks(online)
    assert "\n" not in str(caught.value)
    check_sinks(TrackerConfig(wandb_project="p"))


def test_going_online_needs_a_key(wandb_server, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    file = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(file))
    online = TrackerConfig(wandb_project="p", wandb_mode="online")
    with pytest.raises(ConfigError, match="online needs a key; set WANDB_API_KEY"):
        check_sinks(online)
    file.write_text("machine other.example login user password k\n")
    with pytest.raises(ConfigError, match="online needs a key"):
        check_sinks(online)
    file.write_text(f"machine {wandb_server} login user password k\n")
    check_sinks(online)
    file.write_text("nonsense")
    with pytest.raises(ConfigError, match="cannot be read"):
        check_sinks(online)
    monkeypatch.setenv("WANDB_API_KEY", "k")
    check_sinks(online)


def test_adapters_without_a_sink_that_takes_them_are_refused():
    ((key, reason),) = TrackerConfig(adapters="last").problems()
    assert (key, "set tracker.wandb_project or tracker.sinks" in reason) == ("adapters", True)
    for config in ({"wandb_project": "p"}, {"sinks": [{"name": "x"}]}):
        assert list(TrackerConfig(adapters="all", **config).problems()) == []
