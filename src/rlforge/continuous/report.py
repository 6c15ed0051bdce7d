"""The report of a continuous run: before and after, learning curves, and a row per window."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import itemgetter

from rlforge.continuous.decisions.records import PROBLEM, Decision
from rlforge.show.formatting import NOTHING, count, duration, number, percent, points
from rlforge.show.report import curves
from rlforge.show.report.charts import COLOURS, NOISE, Chart, Series
from rlforge.show.report.data import Row, RunData
from rlforge.show.report.page import render
from rlforge.show.report.tables import api_players
from rlforge.statistics import significant
from rlforge.system.files import reading
from rlforge.system.values import json_ready
from rlforge.types import value

#: Charts about what agents do with each other: title, and label of each key.
_SOCIAL = {
    "posts and comments per decision": {"posts": "posts", "comments": "comments"},
    "accounts followed": {"follows": "by an agent"},
    "agents on the same side": {"agreement": "policy", "control_agreement": "control"},
    "agents in teams": {
        "team_agents": "share of the agents",
        "to_each_other": "share of comments and follows among them",
    },
}

#: Figures that compare a policy before and after a run, and what they are.
COMPARED = {
    "win_rate": "trades with a profit",
    "avg_reward": "mean reward",
    "avg_pnl": "mean profit of a trade",
}
#: Those that are shares.
_SHARES = ("win_rate",)
#: Changes of a share below this have no window in which they happened.
_WORTH_NAMING = 0.02


@value
class Change:
    """A figure of a player before the run and after it.

    change: None where one is not known. text: with the 95 % interval, where there is one. sure:
    whether the interval excludes 0.
    """

    player: str
    label: str
    first: str
    last: str
    change: float | None
    text: str
    sure: bool

    @property
    def line(self) -> str:
        chance = "" if self.sure or self.change is None else ", which may be chance"
        return f"{self.label}: {self.first} before, {self.last} after: {self.text}{chance}"


#: What the page shows of every window.
_NEEDED = (
    *("reason", "version", "players", "agents", "trajectories", "avg_reward", "high_score_count"),
    *("training_loss", "kl_divergence", "duration_minutes", "deployment_success"),
    *("batch/trained_decisions", "reward_difference_low", "reward_difference_high"),
)


def check_windows(run: RunData) -> None:
    """Raise DamagedError for a window without what pages show of every one."""
    with reading(run.paths.windows, "put a copy in its place, or remove the line of that window"):
        for row in run.windows:
            itemgetter(*_NEEDED)(row)


def page(run: RunData) -> str:
    """The page of a run; DamagedError as of ``check_windows``."""
    check_windows(run)
    return render(
        "continuous/report.html.jinja",
        run=run,
        tiles=tiles(run),
        changes=changes(run.comparison),
        results=results(run),
        emerged=emerged(run.windows),
        behaviour=behaviour(run),
        talk=any("social/team_agents" in row for row in run.windows),
        learning=curves.learner(run),
        scores=scores(run),
        WINDOW_HEADS=WINDOW_HEADS,
        window_row=window_row,
        api_players=api_players,
        json=json,
    )


#: Heads of ``window_row``, the first three of texts.
WINDOW_HEADS = (
    *("window", "outcome", "version", "agents", "decisions", "reward", "above the control"),
    *("selected", "loss", "KL", "minutes"),
)


def window_row(row: Row) -> list[str]:
    """The cells of a window, below ``WINDOW_HEADS``."""
    above, bounds = row.get("reward_difference"), NOTHING
    if above is not None:
        bounds = f"{above:+.3f}"
        if (low := row["reward_difference_low"]) is not None:
            bounds += f" ({low:+.3f} to {row['reward_difference_high']:+.3f})"
    return [
        row["window_id"],
        row["reason"] or ("deployed" if row["deployment_success"] else ""),
        row["version"] or NOTHING,
        count(row["agents"]),
        count(row["trajectories"]),
        number(row["avg_reward"], 3),
        bounds,
        count(row["high_score_count"]),
        number(row["training_loss"], 3),
        number(row["kl_divergence"], 3),
        number(row["duration_minutes"], 3),
    ]


def decision_row(
    decision: Decision, kind: str, score: float | None = None, explanation: str = ""
) -> Row:
    """Facts that pages show of a decision of a model. kind: a word on it."""
    completion, result = decision.completion, decision.result
    assert completion is not None, "it is of a model"
    row: Row = json_ready(
        {
            "kind": kind,
            "agent": decision.agent_id,
            "version": completion.policy_uid,
            "time": decision.timestamp,
            "observation": decision.observation,
            "answer": completion.text,
            "action": {key: part for key, part in decision.action.items() if key != PROBLEM},
            "problem": decision.action.get(PROBLEM),
            "reward": decision.reward,
            "profit": None if result is None or not result.investment else result.pnl,
            "score": score,
            "explanation": explanation,
        }
    )
    return row


def tiles(run: RunData) -> dict[str, str]:
    last = run.windows[-1] if run.windows else {}
    total = run.summary.get("total_windows")
    trained = [row for row in run.windows if row["version"] is not None]
    return {
        "windows": f"{len(run.windows)} of {total}" if total else str(len(run.windows)),
        "wall time": duration(run.summary.get("wall_time_s")),
        "decisions": count(sum(row["trajectories"] for row in run.windows)),
        "agents": count(last.get("agents", 0)),
        "decisions learned from": count(sum(row["batch/trained_decisions"] for row in trained)),
        "windows trained on": str(len(trained)),
        "deployed": str(sum(row["deployment_success"] is True for row in trained)),
        "serving": str(run.summary.get("serving", number(None))),
    }


def changes(comparison: Row) -> list[Change]:
    """Policy and scripted traders in the same markets, before the run and after it."""
    before = comparison.get("before", {}).get("players", {})
    return [_change(player, key, comparison) for player in before for key in COMPARED]


def _change(player: str, key: str, comparison: Row) -> Change:
    def say(figure: float | None) -> str:
        return percent(figure, 1) if key in _SHARES else number(figure, 3)

    def shown(change: float) -> str:
        return f"{points(change)} pts" if key in _SHARES else f"{change:+.3g}"

    first = comparison["before"]["players"][player][key]
    last = comparison.get("after", {}).get("players", {}).get(player, {}).get(key)
    interval = comparison.get("change", {}).get(player, {}).get(key)
    change, text, sure = None, number(None), False
    if first is not None and last is not None:
        # Sums of the same numbers in another order differ by rounding.
        change = 0.0 if abs(last - first) < NOISE else last - first
        text = shown(change)
    # With an interval of agents that are paired, the change is theirs, to lie within it.
    if interval is not None:
        change, bounds = interval["mean"], (interval["low"], interval["high"])
        text = f"{shown(change)} ({' to '.join(shown(bound) for bound in bounds)})"
        sure = significant(bounds) and abs(change) >= NOISE
    return Change(
        player=player,
        label=COMPARED[key],
        first=say(first),
        last=say(last),
        change=change,
        text=text,
        sure=sure,
    )


def results(run: RunData) -> list[Chart]:
    """Each figure over the windows: a line for the policy and for each kind of trader."""
    players = dict.fromkeys(player for row in run.windows for player in row["players"])
    drawn = [_gain(run.windows, "reward_difference", "reward above the control")]
    for key, label in COMPARED.items():
        lines = {
            player: [row["players"].get(player, {}).get(key) for row in run.windows]
            for player in players
        }
        drawn.append(_chart(run.windows, label, lines, shares=key in _SHARES))
    return drawn


def _gain(rows: Sequence[Row], key: str, title: str) -> Chart:
    points = [
        (row["window"], row[key], row[f"{key}_low"], row[f"{key}_high"])
        for row in rows
        if row.get(key) is not None
    ]
    # Windows without two agents on a side have no interval.
    series = Series.banded("difference, 95 % interval", points)
    return Chart(title=title, series=[series], x_name="window")


def behaviour(run: RunData) -> list[Chart]:
    """Which actions the policy takes, and what its agents do with each other."""
    rows, drawn = run.windows, []
    for player in ("policy", "control"):
        taken = _actions(rows, player)
        lines = {kind.replace("_", " ").lower(): shares for kind, shares in taken.items()}
        drawn.append(_chart(rows, f"actions of the {player}", lines, shares=True))
    for title, keys in _SOCIAL.items():
        about = {label: [row.get(f"social/{key}") for row in rows] for key, label in keys.items()}
        drawn.append(_chart(rows, title, about))
    advantage = _gain(rows, "social/team_advantage", "reward of teams above other agents")
    return [*drawn, advantage]


def _actions(rows: Sequence[Row], player: str) -> dict[str, list[float]]:
    """Shares over the windows by type of action; 0 in windows without it."""
    prefix = f"action/{player}/"
    kinds = sorted({key for row in rows for key in row if key.startswith(prefix)})
    return {kind.removeprefix(prefix): [row.get(kind) or 0.0 for row in rows] for kind in kinds}


def emerged(rows: Sequence[Row]) -> list[list[str]]:
    """How the policy's actions changed, the greatest change first, and when."""
    if len(rows) < 2:
        return []
    control = _actions(rows[-1:], "control")
    found = []
    for kind, shares in _actions(rows, "policy").items():
        change = shares[-1] - shares[0]
        there = next(
            row["window_id"]
            for row, share in zip(rows, shares, strict=True)
            if abs(share - shares[0]) >= abs(change) / 2
        )
        # Without control agents there is no figure.
        last = control.get(kind, [0.0] if control else [None])[0]
        line = [
            kind.replace("_", " ").lower(),
            percent(shares[0], 1),
            percent(shares[-1], 1),
            percent(last, 1),
            there if abs(change) >= _WORTH_NAMING else number(None),
        ]
        found.append((-abs(change), line))
    return [line for _, line in sorted(found, key=lambda pair: pair[0])]


def scores(run: RunData) -> list[Chart]:
    names = dict.fromkeys(
        name for row in run.windows for name in row if name.startswith(("scorer/", "reward/"))
    )
    drawn = []
    for name in names:
        figures = [row.get(name) for row in run.windows]
        title = name.replace("/", " ").replace("_", " ")
        drawn.append(_chart(run.windows, title, {name: figures}))
    return drawn


def _chart(
    rows: Sequence[Row],
    title: str,
    lines: Mapping[str, Sequence[float | None]],
    *,
    shares: bool = False,
) -> Chart:
    """The figures of each name over the windows ``rows``."""
    xs = [row["window"] for row in rows]
    series = [
        Series(name=name, xs=xs, ys=ys, colour=f"c{index % COLOURS}")
        for index, (name, ys) in enumerate(lines.items())
    ]
    return Chart(title=title, series=series, shares=shares, x_name="window")
