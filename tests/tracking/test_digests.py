"""Digests of batches and games, and their chain."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from rlforge import play_game
from rlforge.buffer.batches import read_batch, write_batch
from rlforge.tracking.digests import FILE, DigestChain, broken_at, digest_of_batch, digest_of_games
from rlforge.tracking.files import read_jsonl
from rlforge.tracking.game_files import GameWriter, read_games
from rlforge.types import PolicyRef, Step, TrainBatch

STEP = Step(
    game_id="g1",
    env_id="TicTacToe-v0-train",
    player_id=0,
    group_id=None,
    turn_index=0,
    last_turn=True,
    observation="a ☃ and half of a pair: \ud83d",
    action="[4]",
    prompt_token_ids=(5, 6),
    token_ids=(17,),
    logprobs=(-0.1,),
    raw_reward=1.0,
    reward=float(np.float32(0.1)),
    policy_uid="step-3",
    policy_version=3,
    legal_tokens=((17, 18),),
    info={"legal": True, "legal_actions": 3, "note": [1.5, None]},
)


def batch(step: Step = STEP) -> TrainBatch:
    return TrainBatch(steps=(step, STEP), whole_episodes=True, min_version=3, max_version=3)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_batch_has_its_digest_when_it_is_read_again(tmp_path, suffix):
    # A transform of a user may leave numbers of numpy.
    step = dataclasses.replace(STEP, reward=np.float32(0.1), info={"turns": np.int64(3)})
    write_batch(tmp_path / f"batch-1.{suffix}", batch(step))
    again = read_batch(tmp_path / f"batch-1.{suffix}")
    assert digest_of_batch(again) == digest_of_batch(batch(step))


def test_each_field_counts():
    others = {
        "game_id": "g2",
        "player_id": 1,
        "last_turn": False,
        "observation": "",
        "token_ids": (18,),
        "logprobs": (-0.1 - 1e-12,),
        "reward": 0.1,
        "legal_tokens": ((17,), (18,)),
        "info": {"legal": False},
    }
    digests = [
        digest_of_batch(batch(dataclasses.replace(STEP, **{n: v}))) for n, v in others.items()
    ]
    swapped = TrainBatch(steps=batch().steps, whole_episodes=False, min_version=3, max_version=3)
    every = [digest_of_batch(batch()), digest_of_batch(swapped), *digests]
    assert len(set(every)) == len(every)


def test_a_game_has_its_digest_wherever_and_however_fast_it_was_played(tmp_path):
    record = play_game("tictactoe", "random_legal", seed=1)

    def played_in(folder: str, duration_s: float) -> str:
        policy = PolicyRef(uid="step-3", kind="checkpoint", path_or_name=f"{folder}/step-3")
        seats = tuple(dataclasses.replace(seat, policy=policy) for seat in record.spec.seats)
        spec = dataclasses.replace(record.spec, seats=seats)
        return digest_of_games([dataclasses.replace(record, spec=spec, duration_s=duration_s)])

    assert played_in("/here", 1.0) == played_in("/there", 2.0) != digest_of_games([record])
    writer = GameWriter(tmp_path)
    writer.add([record])
    writer.close()
    assert digest_of_games(read_games(tmp_path)) == digest_of_games([record])
    assert digest_of_games([record, record]) != digest_of_games([record])


def test_a_chain_goes_on_and_shows_where_it_was_changed(tmp_path):
    chain = DigestChain(tmp_path)
    for step in range(4):
        chain.append(step, {"batch": f"{step}"})
    chain.rewind(2)
    chain = DigestChain(tmp_path)
    chain.append(3, {"batch": "another"})
    rows = read_jsonl(tmp_path / FILE)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert broken_at(rows) is None
    assert broken_at([*rows[:1], *rows[2:]]) == 2
    assert broken_at(rows[1:]) == 1
    changed = json.loads(json.dumps(rows))
    changed[2]["batch"] = "x"
    assert broken_at(changed) == 2
