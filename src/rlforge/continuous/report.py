"""The report of a continuous run: before and after, learning curves, and a row per window."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from rlforge.record.samples import end_of
from rlforge.show.formatting import count, duration, number, percent, points
from rlforge.show.report.charts import COLOURS, NOISE, Chart, Series, figure, line_chart
from rlforge.show.report.curves import changing, charts, learner, section
from rlforge.show.report.data import Row, RunData
from rlforge.show.report.html import Html, changed, el, table
from rlforge.show.report.tables import made_by, titled
from rlforge.statistics import significant, wilson_interval

#: Figures of a comparison: label and format.
FIGURES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "win_rate": ("trades with a profit", lambda share: percent(share, 1)),
    "avg_reward": ("mean reward", lambda mean: number(mean, 3)),
    "avg_pnl": ("mean profit of a trade", lambda mean: number(mean, 3)),
}


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

#: Frames of decisions, by kind.
_COLOURS = {"best": "win", "worst": "draw", "refused": "loss"}

#: Changes of a share below this have no window in which they happened.
_WORTH_NAMING = 0.02


def sections(run: RunData) -> list[Html | None]:
    """All sections, the head first."""
    return [
        head(run),
        before_and_after(run),
        learning_curves(run),
        behaviour(run),
        listed(run),
        learner(run),
        scoring(run),
        sample_decisions(run),
        made_by(run),
    ]


def head(run: RunData) -> Html:
    """Name, status, and the figures of the whole run."""
    last = run.windows[-1] if run.windows else {}
    total = run.summary.get("total_windows")
    trained = [row for row in run.windows if row["version"] is not None]
    tiles = [
        ("windows", f"{len(run.windows)} of {total}" if total else str(len(run.windows))),
        ("wall time", duration(run.summary.get("wall_time_s"))),
        ("decisions", count(sum(row["trajectories"] for row in run.windows))),
        ("agents", count(last.get("agents", 0))),
        ("decisions learned from", count(sum(row["batch/trained_decisions"] for row in trained))),
        ("windows trained on", str(len(trained))),
        ("deployed", str(sum(row["deployment_success"] is True for row in trained))),
        ("serving", str(run.summary.get("serving", number(None)))),
    ]
    return titled(run, tiles)


def before_and_after(run: RunData) -> Html | None:
    """Policy and scripted traders in the same markets, before the run and after it."""
    before, after = (
        run.comparison.get(when, {}).get("players", {}) for when in ("before", "after")
    )
    rows = []
    for player in before:
        for key, (label, say) in FIGURES.items():
            first, last = before[player][key], after.get(player, {}).get(key)
            sure = _sure(before[player], after.get(player), key)
            rows.append([player, label, say(first), say(last), _change(first, last, key, sure)])
    return section(
        "Before and after",
        "Episodes in markets that the run did not train on, the same both times. The scripted "
        "traders do not change; their results do, since the policy trades in the same market. A "
        "change is coloured where the 95 % intervals before and after do not overlap, as if "
        "decisions were independent; profits have no interval.",
        table(
            ["player", "figure", "before", "after", "change"],
            rows,
            "Performance before and after the run",
            names=2,
        )
        if rows
        else None,
    )


#: What the mean of a figure is taken over; figures with values outside of 0 to 1 are left out.
_TAKEN_OVER = {"win_rate": "trades", "avg_reward": "decisions"}


def _sure(before: Row, after: Row | None, key: str) -> bool:
    """Whether a figure changed by more than noise, taking decisions for independent.

    A share's interval holds for any values of 0 to 1: none vary more than those that are 0 or 1.
    """
    over = _TAKEN_OVER.get(key)
    if over is None or after is None or before[key] is None or after[key] is None:
        return False
    return significant(
        *(wilson_interval(round(one[key] * one[over]), one[over]) for one in (before, after))
    )


def _change(first: float | None, last: float | None, key: str, sure: bool) -> Html | str:
    if first is None or last is None:
        return number(None)
    change = last - first
    if abs(change) < NOISE:
        change = 0.0
    text = f"{points(change)} pts" if key == "win_rate" else f"{change:+.3g}"
    return changed(change, text, sure)


def results(run: RunData) -> list[Chart]:
    """Each figure over the windows: a line for the policy and for each kind of trader."""
    players = dict.fromkeys(player for row in run.windows for player in row["players"])
    drawn = [_gain(run.windows, "reward_difference", "reward above the control")]
    for key, (label, _) in FIGURES.items():
        lines = []
        for index, player in enumerate(players):
            figures = [row["players"].get(player, {}).get(key) for row in run.windows]
            lines.append(_series(run.windows, player, figures, index))
        shares = key == "win_rate"
        drawn.append(Chart(title=label, series=lines, shares=shares, x_name="window"))
    return drawn


def _gain(rows: Sequence[Row], key: str, title: str) -> Chart:
    """How much more reward some agents get than others."""
    known = [row for row in rows if row.get(key) is not None]
    series = Series(
        name="difference, 95 % interval",
        xs=[row["window"] for row in known],
        ys=[row[key] for row in known],
        low=[row[f"{key}_low"] for row in known],
        high=[row[f"{key}_high"] for row in known],
    )
    return Chart(title=title, series=[series], x_name="window")


def learning_curves(run: RunData) -> Html | None:
    """One chart per figure."""
    return section(
        "Learning curves",
        "Decisions of each window, made by the versions that served at that time. The control is "
        "the version that the run began with; it trades in the same markets and never learns.",
        charts(figure(chart) for chart in results(run)),
    )


def listed(run: RunData) -> Html | None:
    """A row per window: its metrics, and why it was not trained on or deployed."""
    rows = [
        [
            row["window_id"],
            row["reason"] or ("deployed" if row["deployment_success"] else ""),
            row["version"] or number(None),
            count(row["agents"]),
            count(row["trajectories"]),
            number(row["avg_reward"], 3),
            count(row["high_score_count"]),
            number(row["training_loss"], 3),
            number(row["kl_divergence"], 3),
            number(row["duration_minutes"], 3),
        ]
        for row in run.windows
    ]
    heads = ["window", "outcome", "version", "agents", "decisions", "reward", "selected"]
    return section(
        "Windows",
        "Selected: decisions of the model that may be trained on. KL: mean divergence from the "
        "policy before the window, during training. Minutes: duration of the work.",
        table([*heads, "loss", "KL", "minutes"], rows, "Windows", names=3) if rows else None,
    )


def behaviour(run: RunData) -> Html | None:
    """Which actions the policy takes, and what its agents do with each other."""
    figures = [
        line_chart(
            f"actions of the {player}",
            [
                _series(run.windows, kind.replace("_", " ").lower(), shares, index)
                for index, (kind, shares) in enumerate(_actions(run.windows, player).items())
            ],
            shares=True,
            x_name="window",
        )
        for player in ("policy", "control")
    ]
    for title, keys in _SOCIAL.items():
        lines = [
            _series(run.windows, label, [row.get(f"social/{key}") for row in run.windows], index)
            for index, (key, label) in enumerate(keys.items())
        ]
        figures.append(line_chart(title, lines, x_name="window"))
    advantage = _gain(run.windows, "social/team_advantage", "reward of teams above other agents")
    figures.append(figure(advantage))
    return section(
        "Behaviour",
        "Shares of the types of action. Same side: of the agents that trade in one market at one "
        "time, the share of pairs that agree; 0.5 without a common opinion. Teams: agents that "
        "follow each other or comment on each other's posts.",
        table(
            ["action", "first window", "last window", "control, last", "half of the change by"],
            _emerged(run.windows),
            "Shares of actions in the first and in the last window",
        )
        if len(run.windows) > 1
        else None,
        charts(figures),
    )


def _actions(rows: Sequence[Row], player: str) -> dict[str, list[float]]:
    """Shares over the windows by type of action; 0 in windows without one of it."""
    prefix = f"action/{player}/"
    kinds = sorted({key for row in rows for key in row if key.startswith(prefix)})
    return {kind.removeprefix(prefix): [row.get(kind, 0.0) for row in rows] for kind in kinds}


def _emerged(rows: Sequence[Row]) -> list[list[str]]:
    """How the policy's actions changed, the greatest change first, and when."""
    control = _actions(rows[-1:], "control")
    found = []
    for kind, shares in _actions(rows, "policy").items():
        change = shares[-1] - shares[0]
        there = next(
            row["window_id"]
            for row, share in zip(rows, shares, strict=True)
            if abs(share - shares[0]) >= abs(change) / 2
        )
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


def scoring(run: RunData) -> Html | None:
    """Metrics of the scorer, and the terms of the reward."""
    names = dict.fromkeys(
        name for row in run.windows for name in row if name.startswith(("scorer/", "reward/"))
    )
    drawn = [
        Chart(
            title=name.replace("/", " ").replace("_", " "),
            series=[_series(run.windows, name, [row.get(name) for row in run.windows])],
            x_name="window",
        )
        for name in names
    ]
    return section("Scores and rewards", "One value per window that was scored.", changing(drawn))


def _series(
    rows: Sequence[Row], name: str, figures: Sequence[float | None], index: int = 0
) -> Series:
    xs = [row["window"] for row in rows]
    return Series(name=name, xs=xs, ys=figures, colour=f"c{index % COLOURS}")


def sample_decisions(run: RunData) -> Html | None:
    """Sample decisions in ``decisions.json``: of the newest window, then of the first."""
    first, newest = (run.decisions.get(when) or {} for when in ("first", "newest"))
    parts = [_window("Newest window", newest)]
    if first.get("window") != newest.get("window"):
        parts.append(_window("First window", first))
    return section(
        "Decisions",
        "The model's decisions with the highest and the lowest reward, and answers that named no "
        "action or one that was not accepted (red frame). rlforge windows decisions RUN WINDOW "
        "shows all of them.",
        *parts,
    )


def _window(title: str, chosen: Row) -> Html | None:
    if not chosen:
        return None
    return el(
        "article",
        el("h3", f"{title}, {chosen['window']}"),
        el("ol", *(_decision(one) for one in chosen["decisions"]), cls="turns"),
        cls="card",
    )


def _decision(one: Row) -> Html:
    worth = f"reward {number(one['reward'], 3)}"
    if one["profit"] is not None:
        worth += f", profit {one['profit']:+.2f}"
    if one["score"] is not None:
        worth += f", score {number(one['score'], 3)}"
    why = one["problem"] or one["explanation"]
    refused = one["kind"] == "refused"
    return el(
        "li",
        el(
            "header",
            el("span", one["agent"]),
            el("span", one["version"]),
            el("span", one["kind"], cls="badge bad" if refused else "badge"),
        ),
        el("pre", end_of(one["observation"]), tabindex=0, aria_label="prompt", cls="from-end"),
        el("pre", end_of(one["answer"]), tabindex=0, aria_label="answer", cls="answer"),
        el(
            "footer",
            el("code", json.dumps(one["action"], ensure_ascii=False)),
            f" {worth}",
            f": {why}" if why else None,
        ),
        cls=f"turn {_COLOURS[one['kind']]}{' wrong' * refused}",
    )
