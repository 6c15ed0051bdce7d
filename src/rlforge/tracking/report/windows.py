"""The report of a continuous run: before and after, learning curves, and what each window did."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlforge.tracking.formatting import count, duration, number, percent
from rlforge.tracking.report.charts import COLOURS, Series, line_chart
from rlforge.tracking.report.curves import charts, section
from rlforge.tracking.report.data import Row, RunData
from rlforge.tracking.report.html import Html, el, table
from rlforge.tracking.report.tables import titled

#: The document's figures of a comparison: what they are called here, and how they are written.
_FIGURES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "win_rate": ("trades with a profit", lambda share: percent(share, 1)),
    "avg_reward": ("mean reward", lambda mean: number(mean, 3)),
    "avg_pnl": ("mean profit of a trade", lambda mean: number(mean, 3)),
}


def head(run: RunData) -> Html:
    """Name, how it ended, and the figures of the whole run."""
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
    """The policy and the scripted traders in the same markets, before the run and after it."""
    before, after = (
        run.comparison.get(when, {}).get("players", {}) for when in ("before", "after")
    )
    rows = []
    for player in before:
        for key, (label, say) in _FIGURES.items():
            first, last = before[player][key], after.get(player, {}).get(key)
            rows.append([player, label, say(first), say(last), _change(first, last, key)])
    return section(
        "Before and after",
        "Episodes in markets that the run did not learn in, the same ones both times. The traders "
        "beside the policy do not change; the market that it makes for them does.",
        table(
            ["who", "figure", "before", "after", "change"],
            rows,
            "Performance before and after the run",
            names=2,
        )
        if rows
        else None,
    )


def _change(first: float | None, last: float | None, key: str) -> Html | str:
    if first is None or last is None:
        return number(None)
    change = last - first
    tone = "good" if change > 0 else "bad" if change < 0 else "soft"
    said = f"{100 * change:+.1f} pts" if key == "win_rate" else f"{change:+.3g}"
    return el("b", said, cls=tone)


def learning_curves(run: RunData) -> Html | None:
    """Each figure over the windows, the policy first, a line for each kind of trader."""
    players = dict.fromkeys(player for row in run.windows for player in row["players"])
    figures = []
    for key, (label, _) in _FIGURES.items():
        lines = [
            _series(run.windows, player, _of_player(run.windows, player, key), index)
            for index, player in enumerate(players)
        ]
        figures.append(line_chart(label, lines, shares=key == "win_rate", x_name="window"))
    return section(
        "Learning curves",
        "The decisions of each window as they were made, by the versions that served then.",
        charts(figures),
    )


def _of_player(rows: Sequence[Row], player: str, key: str) -> list[float | None]:
    return [row["players"].get(player, {}).get(key) for row in rows]


def listed(run: RunData) -> Html | None:
    """A row per window: the document's metrics, and what was not trained or deployed, and why."""
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
        "Selected: decisions of the model that may be learned from. KL: mean distance from the "
        "policy before the window while it was trained on. Minutes are those of the work.",
        table([*heads, "loss", "KL", "minutes"], rows, "What each window did", names=3)
        if rows
        else None,
    )


def scoring(run: RunData) -> Html | None:
    """What the scorer said about itself, and the terms of the reward."""
    names = dict.fromkeys(
        name for row in run.windows for name in row if name.startswith(("scorer/", "reward/"))
    )
    figures = [
        line_chart(
            name.replace("/", " ").replace("_", " "),
            [_series(run.windows, name, [row.get(name) for row in run.windows])],
            x_name="window",
        )
        for name in names
    ]
    return section(
        "Scores and rewards", "Of every window that was scored, as written down.", charts(figures)
    )


def _series(
    rows: Sequence[Row], name: str, figures: Sequence[float | None], index: int = 0
) -> Series:
    xs = [row["window"] for row in rows]
    return Series(name=name, xs=xs, ys=figures, colour=f"c{index % COLOURS}")
