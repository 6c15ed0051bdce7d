"""The report of a continuous run."""

import json
import re

import pytest
from tests.harness.pages import cells, charts

from rlforge.continuous import report as windows
from rlforge.show.report import write_report
from rlforge.show.report.data import load_run

#: Further figures that the report lists of a window.
LISTED = (
    *("agents", "trajectories", "avg_reward", "high_score_count", "training_loss"),
    *("kl_divergence", "duration_minutes", "deployment_success", "batch/trained_decisions"),
)


def figures(reward, decisions=400):
    return {
        "win_rate": reward + 0.2,
        "avg_reward": reward,
        "avg_pnl": 2 * reward,
        "decisions": decisions,
        "trades": decisions // 2,
    }


def row(number, difference):
    bounds = (None, None) if difference is None else (difference - 0.1, difference + 0.1)
    return {
        **dict.fromkeys(LISTED, 1),
        "reason": "it is <not> ready",
        "version": None,
        "window": number,
        "window_id": f"2024-11-13-{9 + number}:00",
        "players": {"policy": figures(0.3), "control": figures(0.2)},
        "reward_difference": difference,
        "reward_difference_low": bounds[0],
        "reward_difference_high": bounds[1],
    }


@pytest.fixture
def run(tmp_path):
    compared = {
        when: {"players": {"policy": figures(reward), "scripted:noise": figures(same)}}
        for when, reward, same in (("before", 0.3, 0.1), ("after", 0.5, 0.1 - 5.49e-8))
    }
    (tmp_path / "config.yaml").write_text("kind: continuous\n")
    (tmp_path / "comparison.json").write_text(json.dumps(compared))
    rows = [row(1, 0.05), row(2, None), row(3, 0.25)]
    rows[0] |= {"version": "step-1", "reason": ""}
    rows[0] |= {"action/policy/NO_OP": 0.8, "action/policy/BUY_SHARES": 0.2}
    rows[1] |= {"action/policy/NO_OP": 1.0, "social/agreement": None}
    rows[2] |= {"action/policy/NO_OP": 0.3, "action/policy/BUY_SHARES": 0.21}
    rows[2] |= {"action/policy/CREATE_POST": 0.49, "action/control/NO_OP": 1.0}
    rows[2] |= {"social/agreement": 0.75, "social/control_agreement": 0.5}
    (tmp_path / "windows.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    return load_run(tmp_path)


def test_the_page_has_curves_a_comparison_and_a_row_per_window(run):
    update = {"step": 1, "window_id": "2024-11-13-10:00", "loss": 0.21, "kl": 0.03}
    run.paths.metrics.write_text(f"{json.dumps(update)}\n")
    page = write_report(run.paths.root).read_text()
    shown = ("+20.0 pts", "2024-11-13-12:00", "deployed", "it is &lt;not&gt; ready")
    for part in (*shown, "scripted:noise"):
        assert part in page, part
    assert len(charts(page)) >= 5


def section(run, title):
    """The part of the page below a title; empty where there is none."""
    page = windows.page(load_run(run.paths.root))
    return page.partition(f"<h2>{title}</h2>")[2].partition("</section>")[0]


def changes(run):
    """Class and text of each change of the table."""
    return re.findall(r'<b class="(\w+)">([^<]*)</b>', section(run, "Before and after"))


def test_a_change_by_rounding_is_neither_good_nor_bad(run):
    rewards = [change for change in changes(run) if "pts" not in change[1]]
    assert rewards[0] == ("good", "+0.2")
    assert ("soft", "+0") in rewards
    assert not [text for tone, text in rewards if tone == "bad"]


def test_a_change_within_the_intervals_and_one_of_profits_have_no_colour(run):
    assert ("soft", "+0.4") in changes(run), "profits have no interval"
    few = {
        when: {"players": {"policy": figures(reward, decisions=10)}}
        for when, reward in (("before", 0.3), ("after", 0.5))
    }
    run.paths.comparison.write_text(json.dumps(few))
    assert changes(run) == [("soft", "+20.0 pts"), ("soft", "+0.2"), ("soft", "+0.4")]


def test_the_first_chart_is_the_difference_to_the_control_with_its_interval(run):
    first, *others = windows.results(run)
    (line,) = first.series
    assert (list(line.xs), list(line.ys)) == ([1, 3], [0.05, 0.25])
    assert line.low is not None
    assert line.high is not None
    assert list(line.low) == pytest.approx([-0.05, 0.15])
    assert list(line.high) == pytest.approx([0.15, 0.35])
    assert [series.name for series in others[0].series] == ["policy", "control"]


def test_actions_are_listed_by_how_much_they_changed_and_when(run):
    behaviour = section(run, "Behaviour")
    assert cells(behaviour) == [
        ["no op", "80.0%", "30.0%", "100.0%", "2024-11-13-12:00"],
        ["create post", "0.0%", "49.0%", "0.0%", "2024-11-13-12:00"],
        ["buy shares", "20.0%", "21.0%", "0.0%", "–"],
    ]
    assert {"actions of the policy", "agents on the same side"} <= {*charts(behaviour)}
    assert "agents in teams" not in charts(behaviour), "nothing is known of them"


def test_a_run_without_windows_has_no_section_on_behaviour(run):
    run.paths.windows.write_text("")
    assert section(run, "Behaviour") == ""


def test_decisions_of_the_newest_and_the_first_window_are_shown(run):
    def decision(kind, answer):
        return {
            "kind": kind,
            "agent": "agent-1",
            "version": "deploy-2",
            "observation": "Minute 5 <b>",
            "answer": answer,
            "action": {"type": "NO_OP"},
            "problem": "no action & no reason" if kind == "refused" else None,
            "reward": 0.25,
            "profit": -1.5 if kind == "best" else None,
            "score": 0.75,
            "explanation": "it waits",
        }

    first = {"window": "10:00", "decisions": [decision("best", "[wait]")]}
    newest = {"window": "12:00", "decisions": [decision("refused", "[what]")]}
    path = run.paths.decisions
    path.write_text(json.dumps({"first": first, "newest": newest}))
    html = section(run, "Decisions")
    assert html.index("Newest window, 12:00") < html.index("First window, 10:00")
    assert "reward 0.25, profit -1.50, score 0.75: it waits" in html
    assert "no action &amp; no reason" in html
    assert "Minute 5 &lt;b&gt;" in html
    assert 'class="turn loss wrong"' in html
    path.write_text(json.dumps({"first": newest, "newest": newest}))
    assert "First window" not in section(run, "Decisions")
    path.unlink()
    assert section(run, "Decisions") == ""


def test_scores_that_never_change_are_folded(run):
    rows = [row(number, None) | {"scorer/pairs": 4000.0, "scorer/tau": number} for number in (1, 2)]
    run.paths.windows.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    html = section(run, "Scores and rewards")
    assert html.index("scorer tau") < html.index("<details")
    assert "No change above 1e-6: scorer pairs (4,000)" in html
