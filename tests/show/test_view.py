"""The drawn progress: complete at 80 and 120 columns."""

import dataclasses
import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.factories import SHARES, equal_turns, evaluation, pool_snapshot, update
from tests.harness.records import draw, one_line, progress_of

from rlforge.record.progress import ExactRow, Progress, WindowRow
from rlforge.record.results import Alarm, ApiUsage, PoolEntry
from rlforge.record.signals import Signal
from rlforge.show.view import progress_view
from rlforge.system.hardware import GpuLoad
from rlforge.system.values import from_json, to_json


@pytest.mark.parametrize("width", [80, 120])
def test_lines_fill_the_width_and_nothing_is_cut(full_run, width):
    lines = draw(progress_of(full_run), width)
    assert {cell_len(line) for line in lines} == {width}
    text = one_line(lines)
    assert "…" not in text
    for part in ("6/10", "random_legal", "72% 63%–80%", "+39.0", "31.0 ± 4.0", "engine-0"):
        assert part in text, part
    for part in ("running", "3 queued", "2,200/s", "0.5 updates", "37.5%", "distinct", "2e-6"):
        assert part in text, part
    for part in ("engine busy 61%", "learner busy 42%", "neither 6%", "failed games 1", "done"):
        assert part in text, part
    assert any("▃▆" in line for line in lines)  # the curve of win rates


@pytest.mark.parametrize("width", [60, 80])
def test_at_every_width_each_win_rate_has_the_name_of_its_opponent(tracker, width):
    wins = {"base": 31, "random": 47, "block": 83}
    for opponent, won in wins.items():
        tracker.add_eval(evaluation(0, won, opponent=opponent))
    lines = draw(tracker.progress(), width)
    assert any("Win rate in SimpleTak-v0" in line for line in lines)
    for opponent, won in wins.items():
        assert any(opponent in line and f"{won}%" in line for line in lines), opponent
    tracker.add_eval(evaluation(0, 50, env_id="KuhnPoker-v0"))
    text = one_line(draw(tracker.progress(), 80))
    assert "random_legal in KuhnPoker-v0" in text
    assert "block in SimpleTak-v0-train" in text, "of several environments, each is named"


def styles_of(progress, text):
    """The colours in which ``text`` is drawn."""
    console = Console(width=120, file=io.StringIO(), force_terminal=True, height=100)
    return {
        str(segment.style.color.name)
        for line in console.render_lines(progress_view(progress))
        for segment in line
        if text in segment.text and segment.style and segment.style.color
    }


def test_only_changes_beyond_the_confidence_intervals_have_a_colour(tracker):
    for opponent, wins in {"better": 71, "worse": 30, "same": 53}.items():
        tracker.add_eval(evaluation(0, 50, opponent=opponent))
        tracker.add_eval(evaluation(2, wins, opponent=opponent))
    windows = [
        WindowRow(window_id="1", decisions=9, trained=3, difference=number, low=low, high=high)
        for number, low, high in ((0.25, 0.1, 0.4), (-0.375, -0.5, -0.2), (0.062, -0.1, 0.2))
    ]
    continuous = dataclasses.replace(tracker.progress(), unit="window", windows=tuple(windows))
    for progress, (better, worse, same) in (
        (tracker.progress(), ("+21.0", "-20.0", "+3.0")),
        (continuous, ("+0.250", "-0.375", "+0.062")),
    ):
        assert styles_of(progress, better) == {"green"}
        assert styles_of(progress, worse) == {"red"}
        assert styles_of(progress, same) == set()


def test_ratings_that_are_only_inherited_are_not_shown_as_measured(full_run):
    measured = {"mu": 28.9, "sigma": 0.7, "games": 192, "active": True}
    rows = tuple(
        PoolEntry(uid=f"step-{version}", rated_games=rated, **measured)
        for version, rated in ((3, 0), (2, 0), (1, 40))
    )
    progress = dataclasses.replace(progress_of(full_run), ratings=rows, matches=())
    text = "\n".join(draw(progress, 120, height=100))
    assert re.search(r"step-1 +28\.9 ± 0\.7 +40 ", text)
    assert text.count("28.9") == 1
    assert "and 2 more policies" in text


@pytest.mark.parametrize("width", [80, 120])
def test_long_names_are_folded_not_lost(tracker, width):
    opponent = "openrouter:google/gemini-2.0-flash-lite-001-with-a-long-suffix"
    tracker.add_eval(evaluation(0, 50, opponent=opponent))
    lines = draw(tracker.progress(), width)
    assert {cell_len(line) for line in lines} == {width}
    head = next(index for index, line in enumerate(lines) if "opponent" in line)
    end = next(index for index in range(head, len(lines)) if lines[index].startswith("╰"))
    assert "".join(row.strip("│ ").split(" ")[0] for row in lines[head + 1 : end]) == opponent
    assert "…" not in "".join(lines)


def test_sections_are_side_by_side_where_there_is_room(full_run):
    def row_with(width, title):
        return next(line for line in draw(progress_of(full_run), width) if title in line)

    titles = ("Ladder", "Ratings", "Games between")
    assert [title in row_with(120, "Ladder") for title in titles] == [True, True, True]
    assert [title in row_with(80, "Ladder") for title in titles] == [True, True, False]
    assert [title in row_with(60, "Ladder") for title in titles] == [True, False, False]


def test_a_frame_fits_an_ordinary_terminal(full_run):
    """The most important fits in 80 x 24, all of it in 120 x 40."""
    small = draw(progress_of(full_run), 80)
    assert any("failed games" in line for line in small[:23])
    assert len(draw(progress_of(full_run), 120)) < 40


def test_a_silent_run_shows_the_age_of_its_report(full_run):
    progress = progress_of(full_run, status="running", updated_at=1000.0)
    assert "no report for 5:00" in "".join(draw(progress, 80, now=1300.0))
    assert "no report" not in "".join(draw(progress, 80, now=1010.0))
    assert "no report" not in "".join(draw(progress_of(full_run), 80, now=2e9))


def test_names_with_brackets_are_not_taken_for_markup(tracker):
    tracker.add_eval(evaluation(0, 50, opponent="[bold]x[/bold]", env_id="[red]e"))
    tracker.add_games([equal_turns(env_id="[red]e")])
    tracker.log_pool(pool_snapshot(1, matches={"[b]y[/b]": {"base": 3}, "base": {"[b]y[/b]": 3}}))
    text = "".join(draw(tracker.progress(), 120))
    assert "[bold]x[/bold]" in text
    assert "[b]y[/b] – base" in text
    assert text.count("[red]e") == 2


@pytest.mark.parametrize("width", [80, 120])
def test_before_the_first_update_the_frame_shows_what_is_played(tracker, clock, width):
    empty = one_line(draw(tracker.progress(), width))
    for part in ("0/10", "no evaluation yet", "no rated games yet"):
        assert part in empty, part
    clock.now += 30
    load = {"queued": 12, "running": 64, "tok_s": 85.0, "tokens": 2400.0}
    tracker.log_inference("engine-0", load)
    before = draw(tracker.progress(), width)
    assert {cell_len(line) for line in before} == {width}
    for part in ("0/10", "64 running, 12 queued, 2,400 tokens (85.0/s)"):
        assert part in one_line(before), part
    tracker.add_games([equal_turns() for _ in range(3)])
    after = one_line(draw(tracker.progress(), width))
    for part in ("games 3 (0.1/s)", "tokens 12", "SimpleTak-v0-train"):
        assert part in after, part


@pytest.mark.parametrize("width", [80, 120])
def test_gpus_are_shown_where_there_are_some(tracker, width):
    assert "GPU" not in "".join(draw(tracker.progress(), width))
    memory = {"used": 34 * 2**30, "memory": 141 * 2**30}
    full = GpuLoad(index=0, name="H200", **memory, power=512.3, limit=700.0, busy=0.87)
    tracker.log_gpus([full, GpuLoad(index=1, name="GTX 950", used=2**30, memory=2**31)])
    lines = draw(tracker.progress(), width)
    assert {cell_len(line) for line in lines} == {width}
    for part in ("GPU 0", "34.0/141 GiB", "512/700 W", "87%", "GPU 1", "1.0/2 GiB"):
        assert any(part in line for line in lines), part


def signals(*weights):
    return tuple(
        Signal(
            name=f"signal_{number}",
            step=number,
            text=f"{weight} figures of this run are what they should not be, by 0.{number}",
            mend="set a key to another value",
            weight=weight,
        )
        for number, weight in enumerate(weights)
    )


@pytest.mark.parametrize(("width", "folded"), [(80, 2), (120, 1)])
def test_one_signal_stands_in_full_below_the_head(tracker, width, folded):
    progress = dataclasses.replace(tracker.progress(), signals=signals("barren"))
    lines = draw(progress, width)
    at = next(at for at, line in enumerate(lines) if "signal_0" in line)
    assert lines[at - 1].startswith("╰")
    text = " ".join(line.strip() for line in lines[at : at + folded])
    assert text.startswith("signal_0  barren figures of this run")
    assert text.endswith("; set a key to another value")


@pytest.mark.parametrize("width", [80, 120])
def test_several_signals_have_three_lines_and_the_gravest_comes_first(tracker, width):
    several = signals("slow", "final", "slow", "barren", "slow")
    progress = dataclasses.replace(tracker.progress(), signals=several)
    lines = draw(progress, width)
    named = [re.findall(r"signal_\d", line) for line in lines]
    assert [names for names in named if names] == [["signal_1"], ["signal_3"], ["signal_4"]]
    assert next(line for line in lines if "signal_4" in line).rstrip().endswith("+2")
    ended = tuple(dataclasses.replace(one, until=9) for one in several)
    text = one_line(draw(dataclasses.replace(progress, signals=ended), width))
    assert "signal_" not in text


@pytest.mark.parametrize("width", [60, 80])
def test_exact_measures_and_alarms_have_sections_where_there_are_some(tracker, width):
    assert "Sentinel" not in "".join(draw(tracker.progress(), width))
    measured = {"start_step": 0, "start": 0.75, "history": (0.75, 0.25)}
    exact = ExactRow(env_id="kuhn_poker", step=4, nash_conv=0.25, **measured)
    versions = {"step": 3, "since": 2, "good": 1}
    alarm = Alarm(signal="gap", about="", observed=-0.75, expected=0.125, actions=(), **versions)
    progress = dataclasses.replace(tracker.progress(), exact=(exact,), alarms=(alarm,))
    text = one_line(draw(from_json(Progress, to_json(progress)), width))
    assert "Distance from equilibrium" in text
    assert "kuhn_poker 0.2500 0.7500 4" in text
    assert f"3 {alarm.text}" in text


@pytest.mark.parametrize("width", [80, 120])
def test_api_players_are_shown_with_what_they_took(tracker, width):
    used = {"games": 120, "requests": 2000, "prompt_tokens": 900_000, "answer_tokens": 334_000}
    player = ApiUsage(uid="openrouter:org/m", seconds=1800.0, cost=1.234, **used)
    tracker.log_api([player], {"games": 120})
    text = one_line(draw(from_json(Progress, to_json(tracker.progress())), width))
    for part in ("120 games", "2,000 requests (0.9 s), 1.23M tokens, $1.23"):
        assert part in text, part


def test_the_flow_of_games_and_the_bottleneck_are_shown(tracker):
    flow = {"games_in_progress": 352.4, "games_wanted": 380.0, "games_most": 384.0}
    flow |= {"learner_waits": 0.4, "engine_occupancy": 0.97, "expected_age": 3.21}
    tracker.log_learner(update(1), {**SHARES, **flow, "lost_share": 0.02})
    text = one_line(draw(from_json(Progress, to_json(tracker.progress())), 60))
    for part in (
        "352 games, 380 wanted, 384 at most",
        "engines: 97% of the engines' places are in use (engine.num_engines,",
        ", 3.2 expected",
        "thrown away 2.0%",
    ):
        assert part in text, part
