"""The report's tables: head, results, pool, failed games, and how to repeat the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rlforge.record.results import ApiUsage, PoolSnapshot, by_pairing
from rlforge.show.formatting import (
    count,
    dollars,
    duration,
    elo,
    number,
    per_second,
    percent,
    points,
)
from rlforge.show.report.charts import plot_of_strengths
from rlforge.show.report.curves import section, subject
from rlforge.show.report.data import RunData
from rlforge.show.report.html import Html, changed, el, fold, heat, join, table
from rlforge.statistics import significant, wilson_interval
from rlforge.system.values import Codec
from rlforge.types import EvalResult

_USAGE = Codec(ApiUsage, form="json")
#: Most policies in the table of ratings, and in the table of games between them.
MOST_RATINGS, MOST_MATCHED = 12, 14
#: Most policies in the folded rest of the table of ratings.
MOST_FOLDED = 200
#: Most error messages that are listed.
MOST_ERRORS = 10


def head(run: RunData) -> Html:
    """Name, status, and the figures of the whole run."""
    last = run.metrics[-1] if run.metrics else {}
    status = str(run.summary.get("status", "running"))
    updates = run.summary.get("updates", 0) if status != "running" else last.get("step", 0)
    wall = run.summary.get("wall_time_s") if status != "running" else last.get("time_s")
    games = last.get("games", 0)
    # Of the updates at which the log-prob gap was measured.
    gap = "logprob_gap_max"
    of_policies = {gap, *(f"policies/{policy}/{gap}" for policy in run.policies)}
    gaps = [row[one] for row in run.metrics for one in of_policies & row.keys()]
    whole = len(gaps) in (0, len(run.metrics))
    part = "" if whole else f", {len(gaps)} of {len(run.metrics)} updates"
    tiles = [
        ("updates", f"{updates} of {run.summary.get('total_updates', '?')}"),
        ("wall time", duration(wall)),
        ("training games", count(games)),
        ("games", per_second(games / last["time_s"]) if last.get("time_s") else number(None)),
        ("tokens generated", count(last.get("tokens", 0))),
        ("samples learned from", count(last.get("samples_seen", 0))),
        ("engine and learner both idle", percent(last.get("idle_share"), 1)),
        (f"largest log-prob gap{part}", number(max(gaps, default=None), 3)),
        ("failed games", count(last.get("failed_games", 0))),
    ]
    return titled(run, tiles)


def titled(run: RunData, tiles: Sequence[tuple[str, str]]) -> Html:
    """The name of a run, its status and its command, above tiles of (label, figure)."""
    status = str(run.summary.get("status", "running"))
    tone = {"done": "good", "failed": "bad", "interrupted": "bad"}.get(status, "soft")
    return el(
        "header",
        el("h1", f"{run.name} ", el("span", status, cls=f"badge {tone}")),
        el("p", el("code", run.command), cls="soft") if run.command else None,
        el(
            "div",
            *(el("div", el("b", b), el("span", a), cls="tile") for a, b in tiles),
            cls="tiles",
        ),
    )


def reached(run: RunData) -> Html | None:
    """First and last evaluation against each opponent in each environment."""
    rows = []
    for (env, opponent), results in by_pairing(run.evals).items():
        first, last = results[0], results[-1]
        change = last.win_rate - first.win_rate
        sure = significant(first.ci95, last.ci95)
        text = f"{points(change)} pts"
        shift = number(None) if first is last else changed(change, text, sure)
        rows.append([env, opponent, _result(first), _result(last), shift])
    heads = ["environment", "opponent", "start", "end", "change"]
    return section(
        "Results",
        f"Win, draw and loss rates of {subject(run)} at its first and at its last evaluation, with "
        "95 % intervals; change of the win rate in percentage points, coloured where the intervals "
        "of start and end do not overlap.",
        table(heads, rows, "First and last evaluation per environment and opponent", names=4)
        if rows
        else el("p", "No evaluation has finished yet."),
    )


def _result(row: EvalResult) -> Html:
    shares = {"win": row.wins, "draw": row.draws, "loss": row.losses}
    lines = [
        el("b", f"{percent(row.win_rate, 1)} wins"),
        _interval(*row.ci95),
        el(
            "div",
            *(el("i", cls=name, style=f"flex:{won}") for name, won in shares.items() if won),
            cls="stack",
        ),
        el("span", f"{percent(row.draw_rate, 1)} draws, {percent(row.loss_rate, 1)} losses"),
        _interval(*wilson_interval(row.losses, row.games)),
        el("div", f"{row.games} games after {row.step} updates", cls="soft"),
    ]
    return join(lines)


def _interval(low: float, high: float) -> Html:
    return el("span", f" ({percent(low, 1)} to {percent(high, 1)})", cls="soft")


def alarms(run: RunData) -> Html | None:
    """What the sentinel noticed, and what was done about it; None where nothing was."""
    if not run.alarms:
        return None
    rows = [
        [
            str(one.step),
            one.signal.replace("_", " "),
            one.about or number(None),
            f"{one.observed:.3g} instead of {one.expected:.3g}",
            str(one.since),
            "; ".join(one.actions) or "reported",
        ]
        for one in run.alarms
    ]
    heads = ["update", "signal", "of", "observed", "since", "done"]
    return section(
        "Sentinel",
        "Signals of training that changed for the worse, further than their noise explains.",
        table(heads, rows, "Alarms of the sentinel", names=3),
    )


def ladder(run: RunData) -> Html | None:
    """Strengths from the games between policies; None before the first."""
    if run.pool is None or not run.pool.ladder:
        return None
    rows = run.pool.ladder
    heads = ["policy", "Elo", "95 % interval", "games"]
    body = [
        [row.name, elo(row.elo), f"{elo(row.low)} to {elo(row.high)}", count(row.games)]
        for row in rows
    ]
    return section(
        "Ladder",
        "Bradley-Terry strength in Elo points above the start of training, from all games between "
        "policies, in whatever order they were played; a draw is half a win, and policies of equal "
        "weights are one. For mirrored games and a test of cycles: rlforge ladder.",
        plot_of_strengths([(row.name, row.elo, row.low, row.high) for row in rows[:MOST_RATINGS]]),
        fold("Strengths of all", table(heads, body, "Strengths of the policies")),
    )


def pool(run: RunData) -> Html | None:
    """Current ratings, measured ones first, and the number of games between policies."""
    if run.pool is None:
        return None
    evaluated = {uid for one in run.evals for uid in (one.policy_uid, one.opponent)}
    entries = sorted(
        run.pool.entries,
        key=lambda entry: (not entry.rated_games, entry.uid not in evaluated, -entry.mu),
    )
    rows = [
        [
            entry.uid,
            "active" if entry.active else "retired",
            f"{entry.mu:.2f} ± {entry.sigma:.2f}" if entry.rated_games else number(None),
            count(entry.rated_games),
            count(entry.games),
        ]
        for entry in entries
    ]
    rated = sum(entry.rated_games > 0 for entry in entries)
    first = min(rated, MOST_RATINGS)
    folded, left = rows[first : first + MOST_FOLDED], len(rows) - first - MOST_FOLDED
    unrated = len(rows) - rated
    heads = ["policy", "state", "rating", "rated games", "games"]
    return section(
        "Pool",
        "TrueSkill mean and sigma of each policy, by which opponents are drawn: those of the "
        "evaluations first, then by rating. "
        "Rated games are those against another policy; without any, a version has no rating of "
        "its own.",
        table(heads, rows[:first], "Ratings of the pool", names=2) if first else None,
        fold(
            f"Further policies: {len(rows) - first}, without a rated game: {unrated}",
            table(heads, folded, "Further policies of the pool", names=2),
            el("p", f"{left} more are not shown.", cls="note") if left > 0 else None,
        )
        if folded
        else None,
        _matches(run.pool),
    )


def _matches(pool: PoolSnapshot) -> Html | None:
    pairs = pool.pairs()
    if not pairs:
        return None
    met: Counter[str] = Counter()
    for pair in pairs:
        met.update({pair.first: pair.games, pair.second: pair.games})
    chosen = {uid for uid, _ in met.most_common(MOST_MATCHED)}
    shown = [one.uid for one in pool.entries if one.uid in chosen]
    most = max(pair.games for pair in pairs)
    body = []
    for uid in shown:
        row = pool.matches.get(uid, {})
        cells = [
            el("td", count(row[other]), style=f"--heat:{row[other] / most:.2f}")
            if row.get(other)
            else el("td", "·", cls="soft")
            for other in shown
        ]
        body.append((uid, cells))
    rest = len(met) - len(shown)
    note = f"Games between two policies{f', of the {len(shown)} with most games' if rest else ''}."
    counts = heat("Number of games between policies", shown, body)
    return join([el("p", note, cls="note"), counts])


def api_players(run: RunData) -> Html | None:
    """Usage of models behind APIs, and whether their budget is used."""
    used = list(map(_USAGE.decode, run.api.get("players", ())))
    if not used:
        return None
    note = f"What {subject(run)}'s opponents behind APIs took, training and evaluations together."
    if run.api["closed"]:
        left_out = f"{count(run.api['declined'])} evaluation games were left out"
        note += f" No game with them began once {run.api['closed']}; {left_out}."
    heads = ["player", "games", "requests", "failed", "latency", "prompt tokens", "answer tokens"]
    rows = [
        [
            one.uid,
            *map(count, (one.games, one.requests, one.failed)),
            f"{one.latency_s:.1f} s",
            *map(count, (one.prompt_tokens, one.answer_tokens)),
            dollars(one),
        ]
        for one in used
    ]
    return section("Players behind APIs", note, table([*heads, "cost"], rows, "Usage of APIs"))


def failures(run: RunData) -> Html | None:
    """How games ended, and the errors of those that failed."""
    if run.games_error is not None:
        return section("Games", "The games of this run cannot be read.", el("p", run.games_error))
    ends = Counter((game.spec.env_id, game.spec.purpose, game.end_reason) for game in run.games)
    rows = [
        [env, purpose, reason.replace("_", " "), count(games)]
        for (env, purpose, reason), games in sorted(ends.items())
    ]
    errors = Counter(
        game.error if len(game.error) <= 300 else f"{game.error[:300]} …"
        for game in run.games
        if game.error is not None
    )
    listed = [[message, count(times)] for message, times in errors.most_common(MOST_ERRORS)]
    return section(
        "How games ended",
        "Games on disk, training and evaluation. A failed game is recorded and played again, then "
        "replaced; one that a limit cuts is a draw.",
        table(["environment", "purpose", "end", "games"], rows, "Ends of games", names=3)
        if rows
        else None,
        el("h3", "Errors of failed games") if listed else None,
        table(["error", "games"], listed, "Errors of failed games") if listed else None,
    )


def made_by(run: RunData) -> Html | None:
    """Command, seed, versions and configuration, to repeat the run."""
    facts = [
        [name.replace("_", " "), el("code", str(run.summary[name]))]
        for name in ("seed", "restarts", "objective")
        if name in run.summary
    ]
    if run.command:
        facts.insert(0, ["command", el("code", run.command)])
    versions = run.summary.get("versions", {})
    facts += [[f"version of {name}", el("code", version)] for name, version in versions.items()]
    return section(
        "How to repeat the run",
        "Command, seed, versions and configuration.",
        table(["what", "value"], facts, "Seed, versions and command", names=2) if facts else None,
        fold("Resolved configuration", el("pre", run.config, tabindex=0)) if run.config else None,
    )
