"""The drawn progress: complete at every width."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from rlforge.system.hardware import GpuLoad
from rlforge.tracking.files import read_json
from rlforge.tracking.progress import Progress
from rlforge.tracking.view import ProgressView


def draw(progress: Progress, width: int, now: float | None = None, **options: Any) -> list[str]:
    console = Console(record=True, width=width, file=io.StringIO(), **options)
    console.print(ProgressView(progress, now))
    return console.export_text().rstrip("\n").split("\n")


def progress_of(run: Path) -> Progress:
    return Progress.from_json(read_json(run / "progress.json"))


@pytest.mark.parametrize("width", [50, 80, 100, 120, 200])
def test_lines_fill_the_width_and_nothing_is_cut(full_run: Path, width: int) -> None:
    lines = draw(progress_of(full_run), width)
    assert {cell_len(line) for line in lines} == {width}
    text = " ".join("".join(lines).split())
    assert "…" not in text
    for part in ("6/10", "random_legal", "72%", "63%–80%", "+39.0", "31.0 ± 4.0", "engine-0"):
        assert part in text, part
    for part in ("128 running, 3 queued", "2,200/s", "0.5 updates", "37.5% distinct", "2e-6"):
        assert part in text, part
    for part in ("engine busy 61%", "learner busy 42%", "neither 6%", "failed games 1", "done"):
        assert part in text, part


@pytest.mark.parametrize("width", [80, 120])
def test_long_names_are_folded_not_lost(
    tmp_path: Path, make: Any, new_tracker: Any, width: int
) -> None:
    tracker = new_tracker(tmp_path)
    opponent = "openrouter:google/gemini-2.0-flash-lite-001-with-a-long-suffix"
    env = "GuessTheNumber-v0-hardcore-extra-long-train"
    tracker.add_eval(make.evaluation(0, 50, env_id=env, opponent=opponent))
    lines = draw(tracker.progress(), width)
    assert {cell_len(line) for line in lines} == {width}
    head = next(index for index, line in enumerate(lines) if "opponent" in line)
    start = lines[head].index("opponent")
    end = next(index for index in range(head, len(lines)) if lines[index].startswith("╰"))
    rows = lines[head + 1 : end]
    assert "".join(row[2:start].strip() for row in rows) == env
    assert "".join(row[start:].split()[0] for row in rows).rstrip("│") == opponent
    assert "…" not in "".join(lines)


def test_side_by_side_from_110_columns(full_run: Path) -> None:
    def row_with(lines: list[str], title: str) -> str:
        return next(line for line in lines if title in line)

    wide = draw(progress_of(full_run), 120)
    assert "Games between" in row_with(wide, "Ratings")
    assert "Engine and learner" in row_with(wide, "Ratings")
    middle = draw(progress_of(full_run), 80)
    assert "Games between" not in row_with(middle, "Ratings")
    assert "Engine and learner" in row_with(middle, "Ratings")
    narrow = draw(progress_of(full_run), 60)
    assert "Engine and learner" not in row_with(narrow, "Ratings")
    assert any("▃▆" in line for line in wide)  # the curve of win rates
    assert not any("▃▆" in line for line in middle)


def test_a_frame_fits_an_ordinary_terminal(tmp_path: Path, make: Any, new_tracker: Any) -> None:
    tracker = new_tracker(tmp_path)
    for opponent in ("base", "random_legal", "win_or_block"):
        tracker.add_eval(make.evaluation(0, 50, opponent=opponent))
    tracker.log_learner(make.update(1), make.shares)
    tracker.log_pool(make.snapshot(30))
    tracker.add_games([make.game()])
    tracker.log_inference(
        "engine-0", {"queued": 3, "running": 128, "tok_s": 2200.0, "tokens": 4400}
    )
    short = draw(tracker.progress(), 80, height=24, force_terminal=True)
    tall = draw(tracker.progress(), 80, height=60, force_terminal=True)
    assert len(short) < 24
    assert any("more policies" in line for line in short)
    assert not any("Training games" in line for line in short)
    assert any("Training games" in line for line in tall)
    assert len(tall) < 60


def test_an_empty_run_is_drawn(tmp_path: Path, new_tracker: Any) -> None:
    lines = draw(new_tracker(tmp_path).progress(), 80)
    text = "\n".join(lines)
    assert "0/10" in text
    assert "no evaluation yet" in text
    assert "no rated games yet" in text


def test_a_silent_run_shows_the_age_of_its_report(full_run: Path) -> None:
    data = {**read_json(full_run / "progress.json"), "status": "running", "updated_at": 1000.0}
    progress = Progress.from_json(data)
    assert "no report for 5:00" in "".join(draw(progress, 80, now=1300.0))
    assert "no report" not in "".join(draw(progress, 80, now=1010.0))
    assert "no report" not in "".join(draw(progress_of(full_run), 80, now=2e9))


def test_names_with_brackets_are_not_taken_for_markup(
    tmp_path: Path, make: Any, new_tracker: Any
) -> None:
    tracker = new_tracker(tmp_path)
    tracker.add_eval(make.evaluation(0, 50, opponent="[bold]x[/bold]", env_id="[red]e"))
    tracker.add_games([make.game(env_id="[red]e")])
    pool = make.snapshot(1)
    pool["matches"] = {"[b]y[/b]": {"base": 3}, "base": {"[b]y[/b]": 3}}
    tracker.log_pool(pool)
    for width in (50, 120):
        text = "".join(draw(tracker.progress(), width))
        assert "[bold]x[/bold]" in text
        assert "[b]y[/b] – base" in text
        assert text.count("[red]e") == 2


@pytest.mark.parametrize("width", [80, 120])
def test_before_the_first_update_the_frame_shows_what_is_played(
    tmp_path: Path, make: Any, new_tracker: Any, clock: Any, width: int
) -> None:
    tracker = new_tracker(tmp_path)
    clock.now += 30
    tracker.log_inference(
        "engine-0", {"queued": 12, "running": 64, "tok_s": 85.0, "tokens": 2400.0}
    )
    before = draw(tracker.progress(), width)
    assert {cell_len(line) for line in before} == {width}
    for part in ("0/10", "64 running, 12 queued", "85.0/s", "2,400 tokens"):
        assert part in " ".join("".join(before).split()), part
    tracker.add_games([make.game() for _ in range(3)])
    after = " ".join("".join(draw(tracker.progress(), width)).split())
    for part in ("games 3 (0.1/s)", "tokens 12", "SimpleTak-v0-train"):
        assert part in after, part


@pytest.mark.parametrize("width", [50, 80, 120])
def test_gpus_are_shown_where_there_are_some(tmp_path: Path, new_tracker: Any, width: int) -> None:
    tracker = new_tracker(tmp_path)
    assert "GPU" not in "".join(draw(tracker.progress(), width))
    full = GpuLoad(
        index=0,
        name="NVIDIA H200",
        used=34 * 2**30,
        memory=141 * 2**30,
        power=512.3,
        limit=700.0,
        busy=0.87,
    )
    tracker.log_gpus([full, GpuLoad(index=1, name="GTX 950", used=2**30, memory=2**31)])
    lines = draw(tracker.progress(), width)
    assert {cell_len(line) for line in lines} == {width}
    for part in ("GPU 0", "34.0/141 GiB", "512/700 W", "87%", "GPU 1", "1.0/2 GiB"):
        assert any(part in line for line in lines), part
