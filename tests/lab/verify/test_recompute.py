"""Log-probs of recorded answers are computed again without needless work."""

from __future__ import annotations

import dataclasses

import torch

from rlforge.config.roots import read_run
from rlforge.config.schema import RunConfig
from rlforge.lab.verify.recompute import Answered, Answers
from rlforge.record.game_files import read_games


def test_answers_that_are_alike_are_computed_once_and_in_few_passes(golden_run, monkeypatch):
    config = dataclasses.replace(read_run(golden_run, RunConfig), determinism="fast")
    config = dataclasses.replace(
        config, engine=dataclasses.replace(config.engine, batch_invariant=False)
    )
    answers = [
        Answered(
            game_id=record.spec.game_id,
            turn=number,
            purpose=record.spec.purpose,
            completion=turn.completion,
        )
        for record in read_games(golden_run)
        for number, turn in enumerate(record.turns, 1)
        if turn.completion.policy_uid == "step-0"
    ]
    scorer = Answers(config)
    rows = []
    forward = torch.nn.Embedding.forward

    def noted(module, ids):
        rows.append(len(ids))
        return forward(module, ids)

    monkeypatch.setattr(torch.nn.Embedding, "forward", noted)
    once = [*scorer.largest_gaps(None, answers)]
    passes, computed = len(rows), sum(rows)
    assert computed <= len(answers)
    assert passes <= 1 + len(answers) // 100
    rows.clear()
    again = [*scorer.largest_gaps(None, answers * 5)]
    assert (len(rows), sum(rows)) == (passes, computed)
    assert (len(once), len(again)) == (len(answers), 5 * len(answers))
    assert max(gap for _, gap in again) == max(gap for _, gap in once) < 1e-4
