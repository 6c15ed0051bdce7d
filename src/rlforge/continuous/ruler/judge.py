"""Scores from a language model: one call scores a group of decisions relative to each other."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

from scipy.special import expit, logit

from rlforge.continuous.config.ruler import JudgeConfig, RulerConfig
from rlforge.continuous.decisions.records import Decision, TrainingWindow
from rlforge.continuous.ruler.agreement import Agreement, agreement, pooled
from rlforge.continuous.ruler.base import (
    NOT_JUDGED,
    DecisionScores,
    finished,
    finite_rewards,
    nothing_to_compare,
    undecided,
)
from rlforge.continuous.ruler.features import STATE_ACTION
from rlforge.continuous.ruler.judge_backends import LocalModel, estimated_tokens, judge_backend
from rlforge.continuous.ruler.question import (
    JudgeQuestion,
    JudgeVerdict,
    UnusableAnswerError,
    ask,
    read,
)
from rlforge.engines.openai import ChatError, ChatReply
from rlforge.errors import RlforgeError
from rlforge.system.files import open_database

log = logging.getLogger(__name__)

#: Kendall's tau of a judge's scores of the same groups in two orders, below which it is named, and
#: the pairs of decisions from which that is known.
_BY_PLACE, _ENOUGH_PAIRS = 0.2, 30

#: After so many groups in a row without an answer the judge is down: the others are not asked.
_DOWN_AFTER = 3

_TABLE = "CREATE TABLE IF NOT EXISTS answers (question TEXT PRIMARY KEY, verdicts TEXT NOT NULL)"
#: What is counted of a window.
_COUNTS = ("groups", "cut", "failed_groups", "calls", "tokens", "retries", "cache_hits")


class AnswerCache:
    """Verdicts in the SQLite file ``path``; None: none. failed: the file cannot be used."""

    def __init__(self, path: Path | None) -> None:
        self._path, self.failed = path, False

    def get(self, backend: str, question: JudgeQuestion) -> dict[str, JudgeVerdict] | None:
        """The verdicts of ``backend`` on a question, or None."""
        key = _key(backend, question)
        for (kept,) in self._run("SELECT verdicts FROM answers WHERE question = ?", key):
            return {name: JudgeVerdict(*one) for name, one in json.loads(kept).items()}
        return None

    def put(
        self, backend: str, question: JudgeQuestion, verdicts: Mapping[str, JudgeVerdict]
    ) -> None:
        insert = "INSERT OR REPLACE INTO answers (question, verdicts) VALUES (?, ?)"
        self._run(insert, _key(backend, question), json.dumps(verdicts))

    def _run(self, statement: str, *values: str) -> list[tuple[str]]:
        if self._path is None or self.failed:
            return []
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(open_database(self._path)) as connection, connection:
                connection.execute(_TABLE)
                return connection.execute(statement, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            self.failed = True
            log.warning(
                "judge cache %s cannot be used (%s); judging continues without it: remove the "
                "file, or make room",
                self._path,
                error,
            )
            return []


def _key(backend: str, question: JudgeQuestion) -> str:
    content = json.dumps([backend, question.messages], ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()


#: Score, None for none, and explanation of each decision.
Verdicts = Sequence[tuple[float | None, str]]


def _by_place(order: Agreement) -> str:
    """A sentence on a judge whose scores depend on the order of the decisions, or nothing."""
    tau = order.kendall_tau
    if tau is None or tau >= _BY_PLACE or order.pairs < _ENOUGH_PAIRS:
        return ""
    return (
        f"the judge scores by place: asked in the reverse order its scores agree by tau {tau:.2f} "
        "(1: wholly); choose another ruler.judge.model, or a smaller ruler.judge.group_size"
    )


class UnscoredError(RlforgeError):
    """A group stays unscored, for the reason given."""


class JudgeBudget:
    def __init__(self, config: JudgeConfig) -> None:
        self._config = config
        self.places = asyncio.Semaphore(config.max_concurrency)
        self.counts = Counter(dict.fromkeys(_COUNTS, 0))
        # In dollars; None while no price is known.
        self.cost: float | None = None
        # In a row, as any answer shows that the judge is up.
        self._silent_groups = 0
        # The reason why no more calls are made.
        self.down = ""

    def reserve(self, question_tokens: int) -> int:
        """Reserve a call; returns its tokens. Raises UnscoredError if the budget is too small."""
        if self.down:
            raise UnscoredError(f"the judge is down: {self.down}")
        # A call reserves its greatest cost, else those under way could exceed the budget together.
        config, reserved = self._config, question_tokens + self._config.max_answer_tokens
        for name, count in (("calls", 1), ("tokens", reserved)):
            most = getattr(config, f"max_{name}")
            if self.counts[name] + count > most:
                raise UnscoredError(f"ruler.judge.max_{name} {most} of this window are used up")
        self.counts.update(calls=1, tokens=reserved)
        return reserved

    def settle(self, reserved: int, answer: ChatReply | ChatError, estimate: int = 0) -> None:
        """Replace the reserved tokens of a call by those that it took.

        estimate: tokens to count where the server does not say.
        """
        self.counts["tokens"] += (answer.used.tokens or estimate) - reserved
        if answer.used.cost is not None:
            self.cost = (self.cost or 0.0) + answer.used.cost
        if isinstance(answer, ChatReply):
            self._silent_groups = 0
            return
        self._silent_groups += answer.kind in ("silent", "spent")
        if answer.kind == "refused" or self._silent_groups >= _DOWN_AFTER:
            self.down = str(answer)

    def metrics(self) -> dict[str, float]:
        cost = {} if self.cost is None else {"judge_cost": self.cost}
        return cost | {f"judge_{name}": float(count) for name, count in self.counts.items()}


class JudgeScorer:
    """Scores from a language model, as sigmoid(logit(score) / ``ruler.temperature``).

    A group without a usable answer after ``ruler.judge.retries`` more tries stays unscored.
    """

    def __init__(self, config: RulerConfig, seed: int = 0, local: LocalModel | None = None) -> None:
        self._config, self._seed = config, seed
        self._backend = judge_backend(config.judge, local)
        # Scores of the last window by decision, for ``learn``.
        self._given: dict[str, float | None] = {}
        self._cache = AnswerCache(
            Path(config.model_path, "judge.sqlite") if config.model_path else None
        )

    async def score(self, decisions: Sequence[Decision]) -> DecisionScores:
        """See ``DecisionScorer``; if any decisions may be learned from, only they are judged."""
        learning = [place for place, one in enumerate(decisions) if one.metadata.learns]
        places = learning or range(len(decisions))
        found = await self._score([decisions[place] for place in places])
        judged = dict(zip(places, zip(found.values, found.explanations, strict=True), strict=True))
        values, explanations = _apart(
            [judged.get(place, (None, NOT_JUDGED)) for place in range(len(decisions))]
        )
        return replace(found, values=values, explanations=explanations)

    async def _score(self, decisions: Sequence[Decision]) -> DecisionScores:
        if reason := nothing_to_compare(decisions, self._config.min_agents):
            return undecided(decisions, reason, {})
        budget = JudgeBudget(self._config.judge)
        groups = divide(decisions, self._config.judge.group_size)
        members = [[decisions[i] for i in group] for group in groups]
        verdicts = await asyncio.gather(*(self._group(group, budget) for group in members))
        verdicts, order = await self._both_orders(members, verdicts, budget)
        judged = dict(zip(chain(*groups), chain(*verdicts), strict=True))
        given, explanations = _apart([judged[place] for place in range(len(decisions))])
        values = [
            None if score is None else float(expit(logit(score) / self._config.temperature))
            for score in given
        ]
        self._given = {one.id: score for one, score in zip(decisions, values, strict=True)}
        budget.counts["groups"] = len(groups)
        failed = {"judge_cache_failed": float(self._cache.failed)}
        metrics = budget.metrics() | failed | order.metrics("judge_order_")
        return replace(finished(decisions, values, explanations, metrics), note=_by_place(order))

    def learn(self, windows: Sequence[TrainingWindow]) -> Mapping[str, float]:
        """See ``DecisionScorer``; the last scores are compared."""
        if self._config.features != STATE_ACTION:
            # The judge saw the outcomes, so it forecast nothing.
            return {}
        found = []
        for window in windows:
            scores = [self._given.get(decision.id) for decision in window.decisions]
            found.append(agreement(scores, finite_rewards(window.decisions)))
        return pooled(found).metrics("forecast_")

    async def close(self) -> None:
        await self._backend.close()

    async def _both_orders(
        self, groups: Sequence[Sequence[Decision]], first: Sequence[Verdicts], budget: JudgeBudget
    ) -> tuple[list[Verdicts], Agreement]:
        """Ask about a sample of the groups in the reverse order, too: means, and how both agree."""
        share, verdicts, found = self._config.judge.both_orders, list(first), list[Agreement]()
        # Spread over the window; groups without a score have nothing to agree with.
        sample = range(0, len(groups), max(1, round(1 / share))) if share else range(0)
        chosen = [place for place in sample if first[place][0][0] is not None]
        second = await asyncio.gather(
            *(self._group(groups[place], budget, reverse=True) for place in chosen)
        )
        for place, again in zip(chosen, second, strict=True):
            pairs = [*zip(first[place], again, strict=True)]
            if again[0][0] is None:
                continue
            found.append(agreement([b for _, (b, _) in pairs], [a for (a, _), _ in pairs]))
            verdicts[place] = [
                (None if a is None or b is None else (a + b) / 2, why) for (a, why), (b, _) in pairs
            ]
        return verdicts, pooled(found)

    async def _group(
        self, group: Sequence[Decision], budget: JudgeBudget, *, reverse: bool = False
    ) -> Verdicts:
        """The score and explanation of each; no score if the group stays unscored."""
        judge, features = self._config.judge, self._config.features
        question = ask(group, judge, features, self._seed, reverse=reverse)
        budget.counts["cut"] += 0 if reverse else question.cut
        try:
            found = await self._answer(question, budget)
        except UnscoredError as error:
            log.warning(
                "window %s: %d decisions unscored: %s", group[0].window_id, len(group), error
            )
            budget.counts["failed_groups"] += 1
            return [(None, f"unscored: {error}")] * len(group)
        by_place = {place: found[name] for name in question.ids for place in question.members[name]}
        return [by_place[place] for place in range(len(group))]

    async def _answer(
        self, question: JudgeQuestion, budget: JudgeBudget
    ) -> Mapping[str, JudgeVerdict]:
        if len(question.ids) == 1:
            alike = JudgeVerdict(0.5, "nothing to compare: the group is all alike")
            return {question.ids[0]: alike}
        if (kept := self._cache.get(self._backend.name, question)) is not None:
            budget.counts["cache_hits"] += 1
            return kept
        async with budget.places:
            verdicts = await self._asked(question, budget)
        self._cache.put(self._backend.name, question, verdicts)
        return verdicts

    async def _asked(
        self, question: JudgeQuestion, budget: JudgeBudget
    ) -> Mapping[str, JudgeVerdict]:
        config, messages, problem = self._config.judge, question.messages, ""
        for tried in range(1 + config.retries):
            reserved = budget.reserve(estimated_tokens(messages))
            budget.counts["retries"] += tried > 0
            try:
                reply = await self._backend.answer(messages, question.ids)
            except ChatError as error:
                # Endpoints charge only for answers, so a failed call counts just what they report.
                budget.settle(reserved, error)
                problem = str(error)
                if error.kind == "unusable":
                    continue
                break
            budget.settle(reserved, reply, estimated_tokens(messages, reply.text))
            try:
                return read(reply.text, question.ids)
            except UnusableAnswerError as error:
                problem = f"the judge's answer cannot be used: {error}"
                messages = question.again(str(error))
            if reply.finish_reason == "length":
                limit = f"ruler.judge.max_answer_tokens={config.max_answer_tokens}"
                problem += f"; it was cut at {limit}"
        raise UnscoredError(problem)


def _apart(verdicts: Verdicts) -> tuple[tuple[float | None, ...], tuple[str, ...]]:
    """The scores and the explanations."""
    return tuple(score for score, _ in verdicts), tuple(why for _, why in verdicts)


def divide(decisions: Sequence[Decision], most: int) -> list[tuple[int, ...]]:
    """Positions of the decisions that are judged together, in groups of about the same size."""
    # Neighbours in time see nearly the same market, which is shown once then.
    by_time = sorted(range(len(decisions)), key=lambda i: (decisions[i].timestamp, decisions[i].id))
    count = -(-len(by_time) // most)
    ends = [len(by_time) * k // count for k in range(count + 1)]
    return [tuple(by_time[start:end]) for start, end in pairwise(ends)]
