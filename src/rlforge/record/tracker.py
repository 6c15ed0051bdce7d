"""The tracker records a run: games, evaluations, updates and snapshots of the pool.

They become metrics for the sinks, lines of files, and a ``Progress`` for displays.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlforge.config.schema import TrackerConfig
from rlforge.errors import RlforgeError
from rlforge.record.files import (
    JsonlFile,
    create_run,
    read_json,
    read_jsonl,
    read_values,
    write_json,
)
from rlforge.record.judge import Judge
from rlforge.record.metrics import Metrics, RecentGames, collection_rows, put_game
from rlforge.record.progress import EngineRow, ExactRow, Pace, Progress, RunStatus, WinRateRow
from rlforge.record.results import Alarm, ApiUsage, ExactResult, PoolSnapshot, Ratings, read_evals
from rlforge.record.samples import sample_turns
from rlforge.record.signals import Row, Signal
from rlforge.record.sinks import Sink, Sinks, check_sinks
from rlforge.samples import UpdateResult
from rlforge.system.checkpoint import list_checkpoints
from rlforge.system.hardware import GpuLoad
from rlforge.system.values import to_json
from rlforge.types import EvalResult, GameRecord

log = logging.getLogger(__name__)

#: Rows of a ``Progress`` that grow with the run are cut to this many.
MOST_ROWS = 64

_RATED = ("uid", "mu", "sigma", "games", "active", "rated_games")


class Tracker:
    """One per run. Not thread-safe: the actor around it takes one call at a time.

    Sinks get each update and evaluation when it comes, at its own step, and every
    ``cfg.flush_every_s`` seconds what has no step.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tracker = Tracker(folder, TrackerConfig(), "kuhn", total_updates=10)
        ...     update = UpdateResult(version=1, metrics={"loss": 0.5}, samples=64, tokens=640)
        ...     tracker.log_learner(update, shares={"idle_share": 0.1})
        ...     _ = tracker.close({"status": "done"})
        ...     [(row["step"], row["loss"]) for row in read_jsonl(tracker.paths.metrics)]
        [(1, 0.5)]
    """

    def __init__(
        self,
        run_dir: Path | str,
        cfg: TrackerConfig,
        run_name: str,
        total_updates: int,
        sinks: Sequence[Sink] | None = None,
        *,
        judge: Callable[[], Judge] | None = None,
        about: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the run directory; counters continue from the files that are there.

        Args:
            run_dir: Directory of the run.
            cfg: Windows, flushes and sinks.
            run_name: Name on displays.
            total_updates: Updates that the run is to make.
            sinks: Not opened; None makes those of ``cfg``.
            judge: Makes the judge of the run's signals; None: there are none.
            about: Seed, versions, command and the like for summary.json.
            clock: A monotonic clock, in seconds.
        """
        self.paths = create_run(run_dir)
        self._cfg = cfg
        self._run_name = run_name
        self._total_updates = total_updates
        # All are checked before one is opened: a wrong one leaves no empty run at a service.
        chosen = check_sinks(cfg) if sinks is None else sinks
        self._sinks = Sinks(chosen, self.paths, run_name, clock)
        self._make_judge, self._about = judge, dict(about or {})
        self._clock = clock
        self._metrics = Metrics(cfg.window)
        self._status: RunStatus = "running"
        paths = self.paths
        self._files = {
            file: JsonlFile(file)
            for file in (paths.metrics, paths.evals, paths.exact, paths.sentinel, paths.ratings)
        }
        self._learner: dict[str, float] = {}
        self._shares: dict[str, float] = {}
        self._engines: dict[str, EngineRow] = {}
        self._pool = PoolSnapshot(mode="", current=None, entries=(), matches={})
        self._matches = self._pool.pairs()
        self._gpus: tuple[GpuLoad, ...] = ()
        self._api: tuple[ApiUsage, ...] = ()
        self._activity = ""
        # Flushes empty ``_metrics``: the figures of an update's line are gathered apart.
        self._since_update = Metrics(cfg.window)
        self._ratings_changed = False
        self._next_flush = clock() + cfg.flush_every_s
        self._begin = clock() - float(read_json(paths.progress).get("elapsed_s", 0.0))
        self._restore_counters()
        self._write_summary({})
        self._publish()

    def resume(self, version: int) -> None:
        """Continue after update ``version``; later lines are dropped."""
        for file in self._files.values():
            file.rewind(version)
        self._sinks.rewind(version)
        self._restore_counters()
        self._publish()

    def _restore_counters(self) -> None:
        self._since_update.drain()
        self._games: Counter[str] = Counter()
        self._earlier_games = self._failed = self._tokens = self._samples = self._update = 0
        self._win_rates: dict[tuple[str, str], WinRateRow] = {}
        self._recent_evals: defaultdict[tuple[str, str], RecentGames] = defaultdict(
            lambda: RecentGames(self._cfg.window)
        )
        self._exact: dict[str, ExactRow] = {}
        self._alarms: list[Alarm] = []
        self._judge = self._make_judge() if self._make_judge is not None else None
        # Seconds count whose updates are made again: the clock of a run never goes back.
        earlier_s = max(self._read_files(), self._elapsed())
        self._begin = self._clock() - earlier_s
        self._pace = Pace(earlier_s, self._counts())
        self._begin_wait()

    def _begin_wait(self) -> None:
        #: Games that had ended at the last update, and how often those since were judged.
        self._ended_before, self._waits = self._ended(), 0

    def _read_files(self) -> float:
        """Count what the run's files hold; returns its seconds so far."""
        # A run of another unit has other files (``WindowTracker``).
        earlier_s = 0.0
        for row in read_jsonl(self.paths.metrics):
            # Another program may have written lines: what they lack stays as it was before.
            self._update, earlier_s = row["step"], row.get("time_s", earlier_s)
            self._earlier_games = row.get("games", self._earlier_games)
            self._failed = row.get("failed_games", self._failed)
            self._tokens = row.get("tokens", self._tokens)
            self._samples = row.get("samples_seen", self._samples)
            if self._judge is not None:
                self._judge.add(row)
        for result in read_evals(self.paths):
            self._remember_eval(result)
            if self._judge is not None:
                self._judge.add(result)
        for exact in read_values(ExactResult, self.paths.exact):
            self._remember_exact(exact)
        self._alarms += read_values(Alarm, self.paths.sentinel)
        return earlier_s

    # ------------------------------------------------------------ input

    def log_scalars(self, means: Mapping[str, float]) -> None:
        """Note ``custom/NAME``, means of users' scalars."""
        for key, mean in means.items():
            self._since_update.put(key, mean)
        self.tick()

    def log_gpus(self, loads: Sequence[GpuLoad]) -> None:
        """Note the machine's GPUs: ``system/gpu-N/…``."""
        self._gpus = tuple(loads)
        for metrics in (self._metrics, self._since_update):
            for load in loads:
                prefix = f"system/gpu-{load.index}"
                metrics.set(f"{prefix}/memory_gb", load.used / 2**30)
                for name, number in (("power_w", load.power), ("busy", load.busy)):
                    if number is not None:
                        metrics.put(f"{prefix}/{name}", number)
        self.tick()

    def add_games(self, records: Sequence[GameRecord]) -> None:
        """Count finished training games: ``collection-ENV/…``."""
        for record in records:
            put_game(self._metrics, record)
            # Failed games have cost tokens, too.
            self._tokens += sum(len(turn.completion.token_ids) for turn in record.turns)
            if record.error is None:
                self._games[record.spec.env_id] += 1
            else:
                self._failed += 1
        self.tick()

    def add_eval(self, result: EvalResult) -> None:
        """Write an evaluation: a line of evals.jsonl and ``evaluation-ENV/OPPONENT/…``.

        ``recent_…`` are over the last ``cfg.window`` games, also of earlier versions.
        """
        scalars = {
            "win_rate": result.win_rate,
            "draw_rate": result.draw_rate,
            "loss_rate": result.loss_rate,
            "reward": result.mean_reward,
            "invalid_rate": result.invalid_rate,
            "games": result.games,
        }
        line = {**to_json(result), "time_s": self._elapsed()}
        before = self._win_rates.get((result.env_id, result.opponent))
        if before is not None and before.step == result.step:
            # Made at the end, of a version that was evaluated before: a resumed run makes it again.
            line["update"] = self._update
        self._files[self.paths.evals].append(line)
        self._remember_eval(result)
        scalars |= self._recent_evals[result.env_id, result.opponent].means()
        # At the step of the version that played, which may be below the newest.
        self._enter(result.step, scalars, f"evaluation-{result.env_id}/{result.opponent}/")
        self._judged(result)

    def add_exact(self, result: ExactResult) -> None:
        """Write an exact measure: a line of exact.jsonl and ``exact-ENV/…``."""
        scalars = {
            "nash_conv": result.nash_conv,
            "illegal": result.illegal,
            **{f"gain_{seat}": gain for seat, gain in enumerate(result.gains)},
        }
        self._files[self.paths.exact].append({**to_json(result), "time_s": self._elapsed()})
        self._remember_exact(result)
        self._enter(result.step, scalars, f"exact-{result.env_id}/")

    def add_alarm(self, alarm: Alarm) -> None:
        """Write an alarm: a line of sentinel.jsonl and ``sentinel/SIGNAL``."""
        self._files[self.paths.sentinel].append({**to_json(alarm), "time_s": self._elapsed()})
        self._alarms.append(alarm)
        self._enter(self._update, {alarm.signal: 1.0}, "sentinel/")

    def _remember_exact(self, result: ExactResult) -> None:
        self._exact[result.env_id] = ExactRow.after(result, self._exact.get(result.env_id))

    def final_signals(self) -> list[Signal]:
        """See ``Judge.final``."""
        return self._judge.final if self._judge is not None else []

    def log_wait(self, figures: Mapping[str, float]) -> None:
        """Judge what is played while the learner waits for a batch. figures: of the buffer.

        It is judged each time that as many games have ended as a batch has samples: where each of
        them gives one, there was a batch before.
        """
        games = self._ended() - self._ended_before
        if self._judge is not None and games >= (self._waits + 1) * self._judge.seen.batch_games:
            self._waits = games // self._judge.seen.batch_games
            self._judge_wait(figures)

    def _judge_wait(self, figures: Mapping[str, float]) -> None:
        line = {**figures, "step": self._update, **self._counts(), "failed_games": self._failed}
        line["games_without_batch"] = self._ended() - self._ended_before
        self._judged({**line, **self._metrics.means()})

    def _ended(self) -> int:
        return self._counts()["games"] + self._failed

    def _judged(self, seen: Row | EvalResult) -> None:
        changed = self._judge.add(seen) if self._judge is not None else []
        for one in changed:
            log.warning("signal %s at update %d: %s", one.name, self._update, one.line)
            self._enter(self._update, {one.name: float(one.until is None)}, "signals/")

    def _remember_eval(self, result: EvalResult) -> None:
        key = (result.env_id, result.opponent)
        self._win_rates[key] = WinRateRow.after(result, self._win_rates.get(key))
        self._recent_evals[key].add(result)

    def log_inference(self, engine_name: str, stats: Mapping[str, float]) -> None:
        """Note the load of an engine: ``inference/ENGINE/…``.

        stats: requests ``queued`` and ``running``, tokens per second (``tok_s``) and since its
        process started (``tokens``), and what else the engine counts.
        """
        self._engines[engine_name] = EngineRow(
            name=engine_name,
            queued=int(stats["queued"]),
            running=int(stats["running"]),
            tok_s=float(stats["tok_s"]),
            tokens=int(stats["tokens"]),
        )
        # ``tokens`` begins again with the engine's process: its curve would tell nothing.
        for name in stats.keys() - {"tokens"}:
            note = self._metrics.put if name.endswith("tok_s") else self._metrics.set
            note(f"inference/{engine_name}/{name}", stats[name])
        self.tick()

    def log_api(self, players: Sequence[ApiUsage], figures: Mapping[str, float]) -> None:
        """Note usage of API players since the run began: ``api/PLAYER/…``, and of all ``api/…``.

        ``latency_s`` is of the requests since the last call.
        """
        before = {one.uid: one for one in self._api}
        self._api = tuple(players)
        for metrics in (self._metrics, self._since_update):
            for name, number in figures.items():
                metrics.set(f"api/{name}", number)
            for one in players:
                for name in ("games", "requests", "failed", "prompt_tokens", "answer_tokens"):
                    metrics.set(f"api/{one.uid}/{name}", getattr(one, name))
                # Without a priced answer the cost is unknown, not 0.
                if one.requests > one.failed + one.unpriced:
                    metrics.set(f"api/{one.uid}/cost", one.cost)
                new = one.plus(before.get(one.uid, ApiUsage(uid=one.uid)), sign=-1)
                if new.requests:
                    metrics.put(f"api/{one.uid}/latency_s", new.latency_s)
        self.tick()

    def log_activity(self, doing: str) -> None:
        self._activity = doing
        self.tick()

    def log_learner(
        self, result: UpdateResult, shares: Mapping[str, float], policy: str = ""
    ) -> None:
        """Write an update: a line of metrics.jsonl and ``learner/…``, with all since the last.

        shares: of wall time in which engines, learner and neither worked, and further figures.
        policy: name of the one that was updated, empty for the first.
        """
        now = self._elapsed()
        self._update = result.version
        self._samples += result.samples
        metrics = {name: float(number) for name, number in result.metrics.items()}
        if not policy:
            self._learner = metrics
        # Under names of their own, so that a curve of ``learner/…`` is of one policy.
        others = {f"policies/{policy}/{name}": each for name, each in metrics.items() if policy}
        self._shares = {name: float(number) for name, number in shares.items()}
        growth = self._pace.update(now, self._counts())
        row = {
            **({} if policy else metrics),
            **self._shares,
            "samples": result.samples,
            "samples_seen": self._samples,
            "trained_tokens": result.tokens,
            "games_per_s": growth["games"],
            "generated_tokens_per_s": growth["tokens"],
        }
        measured = {**self._metrics.means(), **self._since_update.drain()}
        line = {"step": result.version, "time_s": now, **row, **others, **self._counts()}
        line |= {"failed_games": self._failed, **measured}
        self._files[self.paths.metrics].append(line)
        learner = {f"learner/{name}": number for name, number in row.items()}
        self._enter(result.version, {**self._metrics.drain(), **learner, **others, **measured})
        self._judged(line)
        self._begin_wait()

    def log_pool(self, snapshot: PoolSnapshot) -> None:
        """Write a snapshot of the pool: pool.json, a line of ratings.jsonl and ``pool/…``.

        Sinks get ratings of the newest version and of policies that are no versions, and at the
        next flush the tables ``ratings`` and ``matches`` of all.
        """
        rated = sorted(snapshot.entries, key=lambda one: (one.rated_games == 0, -one.mu))
        self._pool = dataclasses.replace(snapshot, entries=tuple(rated))
        self._matches = snapshot.pairs()[:MOST_ROWS]
        write_json(self.paths.pool, to_json(snapshot))
        line = Ratings(
            step=self._update,
            time_s=self._elapsed(),
            current=snapshot.current,
            coverage=snapshot.coverage,
            ratings={one.uid: [one.mu, one.sigma] for one in rated if one.active},
        )
        self._files[self.paths.ratings].append(to_json(line))
        self._ratings_changed = True
        scalars = {f"pool/coverage/{env}": share for env, share in snapshot.coverage.items()}
        # A curve of each version would end with the next one: together they are one curve.
        for one in rated:
            if one.role != "learner" or one.uid == snapshot.current:
                name = "current" if one.uid == snapshot.current else one.uid
                scalars |= {f"pool/{name}/mu": one.mu, f"pool/{name}/sigma": one.sigma}
                scalars |= {f"pool/{name}/games": one.games}
        self._enter(self._update, scalars)

    def _enter(self, step: int, scalars: Mapping[str, float], prefix: str = "") -> None:
        self._sinks.write(step, {f"{prefix}{name}": each for name, each in scalars.items()})
        self._publish()
        self.tick()

    # ------------------------------------------------------------ output

    def progress(self) -> Progress:
        now, counts = self._elapsed(), self._counts()
        rates = self._pace.rates(now, counts)
        return Progress(
            run_name=self._run_name,
            status=self._status,
            activity=self._activity if self._status == "running" else "",
            updated_at=time.time(),
            elapsed_s=now,
            update=self._update,
            total_updates=self._total_updates,
            eta_s=self._pace.seconds_for(self._total_updates - self._update, now),
            games=counts["games"],
            failed_games=self._failed,
            tokens=self._tokens,
            samples=self._samples,
            games_per_s=rates["games"],
            tokens_per_s=rates["tokens"],
            learner=dict(self._learner),
            shares=dict(self._shares),
            coverage=self._pool.coverage,
            win_rates=tuple(self._win_rates[key] for key in sorted(self._win_rates)),
            exact=tuple(self._exact[key] for key in sorted(self._exact)),
            alarms=tuple(self._alarms),
            signals=self._signals(),
            collection=collection_rows(self._metrics, self._games),
            ladder=self._pool.ladder,
            ratings=self._pool.entries[:MOST_ROWS],
            matches=self._matches,
            engines=tuple(self._engines[name] for name in sorted(self._engines)),
            gpus=self._gpus,
            api=self._api,
        )

    def _signals(self) -> tuple[Signal, ...]:
        return tuple(self._judge.signals[-MOST_ROWS:]) if self._judge is not None else ()

    def tick(self) -> None:
        """Flush, and write progress.json once a second, where it is due."""
        if self._clock() >= self._next_flush:
            self.flush()
        if self._clock() >= self._next_publish:
            self._publish()

    def flush(self) -> None:
        """Give the sinks what came since the last update or flush, and new ratings."""
        self._next_flush = self._clock() + self._cfg.flush_every_s
        self._sinks.write(self._update, self._metrics.drain())
        self._sinks.mark()
        if self._ratings_changed:
            rated = self._pool.entries[:MOST_ROWS]
            columns = [{name: getattr(one, name) for name in _RATED} for one in rated]
            self._sinks.table(self._update, "ratings", columns)
            matches = list(map(dataclasses.asdict, self._matches))
            self._sinks.table(self._update, "matches", matches)
            self._ratings_changed = False

    def close(self, summary: Mapping[str, Any]) -> list[str]:
        """End the run with summary.json; returns commands for the user. Again it does nothing.

        summary: its ``status``, by default ``done``, ends the displays. Sinks that take them get a
        few games and the versions of ``cfg.adapters``.
        """
        if self._status != "running":
            return []
        self._status = summary.get("status", "done")
        if self._status != "done":
            # A run whose games all fail ends before as many are played as a batch has samples.
            self._judge_wait({})
        for file in self._files.values():
            file.close()
        self._write_summary(summary)
        self._publish()
        self.flush()
        # No update follows that would hand these on.
        self._sinks.write(self._update, self._since_update.drain())
        if self._sinks.take_tables:
            try:
                self._sinks.table(self._update, "games", sample_turns(self.paths))
            except RlforgeError as error:  # a damaged file must not keep the run from its end
                log.warning("no sample games for the sinks: %s", error)
        if self._cfg.adapters != "off":
            versions = list_checkpoints(self.paths.checkpoints)
            self._sinks.keep(versions if self._cfg.adapters == "all" else versions[-1:])
        lines = self._sinks.close()
        if self._sinks.failures:
            self._write_summary(summary)
        return lines

    def said(self) -> list[str]:
        """Lines for the user since the last call."""
        return self._sinks.said()

    def _write_summary(self, extra: Mapping[str, Any]) -> None:
        reached = {
            "run_name": self._run_name,
            "status": self._status,
            "updates": self._update,
            "total_updates": self._total_updates,
            "wall_time_s": self._elapsed(),
            **self._counts(),
            "failed_games": self._failed,
            "samples_seen": self._samples,
            "evaluations": list(self._win_rates.values()),
            "exact": list(self._exact.values()),
            "api": self._api,
            "signals": self._signals(),
            "sinks": self._sinks.failures,
        }
        write_json(self.paths.summary, {**self._about, **reached, **extra})

    def _publish(self) -> None:
        self._next_publish = self._clock() + 1.0  # displays look once a second
        write_json(self.paths.progress, to_json(self.progress()))

    def _elapsed(self) -> float:
        """Seconds of run time, with the earlier parts of a resumed run."""
        return self._clock() - self._begin

    def _counts(self) -> dict[str, int]:
        return {"games": self._earlier_games + self._games.total(), "tokens": self._tokens}
