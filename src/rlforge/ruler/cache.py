"""Good answers of judges, kept by the content of their question."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from rlforge.ruler.question import Question, Verdict

log = logging.getLogger(__name__)

_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    question TEXT PRIMARY KEY,
    verdicts TEXT NOT NULL,
    made TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)"""


class AnswerCache:
    """Verdicts in SQLite: in the file ``path``, or in memory where that is None.

    A cache is a convenience. Where its file is damaged or its disk is full, that is logged once,
    ``failed`` is set, and nothing is kept or found any more.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self.failed = False

    def get(self, voice: str, question: Question) -> dict[str, Verdict] | None:
        """The verdicts that ``voice`` gave to this very question, or None."""
        rows = self._run("SELECT verdicts FROM answers WHERE question = ?", _key(voice, question))
        if not rows:
            return None
        kept: dict[str, tuple[float, str]] = json.loads(rows[0][0])
        return {name: Verdict(score=score, explanation=why) for name, (score, why) in kept.items()}

    def put(self, voice: str, question: Question, verdicts: Mapping[str, Verdict]) -> None:
        """Keep verdicts; those given before to the same question are replaced."""
        kept = json.dumps({name: [v.score, v.explanation] for name, v in verdicts.items()})
        self._run(
            "INSERT OR REPLACE INTO answers (question, verdicts) VALUES (?, ?)",
            _key(voice, question),
            kept,
        )

    def close(self) -> None:
        """Give back the file, until it is next used. What is in memory only stays."""
        if self._connection is not None and self._path is not None:
            self._connection.close()
            self._connection = None

    def _run(self, statement: str, *values: str) -> list[tuple[str]]:
        if self.failed:
            return []
        try:
            with self._open() as connection:
                return connection.execute(statement, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            self.failed = True
            log.warning(
                "judge cache %s cannot be used (%s); judging goes on without it: remove the file, "
                "make room, or set ruler.judge.cache=false",
                self._path or "in memory",
                error,
            )
            return []

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self._path or ":memory:", check_same_thread=False)
            connection.execute(_TABLE)
            self._connection = connection
        return self._connection


def _key(voice: str, question: Question) -> str:
    content = json.dumps([voice, question.messages], ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()
