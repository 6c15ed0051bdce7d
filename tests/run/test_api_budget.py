"""A whole run with a player behind an API whose budget is used before the run is over."""

from __future__ import annotations

import json
import re

import pytest
from tests.harness.chat_server import ChatHandler, completion, serving
from tests.harness.live_run import RUN, rows
from tests.run.conftest import Train

from rlforge.record.game_files import read_games

USAGE = {"prompt_tokens": 100, "total_tokens": 110, "cost": 0.001}


class Handler(ChatHandler):
    """Plays the first legal action, for a tenth of a cent."""

    def respond(self, asked, tries):
        said = asked["messages"][-1]["content"]
        (first, *_) = re.findall(r"\[\w+\]", said.partition("legal actions: ")[2])
        self.send(200, completion(f"\\boxed{{{first}}}", usage=USAGE))


def test_the_run_goes_on_without_api_players_once_their_games_are_played(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlforge.run.watch.POLL_S", 0.05)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(Handler) as server:
        code, _, err = train(
            *("learner.batch_size=16", "pool.mode=fixed", "pool.api.max_games=9"),
            *("pool.fixed_opponents=['openai:m']", "eval.opponents=['openai:m']"),
            f"pool.api.openai_base_url={server.url}",
        )
        asked = len(server.requests)
    assert code == 0, err
    assert err.count("pool.api.max_games=9 is used") == 1
    assert [row["step"] for row in rows("metrics.jsonl")] == [1, 2, 3]
    with_api = [
        record
        for record in read_games(RUN)
        if any(seat.policy.kind == "api" for seat in record.spec.seats)
    ]
    assert len(with_api) == 9
    # The last version is evaluated against the others.
    assert {row["opponent"] for row in rows("evals.jsonl") if row["step"] == 3} == {"base"}
    (used,) = json.loads((RUN / "summary.json").read_text())["api"]
    assert (used["uid"], used["games"], used["requests"]) == ("openai:m", 9, asked)
    assert used["cost"] == pytest.approx(asked * 0.001)
    points = [row for row in rows("scalars.jsonl") if "api/openai:m/requests" in row]
    assert points[-1]["api/openai:m/requests"] == asked
    assert any(row.get("api/openai:m/latency_s", 0) > 0 for row in points)
    assert points[-1]["api/declined_games"] >= 4
    assert "Players behind APIs" in (RUN / "report.html").read_text()
