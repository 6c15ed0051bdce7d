"""The charts of a run: results, learning, training games, throughput, ratings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rlforge.record.results import Ratings, by_pairing
from rlforge.show.formatting import LEARNER_LABELS
from rlforge.show.report.charts import COLOURS, Chart, Series
from rlforge.show.report.data import Row, RunData

#: Most curves of single policies in the ratings chart.
MOST_RATED = 6

#: Learner metrics with a label, in order.
_LEARNING = {
    "reward_mean": LEARNER_LABELS["reward_mean"],
    "raw_reward_mean": "reward before transforms",
    **LEARNER_LABELS,
    "advantage_mean": "advantage",
    "lag_max": "staleness, max",
    "clip_fraction": "clipped ratios",
    "value_loss": "value loss",
    "validation_loss": "held-out loss",
    "validation_answer_prob": "probability of a held-out answer",
}
#: Metrics that are set or counted, so that no change is noise.
_EXACT = {"lr", "lag_mean", "lag_max"}
#: Metrics of which a mean would hide the largest value.
_MAXIMA = {"logprob_gap_max"}
_RATES = {
    "games_per_s": "training games per second",
    "generated_tokens_per_s": "tokens generated per second",
    "tokens_per_s": "tokens trained per second of update",
}
_WORK = {"engine_share": "engine", "learner_share": "learner", "idle_share": "neither"}
_COUNTERS = {"step", "window_id", "time_s", "games", "failed_games", "tokens", "samples_seen"}
#: Keys of metrics.jsonl that other charts and tables show.
_SHOWN = {*_LEARNING, *_RATES, *_WORK, *_COUNTERS}
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


def outcomes(run: RunData) -> list[Chart]:
    """Wins, draws and losses, for each environment and opponent."""
    drawn = []
    for (env, opponent), rows in by_pairing(run.evals).items():
        steps = [row.step for row in rows]
        wins = [(row.step, row.win_rate, *row.ci95) for row in rows]
        draws, losses = [row.draw_rate for row in rows], [row.loss_rate for row in rows]
        lines = [
            Series.banded("win", wins, colour="win"),
            Series(name="draw", xs=steps, ys=draws, colour="draw"),
            Series(name="loss", xs=steps, ys=losses, colour="loss"),
        ]
        title = f"{env} vs {opponent}"
        drawn.append(Chart(title=title, series=lines, shares=True))
    return drawn


def exact(run: RunData) -> list[Chart]:
    drawn = []
    for env in dict.fromkeys(row.env_id for row in run.exact):
        rows = [row for row in run.exact if row.env_id == env]
        steps = [row.step for row in rows]
        gains = zip(*(row.gains for row in rows), strict=True)
        seats = [
            Series(name=f"gain of seat {seat}", xs=steps, ys=ys, colour=f"c{seat + 1}")
            for seat, ys in enumerate(gains)
        ]
        total = Series(name="NashConv", xs=steps, ys=[row.nash_conv for row in rows])
        drawn.append(Chart(title=rows[-1].measured, series=[total, *seats], exact=True))
    return drawn


def learner(run: RunData) -> tuple[list[Chart], list[Chart]]:
    """Learner metrics with a label, and the others."""
    # With a slash they are of games, engines or other policies, which have their own charts.
    names = dict.fromkeys(name for row in run.metrics for name in row if "/" not in name)
    others = [name for name in names if name not in _SHOWN]
    labelled = [metric(run, name, _LEARNING[name]) for name in _LEARNING if name in names]
    return labelled, [metric(run, name, name) for name in others]


def training_games(run: RunData) -> list[Chart]:
    envs = dict.fromkeys(
        name.removeprefix("collection-").partition("/")[0]
        for row in run.metrics
        for name in row
        if name.startswith("collection-")
    )
    drawn = []
    for name, label in _COLLECTION.items():
        lines = [
            _series(run.metrics, f"collection-{env}/{name}", env, index)
            for index, env in enumerate(envs)
        ]
        shares = name.endswith(("_rate", "_success"))
        drawn.append(Chart(title=label, series=lines, shares=shares))
    return drawn


def throughput(run: RunData) -> list[Chart]:
    work = [
        _series(run.metrics, name, label, index)
        for index, (name, label) in enumerate(_WORK.items())
    ]
    rates = [metric(run, name, label) for name, label in _RATES.items()]
    return [*rates, Chart(title="share of wall time at work", series=work, shares=True)]


def ratings(run: RunData) -> list[Chart]:
    """TrueSkill of the newest policy, and of the longest active ones."""
    # A policy that was active for a few updates would be a dot.
    present = Counter(uid for row in run.ratings for uid in row.ratings)
    newest = _rated(run.ratings, None, 0)
    followed = [
        _rated(run.ratings, uid, index + 1)
        for index, (uid, seen) in enumerate(present.most_common(MOST_RATED))
        if seen > 1 and seen >= len(run.ratings) / 3
    ]
    title = f"rating of {followed[0].name}" if len(followed) == 1 else "ratings of single policies"
    newest_policy = Chart(title="rating of the newest policy", series=[newest])
    return [newest_policy, Chart(title=title, series=followed)]


def _rated(rows: Sequence[Ratings], uid: str | None, index: int) -> Series:
    """The rating of ``uid``; None: of the newest policy at each time."""
    found = ((row.step, row.ratings.get(uid or row.current or "")) for row in rows)
    points = [
        (step, rating[0], rating[0] - rating[1], rating[0] + rating[1])
        for step, rating in found
        if rating is not None
    ]
    return Series.banded(uid or "newest policy", points, colour=f"c{index % COLOURS}")


def _series(rows: Sequence[Row], key: str, name: str, index: int = 0) -> Series:
    return Series(
        name=name,
        xs=[row["step"] for row in rows],
        ys=[row.get(key) for row in rows],
        colour=f"c{index % COLOURS}",
    )


def metric(run: RunData, key: str, label: str) -> Chart:
    """A learner metric, smoothed where it is noisy; a line for each policy."""
    first, *others = run.policies or ("",)
    keys = {first: key} | {name: f"policies/{name}/{key}" for name in others}
    made = {name: [row for row in run.metrics if one in row] for name, one in keys.items()}
    if any(made[name] for name in others):  # an update is of one of them
        series = [
            _series(made[name], one, name, index) for index, (name, one) in enumerate(keys.items())
        ]
    else:
        series = [_series(run.metrics, key, label)]
    return Chart(
        title=label, series=series, smooth=key not in _EXACT | _MAXIMA, exact=key in _EXACT
    )
