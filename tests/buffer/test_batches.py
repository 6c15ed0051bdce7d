"""Batches on disk."""

import csv
import dataclasses
import json

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import factories

from rlforge.buffer.batches import ShownSample, read_batch, read_samples, write_batch
from rlforge.errors import DamagedError, RunError
from rlforge.samples import Sample, TrainBatch


def sample(index: int, group_id: str | None) -> Sample:
    return factories.sample(
        origin=f"g{index}",
        player_id=index % 2,
        group_id=group_id,
        turn_index=index,
        last_turn=index == 1,
        observation="Brett · 盤面 \n" * 3,
        prompt_token_ids=(1, 2, 151_000),
        token_ids=(5,) * index,
        logprobs=(-0.1 / 3,) * index,
        reward=0.1 + 0.2,
        outcome_reward=-1 / 3,
        rewards={"win_draw_loss": 1.0, "scale": 0.1 + 0.2},
        policy_version=3,
        info={"well_formed": True, "legal": False, "note": ["ä", 1.5, None]},
    )


BATCH = TrainBatch(
    samples=(sample(0, None), sample(1, "grp"), sample(2, None)),
    whole_episodes=True,
    dropped_stale=7,
)


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_batch_is_read_back_exactly(tmp_path, form):
    path = tmp_path / "batches" / f"batch-000001.{form}"
    write_batch(path, BATCH)
    assert read_batch(path) == BATCH
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def texts_of(ids):
    return [" ".join(map(str, one)) or "nothing" for one in ids]


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_prompts_answers_and_advantages_are_read_back(tmp_path, form):
    path = tmp_path / f"b.{form}"
    write_batch(path, BATCH, texts_of, (0.1 + 0.2, 0.0, -1.5))
    assert read_batch(path) == BATCH
    first, second, _ = read_samples(path)
    assert first == ShownSample(
        sample=BATCH.samples[0], prompt="1 2 151000", answer="nothing", advantage=0.1 + 0.2
    )
    assert (second.answer, second.advantage) == ("5", 0.0)
    write_batch(path, BATCH, texts_of)
    assert [one.advantage for one in read_samples(path)] == [None] * 3
    write_batch(path, BATCH)
    with pytest.raises(RunError, match="no text of prompts and answers"):
        read_samples(path)


def test_any_parquet_reader_sees_the_columns(tmp_path):
    write_batch(tmp_path / "b.parquet", BATCH)
    table = pq.read_table(tmp_path / "b.parquet")
    assert table["reward"].to_pylist() == [0.1 + 0.2] * 3
    assert table["token_ids"].to_pylist() == [[], [5], [5, 5]]
    assert table["group_id"].to_pylist() == [None, "grp", None]
    assert json.loads(table["rewards"][0].as_py()) == {"win_draw_loss": 1.0, "scale": 0.1 + 0.2}


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_file_of_version_0_1_0_is_read(tmp_path, form):
    new, old = tmp_path / f"new.{form}", tmp_path / f"old.{form}"
    write_batch(new, BATCH, texts_of)
    if form == "csv":
        old.write_text(new.read_text().replace('"origin"', '"game_id"', 1))
    else:
        table = pq.read_table(new)
        names = ["game_id" if name == "origin" else name for name in table.schema.names]
        pq.write_table(
            table.rename_columns(names).replace_schema_metadata(table.schema.metadata), old
        )
    assert old.read_bytes() != new.read_bytes()
    assert read_batch(old) == BATCH
    assert read_samples(old) == read_samples(new)


TEXTS = st.text() | st.sampled_from(["", "NULL", "nan", "\r\n", '","', "a\rb"])
NUMBERS = st.floats(allow_nan=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("csv")


@given(
    st.lists(
        st.tuples(TEXTS, TEXTS | st.none(), NUMBERS, st.lists(NUMBERS, max_size=3)), min_size=1
    )
)
def test_a_csv_file_keeps_every_text_and_number(folder, cells):
    samples = tuple(
        dataclasses.replace(
            sample(0, group), observation=text, reward=number, logprobs=tuple(numbers)
        )
        for text, group, number, numbers in cells
    )
    path = folder / "b.csv"
    write_batch(path, dataclasses.replace(BATCH, samples=samples))
    assert read_batch(path).samples == samples


def test_a_csv_file_is_a_table_for_any_reader(tmp_path):
    write_batch(tmp_path / "b.csv", BATCH)
    with (tmp_path / "b.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["reward"]) for row in rows] == [0.1 + 0.2] * 3
    assert [json.loads(row["token_ids"]) for row in rows] == [[], [5], [5, 5]]
    assert rows[1]["observation"] == BATCH.samples[1].observation
    assert json.loads(rows[0]["info"])["legal"] is False
    assert {row["batch_dropped_stale"] for row in rows} == {"7"}


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_damaged_file_is_named(tmp_path, form):
    path = tmp_path / f"b.{form}"
    write_batch(path, BATCH)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DamagedError, match=rf"b\.{form} is damaged .*; name another update"):
        read_samples(path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "b.parquet"
    write_batch(path, BATCH)

    def no_space(_table, where, **_options):
        where.write_bytes(b"half a file")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_batch(path, BATCH)
    assert read_batch(path) == BATCH
    assert [file.name for file in tmp_path.iterdir()] == ["b.parquet"]
