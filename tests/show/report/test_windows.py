"""The report of a continuous run."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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


def interval(mean, half):
    return {"mean": mean, "low": mean - half, "high": mean + half}


def test_changes_have_their_interval_and_a_colour_where_it_excludes_0(run):
    compared = json.loads(run.paths.comparison.read_text())
    sure, chance = interval(0.2, 0.05), interval(0.2, 0.3)
    compared["change"] = {
        "policy": {"win_rate": sure, "avg_reward": chance, "avg_pnl": interval(-0.4, 0.1)}
    }
    run.paths.comparison.write_text(json.dumps(compared))
    assert changes(run)[:3] == [
        ("good", "+20.0 pts (+15.0 pts to +25.0 pts)"),
        ("soft", "+0.2 (-0.1 to +0.5)"),
        ("bad", "-0.4 (-0.5 to -0.3)"),
    ]
    policy, of_chance = windows.changes(compared)[:2]
    assert policy.line.endswith("after: +20.0 pts (+15.0 pts to +25.0 pts)")
    assert of_chance.line.endswith("after: +0.2 (-0.1 to +0.5), which may be chance")


def test_a_change_without_an_interval_or_by_rounding_has_no_colour(run):
    assert [tone for tone, _ in changes(run)] == ["soft"] * 6
    assert ("soft", "+0") in changes(run)
    compared = json.loads(run.paths.comparison.read_text())
    compared["change"] = {"scripted:noise": {"avg_reward": interval(-5.49e-8, 0)}}
    run.paths.comparison.write_text(json.dumps(compared))
    assert {tone for tone, _ in changes(run)} == {"soft"}


SHARES = st.none() | st.floats(0, 1)
REWARDS = st.none() | st.floats(-1, 1)
PROFITS = st.none() | st.floats(-1e9, 1e9)
COUNTS = st.integers(0, 10**9)
PLAYED = st.fixed_dictionaries(
    {
        **dict.fromkeys(("decisions", "trades", "refused"), COUNTS),
        "win_rate": SHARES,
        "avg_reward": REWARDS,
        "avg_pnl": PROFITS,
    }
)
INTERVALS = st.none() | st.lists(st.floats(-2, 2), min_size=3, max_size=3).map(
    lambda three: dict(zip(("low", "mean", "high"), sorted(three), strict=True))
)
PLAYERS = st.fixed_dictionaries({"policy": PLAYED}, optional={"scripted:noise": PLAYED})
CHANGED = st.fixed_dictionaries(dict.fromkeys(("win_rate", "avg_reward", "avg_pnl"), INTERVALS))
COMPARISONS = st.fixed_dictionaries(
    {"before": st.fixed_dictionaries({"players": PLAYERS})},
    optional={
        "after": st.fixed_dictionaries({"players": PLAYERS}),
        "change": st.dictionaries(st.sampled_from(("policy", "scripted:noise")), CHANGED),
    },
)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_every_figure_of_the_page_may_have_any_value_of_its_range(run, data):
    rows = []
    for number in range(1, data.draw(st.integers(0, 3)) + 1):
        gain, team = data.draw(INTERVALS), data.draw(INTERVALS)
        trained = data.draw(st.booleans())
        rows.append(
            row(number, None)
            | {key: data.draw(COUNTS) for key in ("agents", "trajectories", "high_score_count")}
            | {"batch/trained_decisions": data.draw(COUNTS) if trained else 0}
            | {"version": f"step-{number}" if trained else None}
            | {"deployment_success": data.draw(st.none() | st.booleans())}
            | {"training_loss": data.draw(PROFITS), "kl_divergence": data.draw(PROFITS)}
            | {"avg_reward": data.draw(REWARDS), "duration_minutes": data.draw(st.floats(0, 1e6))}
            | {"players": data.draw(PLAYERS)}
            | {"reward_difference": gain and gain["mean"]}
            | {f"reward_difference_{end}": gain and gain[end] for end in ("low", "high")}
            | {"social/team_advantage": team and team["mean"]}
            | {f"social/team_advantage_{end}": team and team[end] for end in ("low", "high")}
            | {f"social/{key}": data.draw(SHARES) for key in ("agreement", "to_each_other")}
            | {"action/policy/NO_OP": data.draw(st.floats(0, 1))}
            | {"scorer/tau": data.draw(REWARDS), "reward/pnl": data.draw(PROFITS)}
        )
    run.paths.windows.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    run.paths.comparison.write_text(json.dumps(data.draw(COMPARISONS)))
    page = windows.page(load_run(run.paths.root))
    assert "Before and after" in page


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
