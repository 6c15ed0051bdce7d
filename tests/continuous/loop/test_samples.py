"""The decisions of a run that its report shows."""

import dataclasses
import json

from tests import factories

from rlforge.continuous.decisions.records import Result, TrainingWindow
from rlforge.continuous.loop.samples import EACH, keep_samples, samples
from rlforge.continuous.ruler.base import DecisionScores


def window(decisions, name="2024-11-13-10:00"):
    return TrainingWindow(
        id=name,
        start_time=0.0,
        end_time=1.0,
        agents=(),
        decisions=tuple(decisions),
        avg_reward=0.0,
        ready=True,
    )


def refused(decision):
    return dataclasses.replace(decision, action={"type": "NO_OP", "problem": "no action"})


def kept(folder):
    return json.loads((folder / "decisions.json").read_text())


def test_the_best_the_worst_and_refused_decisions_of_the_model_are_chosen():
    result = Result(pnl=2.5, investment=10, hold_time_minutes=1, win_rate=1)
    decisions = [
        *(factories.decision(number, reward=number / 10, result=result) for number in range(9)),
        *(refused(factories.decision(number, reward=-1.0)) for number in range(9, 14)),
        factories.decision(14, reward=9.0, provider="control"),
        factories.decision(15, reward=9.0, tokens=None, provider="scripted:value"),
        factories.decision(16, reward=None),
    ]
    scores = DecisionScores(
        values=tuple(number / 20 for number in range(17)),
        explanations=tuple(f"because of {number}" for number in range(17)),
        metrics={},
    )
    found = samples(decisions, scores)
    assert [(one["kind"], one["reward"]) for one in found] == [
        *(("best", reward) for reward in (0.8, 0.7, 0.6)),
        *(("worst", reward) for reward in (0.0, 0.1, 0.2)),
        *(("refused", -1.0),) * EACH,
    ]
    assert found[0] | {"observation": ""} == {
        "kind": "best",
        "agent": "agent-1",
        "version": "deploy-0",
        "time": 8.0,
        "observation": "",
        "answer": "[hold]",
        "action": {"type": "NO_OP"},
        "problem": None,
        "reward": 0.8,
        "profit": 2.5,
        "score": 0.4,
        "explanation": "because of 8",
    }
    assert found[-1]["problem"] == "no action"


def test_no_decision_is_both_best_and_worst():
    for count in range(1, 7):
        found = samples([factories.decision(n, reward=float(n)) for n in range(count)], None)
        assert sorted(one["reward"] for one in found) == list(range(count))
        assert all(one["score"] is None for one in found)


def test_the_first_window_is_kept_unless_old_windows_are_deleted(tmp_path):
    keep_samples(tmp_path, window([factories.decision(tokens=None)], "0"), None, first=True)
    assert not (tmp_path / "decisions.json").exists()
    for number in (1, 2, 3):
        decisions = [factories.decision(number, reward=float(number))]
        keep_samples(tmp_path, window(decisions, str(number)), None, first=True)
    content = kept(tmp_path)
    assert (content["first"]["window"], content["newest"]["window"]) == ("1", "3")
    assert content["newest"]["decisions"][0]["reward"] == 3.0
    keep_samples(tmp_path, window([factories.decision(4)], "4"), None, first=False)
    assert kept(tmp_path)["first"] is None
    assert kept(tmp_path)["newest"]["window"] == "4"
