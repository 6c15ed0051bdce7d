"""Answers to HTTP requests become decisions once a client has reported their outcome.

An answer waits in a database of its own; with its outcome it moves into the store, into the window
of the outcome's time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlforge.config.plugins import REDACTIONS
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.decisions.columns import decision_row, to_decision
from rlforge.continuous.decisions.records import Decision, WindowGrid
from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.continuous.loop.answers import Conversation, answer_decision, state_after
from rlforge.continuous.loop.journal import Database
from rlforge.continuous.serving.conversations import conversation_tokens
from rlforge.continuous.serving.records import Answered
from rlforge.errors import RlforgeError
from rlforge.games.encoding import text_ids
from rlforge.types import SamplingParams

log = logging.getLogger(__name__)


class AnswerLog:
    """The answers of one service that wait for their outcome.

    on_decision: called with the window of each new decision.
    """

    def __init__(
        self,
        file: Path,
        store: TrajectoryStore,
        config: ContinuousConfig,
        tokenizer: Any,
        now: Callable[[], float],
        on_decision: Callable[[str], object] = lambda window_id: None,
    ) -> None:
        """Raises RunError when ``file`` cannot be used, ConfigError for ``requests.redact``."""
        self._store, self._tokenizer = store, tokenizer
        self._now, self._on_decision = now, on_decision
        self._keep_s = config.requests.keep_hours * 3600
        self._provider = config.model.label
        self._sampling = _distribution(config.engine.sampling(()))
        self._window_of = WindowGrid(config.window.minutes).id_of
        self._redact_name = config.requests.redact
        if self._redact_name is not None:
            self._redact = REDACTIONS.find(self._redact_name)
        # One outcome after the other: a second report of it must find the first one's.
        self._lock = threading.RLock()
        self._database = Database(
            file,
            # A power cut may lose the last answers, which costs decisions and nothing else.
            "PRAGMA synchronous=NORMAL",
            # Texts of users are overwritten when they are deleted.
            "PRAGMA secure_delete=ON",
            "CREATE TABLE IF NOT EXISTS answers (id TEXT PRIMARY KEY, at REAL NOT NULL, "
            "decision TEXT NOT NULL, reward REAL, rewarded_at REAL)",
            "CREATE INDEX IF NOT EXISTS by_time ON answers (at)",
        )

    async def answered(self, answer: Answered) -> None:
        """Keep an answer, unless it cannot be learned from; what fails is logged."""
        # A client's stop string cut the answer, so its end is not the model's decision.
        if answer.completion is None or not answer.completion.logprobs:
            return
        # Log-probs of another distribution would bias the update.
        if _distribution(answer.params) != self._sampling:
            return
        try:
            decision = self._decision(answer)
            if decision is not None:
                await asyncio.to_thread(self._keep, decision)
        except RlforgeError as error:
            log.error("the answer %s is not kept: %s", answer.id, error)

    async def rewarded(self, answer_id: str, reward: float) -> bool:
        """Make a decision of the answer; False where it is not kept or has a reward already."""
        window_id = await asyncio.to_thread(self._reward, answer_id, reward)
        if window_id is None:
            return False
        self._on_decision(window_id)
        return True

    def finish(self) -> None:
        """Move the answers whose outcome a former process wrote before it died."""
        rows = self._database.run(
            "SELECT id FROM answers WHERE reward IS NOT NULL ORDER BY rewarded_at"
        )
        for (answer_id,) in rows:
            self._move(answer_id)

    def waiting(self) -> int:
        [(count,)] = self._database.run("SELECT count(*) FROM answers WHERE reward IS NULL")
        return int(count)

    def close(self) -> None:
        self._database.close()

    # ------------------------------------------------------------ answers

    def _decision(self, answer: Answered) -> Decision | None:
        """The decision without its outcome; None where ``requests.redact`` keeps nothing."""
        completion = answer.completion
        assert completion is not None
        conversation, now = answer.conversation, self._now()
        if self._redact_name is not None:
            with REDACTIONS.trial(self._redact_name, RlforgeError):
                kept: Conversation | None = self._redact(conversation, answer.text)
                if kept is None:
                    return None
                # Log-probs stay those of the answer's draw, after the original prompt.
                if kept != conversation:
                    conversation = kept
                    if isinstance(kept, str):
                        tokens = text_ids(self._tokenizer, kept)
                    else:
                        tokens = conversation_tokens(
                            self._tokenizer, kept, answer.tools, answer.arguments
                        )
                    completion = dataclasses.replace(completion, prompt_token_ids=tokens)
        return answer_decision(
            answer.id,
            answer.user,
            self._window_of(now),
            now,
            self._provider,
            conversation,
            answer.text,
            completion,
            self._tokenizer,
        )

    def _keep(self, decision: Decision) -> None:
        row = json.dumps(decision_row(decision))
        self._database.run(
            "DELETE FROM answers WHERE at < ? AND reward IS NULL", self._now() - self._keep_s
        )
        self._database.run(
            "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, NULL, NULL)",
            *(decision.id, decision.timestamp, row),
        )

    # ------------------------------------------------------------ outcomes

    def _reward(self, answer_id: str, reward: float) -> str | None:
        """Write an outcome and move its answer; None where none is waiting."""
        with self._lock:
            # An answer that could not be moved keeps its first reward.
            known = self._database.run(
                "UPDATE answers SET reward = coalesce(reward, ?), "
                "rewarded_at = coalesce(rewarded_at, ?) WHERE id = ? RETURNING id",
                *(reward, self._now(), answer_id),
            )
            return self._move(answer_id) if known else None

    def _move(self, answer_id: str) -> str:
        [(row, reward, moment)] = self._database.run(
            "SELECT decision, reward, rewarded_at FROM answers WHERE id = ?", answer_id
        )
        decision = to_decision(json.loads(row))
        window_id = self._window_of(moment)
        decision = dataclasses.replace(
            decision,
            window_id=window_id,
            timestamp=moment,
            reward=reward,
            next_state=state_after(decision),
        )
        # A process that dies before the next line moves it again: the store ignores known ids.
        self._store.append([decision])
        self._database.run("DELETE FROM answers WHERE id = ?", answer_id)
        return window_id


def _distribution(params: SamplingParams) -> tuple[float, ...]:
    return (params.temperature, params.top_p, params.top_k, params.min_p)
