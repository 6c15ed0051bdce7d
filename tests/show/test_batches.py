"""Batches of a run, to be read: as a table, a sample in full, as JSON values."""

import io
import re

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from rlforge.buffer.batches import read_batch
from rlforge.config.roots import read_any
from rlforge.errors import ConfigError, RunError
from rlforge.models.load import load_tokenizer
from rlforge.show.batches import batch_table, find_batch, sample_in_full, to_values


def printed(shown, width):
    console = Console(width=width, file=io.StringIO())
    console.print(shown)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    return lines


def test_a_batch_says_what_was_trained_on_and_what_it_counted_for(golden_run):
    batch = find_batch(golden_run, 2)
    samples = read_batch(golden_run / "batches" / "batch-000002.parquet").samples
    tokenizer = load_tokenizer(read_any(golden_run).model)
    assert [shown.sample for shown in batch.samples] == list(samples)
    for shown in batch.samples:
        prompt = tokenizer.encode(shown.prompt, add_special_tokens=False)
        assert prompt == list(shown.sample.prompt_token_ids)
        assert shown.answer == tokenizer.decode(shown.sample.token_ids)
        assert list(shown.sample.rewards.values())[-1] == shown.sample.reward
    assert any(shown.advantage > 0 for shown in batch.samples)
    assert any(shown.advantage < 0 for shown in batch.samples)
    assert find_batch(golden_run).number == 5


@pytest.mark.parametrize("width", [80, 120])
def test_a_batch_is_a_table_with_a_line_for_each_sample(golden_run, width):
    batch = find_batch(golden_run)
    head, *lines = printed(batch_table(batch, 3, width), width)
    assert re.match(rf"batch 5: {len(batch.samples)} samples of \d+ games of TicTacToe", head)
    first = next(line for line in lines if line.startswith("0 "))
    sample = batch.samples[0].sample
    assert sample.origin in first
    assert sample.action in first
    assert " → " in first
    assert lines[-1] == f"and {len(batch.samples) - 3} more; --rows {len(batch.samples)} shows all"


def test_a_sample_is_shown_in_full(golden_run):
    batch = find_batch(golden_run)
    text = "\n".join(printed(sample_in_full(batch, 1), 120))
    shown = batch.samples[1]
    assert shown.prompt in text
    assert all(f"reward, after {name}" in text for name in shown.sample.rewards)
    assert f"{shown.advantage:+.3g}" in text
    (row,) = to_values(batch, 1)["samples"]
    assert (row["sample"], row["prompt"], row["rewards"]) == (1, shown.prompt, shown.sample.rewards)
    assert len(to_values(batch)["samples"]) == len(batch.samples)
    with pytest.raises(ConfigError, match=r"--sample 4000: batch 5 has samples 0 to \d+$"):
        sample_in_full(batch, 4000)


def test_batches_that_are_not_there_are_one_line(golden_run, run_copy):
    with pytest.raises(ConfigError, match=r"has no batch 6; it has 1 to 5$"):
        find_batch(golden_run, 6)
    file = run_copy / "batches" / "batch-000005.parquet"
    columns = ["prompt", "answer", "advantage", "rewards"]
    pq.write_table(pq.read_table(file).drop_columns(columns), file)
    with pytest.raises(RunError, match=r"token ids only, .* earlier version of rlforge$"):
        find_batch(run_copy)
    whole = read_batch(golden_run / "batches" / file.name)
    assert len(read_batch(file).samples) == len(whole.samples)
