"""Digests of batches and games, and their chain."""

import dataclasses
import json

import numpy as np
import pytest
from tests import factories

from rlforge import play_game
from rlforge.buffer.batches import read_batch, write_batch
from rlforge.record.digests import FILE, DigestChain, broken_at, digest_of_batch, digest_of_games
from rlforge.record.files import read_jsonl
from rlforge.record.game_files import GameWriter, read_games
from rlforge.types import PolicyRef

SAMPLE = factories.sample(
    observation="a ☃ and half of a pair: \ud83d",
    reward=float(np.float32(0.1)),
    legal_tokens=((17, 18),),
    info={"legal": True, "legal_actions": 3, "note": [1.5, None]},
)


def batch(sample=SAMPLE):
    return factories.batch([sample, SAMPLE], whole_episodes=True)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_batch_has_its_digest_when_it_is_read_again(tmp_path, suffix):
    # A transform of a user may leave numbers of numpy.
    sample = dataclasses.replace(SAMPLE, reward=np.float32(0.1), info={"turns": np.int64(3)})
    write_batch(tmp_path / f"batch-1.{suffix}", batch(sample))
    again = read_batch(tmp_path / f"batch-1.{suffix}")
    assert digest_of_batch(again) == digest_of_batch(batch(sample))


def test_each_field_counts():
    others = {
        "origin": "g2",
        "player_id": 1,
        "last_turn": False,
        "observation": "x",
        "token_ids": (18,),
        "logprobs": (-0.1 - 1e-12,),
        "reward": 0.1,
        "legal_tokens": ((17,), (18,)),
        "info": {"legal": False},
    }
    digests = [
        digest_of_batch(batch(dataclasses.replace(SAMPLE, **{n: v}))) for n, v in others.items()
    ]
    swapped = dataclasses.replace(batch(), whole_episodes=False)
    every = [digest_of_batch(batch()), digest_of_batch(swapped), *digests]
    assert len(set(every)) == len(every)


def test_a_game_has_its_digest_wherever_and_however_fast_it_was_played(tmp_path):
    record = play_game("tictactoe", "random_legal", seed=1)

    def played_in(folder, duration_s):
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
