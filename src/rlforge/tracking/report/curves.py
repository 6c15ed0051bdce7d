"""Sections of charts: evaluation, learning, training games, throughput, ratings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rlforge.tracking.formatting import LEARNER_LABELS
from rlforge.tracking.report.charts import COLOURS, Chart, Series, figure, line_chart
from rlforge.tracking.report.data import Row, RunData
from rlforge.tracking.report.html import Html, el, fold

#: Most curves of single policies in the ratings chart.
MOST_RATED = 6

#: Learner metrics with a chart of their own, after those that have a label.
_LEARNER_MORE = {
    "raw_reward_mean": "reward before transforms",
    "advantage_mean": "advantage",
    "lag_max": "staleness, max",
    "clip_fraction": "clipped ratios",
    "value_loss": "value loss",
    "validation_loss": "held-out loss",
    "validation_answer_prob": "probability of a held-out answer",
}
#: Keys of metrics.jsonl that are no learner metrics; other sections show them.
_NOT_LEARNER = {
    "step",
    "window_id",
    "time_s",
    "games",
    "failed_games",
    "tokens",
    "samples_seen",
    "games_per_s",
    "generated_tokens_per_s",
    "tokens_per_s",
    "engine_share",
    "learner_share",
    "idle_share",
}
_COLLECTION = {
    "reward": "reward of trained seats",
    "draw_rate": "draws",
    "first_player_win_rate": "wins of the first player",
    "format_success": "answers in the asked-for format",
    "invalid_rate": "invalid moves",
    "truncated_rate": "answers cut at the token limit",
    "game_length": "turns per game",
    "completion_length": "tokens per answer",
    "failed_rate": "failed games",
}


def section(title: str, note: str, *content: Html | None) -> Html | None:
    """A titled part of the page; None when there is nothing in it."""
    if not any(content):
        return None
    return el("section", el("h2", title), el("p", note, cls="note"), *content)


def charts(figures: Iterable[Html | None]) -> Html | None:
    """Figures side by side, as many as the page is wide; None when there are none."""
    drawn = [figure for figure in figures if figure is not None]
    return el("div", *drawn, cls="charts") if drawn else None


def outcomes(run: RunData) -> list[Chart]:
    """Wins, draws and losses over the updates, for each environment and opponent."""
    pairs = dict.fromkeys((row["env_id"], row["opponent"]) for row in run.evals)
    drawn = []
    for env, opponent in pairs:
        rows = [row for row in run.evals if (row["env_id"], row["opponent"]) == (env, opponent)]
        steps = [row["step"] for row in rows]
        played = [max(row["games"], 1) for row in rows]
        win = Series(
            name="win",
            xs=steps,
            ys=[row["win_rate"] for row in rows],
            low=[row["ci95"][0] for row in rows],
            high=[row["ci95"][1] for row in rows],
            colour="win",
        )
        draws = [row["draws"] / games for row, games in zip(rows, played, strict=True)]
        losses = [row["losses"] / games for row, games in zip(rows, played, strict=True)]
        others = [
            Series(name="draw", xs=steps, ys=draws, colour="draw"),
            Series(name="loss", xs=steps, ys=losses, colour="loss"),
        ]
        title = f"{env} vs {opponent}"
        drawn.append(Chart(title=title, series=[win, *others], shares=True))
    return drawn


def win_rates(run: RunData) -> Html | None:
    """One chart per environment and opponent."""
    return section(
        "Evaluation",
        "Seat-swapped games of the policy after each number of updates; the band is the 95 % "
        "confidence interval of the win rate.",
        charts(figure(chart) for chart in outcomes(run)),
    )


def learner(run: RunData) -> Html | None:
    """Learner metrics with a label; the others collapsed."""
    names = dict.fromkeys(name for row in run.metrics for name in row if "/" not in name)
    labels = {**LEARNER_LABELS, **_LEARNER_MORE}
    first = [
        _metric(run, name, label, smooth=True) for name, label in labels.items() if name in names
    ]
    rest = charts(
        _metric(run, name, name)
        for name in names
        if name not in labels and name not in _NOT_LEARNER
    )
    return section(
        "Learning",
        "One value per update; from 30 updates on, the strong line is the mean over the last "
        "fifteenth of the updates (at least 5). The log-prob gap compares learner and engine on "
        "tokens of the version that is updated.",
        charts(first),
        fold("Further learner metrics", rest) if rest else None,
    )


def training_games(run: RunData) -> Html | None:
    """Collection metrics, one line per environment."""
    envs = dict.fromkeys(
        name.removeprefix("collection-").partition("/")[0]
        for row in run.metrics
        for name in row
        if name.startswith("collection-")
    )
    figures = []
    for name, label in _COLLECTION.items():
        lines = [
            _series(run.metrics, f"collection-{env}/{name}", env, index)
            for index, env in enumerate(envs)
        ]
        shares = name.endswith(("_rate", "_success"))
        figures.append(line_chart(label, lines, shares=shares))
    return section(
        "Training games", "Means over the tracker's window, at each update.", charts(figures)
    )


def throughput(run: RunData) -> Html | None:
    """Rates, and shares of wall time in which engine and learner worked."""
    work = {"engine_share": "engine", "learner_share": "learner", "idle_share": "neither"}
    shares = [
        _series(run.metrics, name, label, index) for index, (name, label) in enumerate(work.items())
    ]
    figures = [
        _metric(run, "games_per_s", "training games per second", smooth=True),
        _metric(run, "generated_tokens_per_s", "tokens generated per second", smooth=True),
        _metric(run, "tokens_per_s", "tokens trained per second of update", smooth=True),
        line_chart("share of wall time at work", shares, shares=True),
    ]
    return section(
        "Throughput",
        "Generated: by policies with known tokens, in training games. Engine and learner may work "
        "at the same time; neither: time lost to orchestration.",
        charts(figures),
    )


def ratings(run: RunData) -> Html | None:
    """TrueSkill over the run: of the newest policy, and of those that were active longest."""
    present = Counter(uid for row in run.ratings for uid in row["ratings"])
    newest = _rated(run.ratings, None, 0)
    followed = [
        _rated(run.ratings, uid, index + 1)
        for index, (uid, seen) in enumerate(present.most_common(MOST_RATED))
        if seen > 1 and seen >= len(run.ratings) / 3
    ]
    coverage = dict.fromkeys(env for row in run.ratings for env in row["coverage"])
    explored = [
        _series([{"step": row["step"], **row["coverage"]} for row in run.ratings], env, env, index)
        for index, env in enumerate(coverage)
    ]
    return section(
        "Ratings and exploration",
        f"TrueSkill mean with a band of one sigma: the newest policy, and up to {MOST_RATED} "
        "that were in the pool for at least a third of the run. Exploration is the share of recent "
        "action n-grams that are distinct.",
        charts(
            [
                line_chart("rating of the newest policy", [newest]),
                line_chart(
                    f"rating of {followed[0].name}"
                    if len(followed) == 1
                    else "ratings of single policies",
                    followed,
                ),
                line_chart("exploration", explored, shares=True),
            ]
        ),
    )


def _rated(rows: Sequence[Row], uid: str | None, index: int) -> Series:
    """The rating of ``uid`` over time; None: of the newest policy at each time."""
    there = []
    for row in rows:
        rating = row["ratings"].get(uid or row["current"])
        if rating is not None:
            there.append((row["step"], rating))
    return Series(
        name=uid or "newest policy",
        xs=[step for step, _ in there],
        ys=[mu for _, (mu, _sigma) in there],
        low=[mu - sigma for _, (mu, sigma) in there],
        high=[mu + sigma for _, (mu, sigma) in there],
        colour=f"c{index % COLOURS}",
    )


def _series(rows: Sequence[Row], key: str, name: str, index: int = 0) -> Series:
    return Series(
        name=name,
        xs=[row["step"] for row in rows],
        ys=[row.get(key) for row in rows],
        colour=f"c{index % COLOURS}",
    )


def _metric(run: RunData, key: str, label: str, smooth: bool = False) -> Html | None:
    return line_chart(label, [_series(run.metrics, key, label)], smooth=smooth)
