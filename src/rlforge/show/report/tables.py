"""The figures of a run's tables: head, pool, players behind APIs, ends of games."""

from __future__ import annotations

from collections import Counter

from rlforge.record.files import value_in
from rlforge.record.results import ApiUsage, PoolEntry, PoolSnapshot
from rlforge.record.status import is_of_start
from rlforge.show.formatting import count, duration, number, per_second, percent
from rlforge.show.report.data import RunData

#: Most policies in the table of ratings, and in the table of games between them.
MOST_RATINGS, MOST_MATCHED = 12, 14
#: Most policies in the folded rest of the table of ratings.
MOST_FOLDED = 200
#: Most error messages that are listed, and most characters of one.
MOST_ERRORS, _LONGEST_ERROR = 10, 300


def tiles(run: RunData) -> dict[str, str]:
    last = run.metrics[-1] if run.metrics else {}
    started = is_of_start(run.summary)
    updates = last.get("step", 0) if started else run.summary.get("updates", 0)
    wall = last.get("time_s") if started else run.summary.get("wall_time_s")
    games = last.get("games", 0)
    # The log-prob gap may be measured at some updates only.
    gap = "logprob_gap_max"
    of_policies = {gap, *(f"policies/{policy}/{gap}" for policy in run.policies)}
    gaps = [row[one] for row in run.metrics for one in of_policies if row.get(one) is not None]
    whole = len(gaps) in (0, len(run.metrics))
    part = "" if whole else f", {len(gaps)} of {len(run.metrics)} updates"
    return {
        "updates": f"{updates} of {run.summary.get('total_updates', '?')}",
        "wall time": duration(wall),
        "training games": count(games),
        "games": per_second(games / last["time_s"]) if last.get("time_s") else number(None),
        "tokens generated": count(last.get("tokens", 0)),
        "samples learned from": count(last.get("samples_seen", 0)),
        "engine and learner both idle": percent(last.get("idle_share"), 1),
        f"largest log-prob gap{part}": number(max(gaps, default=None), 3),
        "failed games": count(last.get("failed_games", 0)),
    }


def ranking(run: RunData, pool: PoolSnapshot) -> list[PoolEntry]:
    """Rated policies first, then those of evaluations, then by rating."""
    evaluated = {uid for one in run.evals for uid in (one.policy_uid, one.opponent)}
    return sorted(
        pool.entries,
        key=lambda entry: (not entry.rated_games, entry.uid not in evaluated, -entry.mu),
    )


def most_met(pool: PoolSnapshot) -> tuple[list[str], int]:
    """The policies with most games against others, and the number of others with some."""
    met: Counter[str] = Counter()
    for pair in pool.pairs():
        met.update({pair.first: pair.games, pair.second: pair.games})
    chosen = {uid for uid, _ in met.most_common(MOST_MATCHED)}
    return [one.uid for one in pool.entries if one.uid in chosen], len(met) - len(chosen)


def api_players(run: RunData) -> list[ApiUsage]:
    return value_in(list[ApiUsage], run.api.get("players", ()), run.paths.api)


def endings(run: RunData) -> list[tuple[tuple[str, str, str], int]]:
    ends = Counter((game.spec.env_id, game.spec.purpose, game.end_reason) for game in run.games)
    return sorted(ends.items())


def errors(run: RunData) -> list[tuple[str, int]]:
    found = (game.error for game in run.games if game.error is not None)
    cut = (one if len(one) <= _LONGEST_ERROR else f"{one[:_LONGEST_ERROR]} …" for one in found)
    return Counter(cut).most_common(MOST_ERRORS)
