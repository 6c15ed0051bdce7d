"""Versions that may still be loaded stay; a run is made longer once, and schedules with it."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlforge.config.compose import compose, run_yaml
from rlforge.config.schema import RunConfig
from rlforge.config.training import LearnerConfig
from rlforge.models.fit import start_of
from rlforge.record.files import RunPaths, write_json
from rlforge.run.resume import BEFORE_ALL, Retention, keep_start, made_longer, rewind
from rlforge.system.checkpoint import list_checkpoints, step_name, step_number, write_checkpoint


def _save(root: Path, *versions: int) -> None:
    for version in versions:
        meta = {"version": version}
        write_checkpoint(root, step_name(version), lambda p: (p / "w").touch(), meta)


def _left(root: Path) -> list[int]:
    return [step_number(path.name) for path in list_checkpoints(root)]


@pytest.mark.parametrize(
    ("keep", "published", "left"),
    [
        (None, 5, [1, 2, 3, 4, 5]),
        (0, 5, [2, 5]),
        (0, 3, [2, 3, 4, 5]),  # later versions are not published yet
        (1, 5, [2, 4, 5]),
        (9, 5, [1, 2, 3, 4, 5]),
    ],
)
def test_the_newest_versions_and_those_that_games_need_stay(
    tmp_path: Path, keep: int | None, published: int, left: list[int]
) -> None:
    _save(tmp_path, 1, 2, 3, 4, 5)
    Retention(tmp_path, keep).prune({"step-2", "step-5", "random_legal"}, published=published)
    assert _left(tmp_path) == left


def test_a_version_that_is_saved_while_others_are_deleted_stays(tmp_path: Path) -> None:
    """The learner saves the next version while the controller publishes the last one."""
    retention = Retention(tmp_path, 0)
    _save(tmp_path, 1)
    with ThreadPoolExecutor(1) as learner:
        saved = learner.submit(_save, tmp_path, *range(2, 101))
        while not saved.done():
            retention.prune((), published=1)
        saved.result()
    assert _left(tmp_path) == list(range(1, 101))


def test_versions_of_the_saved_state_stay_until_a_newer_one_is_saved(tmp_path: Path) -> None:
    _save(tmp_path, 1, 2, 3, 4)
    retention = Retention(tmp_path, 0)
    retention.resumable = {"step-1", "step-2"}
    retention.prune({"step-4"}, published=4)
    assert _left(tmp_path) == [1, 2, 4]
    retention.resumable = {"step-4"}
    retention.prune({"step-4"}, published=4)
    assert _left(tmp_path) == [4]


def test_the_start_of_a_run_stays_whatever_is_pruned_or_made_again(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    _save(root, 0, 1, 2)
    Retention(root, 1).prune(set())
    assert _left(root) == [0, 2]
    rewind(tmp_path, BEFORE_ALL)
    assert _left(root) == [0]


def test_the_start_is_the_runs_own_copy_of_the_initial_adapter(tmp_path: Path) -> None:
    sft = tmp_path / "sft"
    sft.mkdir()
    (sft / "adapter_config.json").write_text("{}")
    (sft / "adapter_model.safetensors").write_text("weights")
    (sft / "optimizer.pt").touch()
    config = RunConfig(learner=LearnerConfig(initial_adapter=str(sft)))
    run_dir = tmp_path / "run"
    (run_dir / "checkpoints").mkdir(parents=True)
    assert start_of(config, run_dir) == sft
    keep_start(config, run_dir)
    own = run_dir / "checkpoints" / "step-0"
    assert start_of(config, run_dir) == own
    assert (own / "adapter_model.safetensors").read_text() == "weights"
    assert not (own / "optimizer.pt").exists()
    shutil.rmtree(sft)
    keep_start(config, run_dir)  # as on resume
    assert start_of(RunConfig(), run_dir) is None


def _fill_with_state(folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "state" / "run.json").touch()


def _longer(run_dir: Path, config: RunConfig, more: int, made: int) -> tuple[RunConfig, str]:
    """Make a run longer that has made so many updates, all of them saved."""
    write_json(RunPaths(root=run_dir).progress, {"update": made})
    if made:
        root = run_dir / "checkpoints"
        shutil.rmtree(root, ignore_errors=True)
        write_checkpoint(root, step_name(made), _fill_with_state, {"version": made})
    longer, about, line = made_longer(config, run_dir, more)
    (run_dir / "config.yaml").write_text(run_yaml(longer, about))
    return longer, line


def test_more_updates_are_added_once_until_one_of_them_is_made(tmp_path: Path) -> None:
    config = compose(
        ["+experiment=kuhn_grpo", "learner.total_updates=8", "learner.schedule=constant"]
    ).config
    (tmp_path / "config.yaml").write_text(run_yaml(config))
    first, line = _longer(tmp_path, config, 2, made=8)
    assert (first.learner.total_updates, line) == (
        10,
        "--more 2: the run is to make 10 updates, 2 after 8",
    )
    again, line = _longer(tmp_path, first, 2, made=8)
    assert again == first
    assert line.endswith(
        "10 updates, 2 after 8, and not after the 10 of the last --more, of which none was made"
    )
    other, _ = _longer(tmp_path, again, 5, made=8)
    assert other.learner.total_updates == 13
    next_, line = _longer(tmp_path, other, 2, made=9)
    assert (next_.learner.total_updates, line[-27:]) == (15, "make 15 updates, 2 after 13")


def test_more_updates_say_how_they_stretch_schedules(tmp_path: Path) -> None:
    config = compose(
        [
            *("+experiment=kuhn_grpo", "learner.total_updates=4", "learner.schedule=linear"),
            *("learner.warmup_updates=0", "learner.learning_rate=5e-4"),
            *("algorithm.kl.coef=0.2", "algorithm.kl.final_ratio=0.5"),
            *("algorithm.entropy_coef=0.1", "algorithm.entropy_final_ratio=0"),
        ]
    ).config
    (tmp_path / "config.yaml").write_text(run_yaml(config))
    _, line = _longer(tmp_path, config, 4, made=4)
    assert line.partition("; ")[2] == (
        "schedules are stretched to that end: "
        "learner.learning_rate 0.000125 in update 4, 0.00025 in update 5, "
        "algorithm.kl.coef 0.125 in update 4, 0.15 in update 5, "
        "algorithm.entropy_coef 0.025 in update 4, 0.05 in update 5"
    )
