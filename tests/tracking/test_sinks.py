"""Sinks record the means of a flush; packages and keys they need are checked before a run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from rlforge.config.schema import TrackerConfig
from rlforge.errors import ConfigError
from rlforge.tracking.files import create_run, read_jsonl
from rlforge.tracking.sinks import (
    JsonlSink,
    TensorBoardSink,
    WandbSink,
    check_sinks,
    make_sinks,
)


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else real(name)
    )


def test_jsonl_has_one_object_per_flush_and_drops_rewound_ones(tmp_path: Path) -> None:
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


def test_tensorboard_reads_the_scalars_without_rewound_ones(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    paths = create_run(tmp_path)
    sink = TensorBoardSink()
    sink.open(paths, "demo")
    for step, loss in ((1, 0.5), (2, 0.25), (3, 0.125)):
        sink.write(step, {"learner/loss": loss})
    sink.rewind(1)
    sink.write(2, {"learner/loss": 0.75})
    sink.close()
    events = EventAccumulator(str(paths.root / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("learner/loss")] == [
        (1, 0.5),
        (2, 0.75),
    ]


def test_wandb_works_offline_and_stores_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    paths = create_run(tmp_path)
    paths.config.write_text("seed: 7\n")
    sink = WandbSink(project="p")
    sink.open(paths, "demo")
    assert wandb.run.config["seed"] == 7
    sink.write(3, {"learner/loss": 0.5})
    assert wandb.run.summary["learner/loss"] == 0.5
    assert wandb.run.summary["update"] == 3
    sink.rewind(2)
    sink.close()
    (offline,) = (tmp_path / "wandb").glob("offline-run-*")
    assert list(offline.glob("*.wandb"))


def test_make_sinks_makes_what_is_configured(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    paths = create_run(tmp_path)
    plain = make_sinks(TrackerConfig(), paths, "demo")
    both = make_sinks(TrackerConfig(tensorboard=True), paths, "demo")
    assert [type(sink) for sink in plain] == [JsonlSink]
    assert [type(sink) for sink in both] == [JsonlSink, TensorBoardSink]
    for sink in [*plain, *both]:
        sink.close()


@pytest.mark.parametrize(
    ("package", "config"),
    [
        ("tensorboard", {"tensorboard": True}),
        ("wandb", {"wandb_project": "p"}),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    package: str, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without(monkeypatch, package)
    with pytest.raises(ConfigError, match=rf"pip install 'rlforge\[{package}\]'") as caught:
        check_sinks(TrackerConfig(**config))
    assert caught.value.exit_code == 2
    with pytest.raises(ConfigError):
        make_sinks(TrackerConfig(**config), create_run(tmp_path), "demo")
    assert not (tmp_path / "scalars.jsonl").exists()


def test_nothing_is_needed_where_nothing_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "wandb")
    check_sinks(TrackerConfig(wandb_mode="online"))


def with_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """wandb is installed and there is no key; returns the path of the netrc file."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example")
    return tmp_path / "netrc"


def test_going_online_needs_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = with_wandb(monkeypatch, tmp_path)
    online = TrackerConfig(wandb_project="p", wandb_mode="online")
    with pytest.raises(ConfigError, match="online needs a key; set WANDB_API_KEY"):
        check_sinks(online)
    file.write_text("machine other.example login user password k\n")
    with pytest.raises(ConfigError, match="online needs a key"):
        check_sinks(online)
    file.write_text("machine wandb.example login user password k\n")
    check_sinks(online)
    file.write_text("nonsense")
    with pytest.raises(ConfigError, match="cannot be read"):
        check_sinks(online)
    monkeypatch.setenv("WANDB_API_KEY", "k")
    check_sinks(online)
