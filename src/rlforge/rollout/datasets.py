"""Answers as the tokens that a model has to sample, and files of conversations as samples."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlforge.config.model import ModelConfig
from rlforge.config.plugins import EXTRACTIONS
from rlforge.config.sft import ACTION
from rlforge.errors import ConfigError
from rlforge.games.encoding import Encoder
from rlforge.games.markup import Prompt, by_chat_template
from rlforge.models.load import stop_token_ids
from rlforge.record.files import RunPaths
from rlforge.samples import Sample
from rlforge.types import OTHER_RUN

Message = Mapping[str, str]
Row = Mapping[str, Any]


class AnswerEncoder:
    """Token ids of answers, with the token that ends one."""

    def __init__(self, model: ModelConfig, tokenizer: Any) -> None:
        """Make an encoder; ConfigError where no token ends an answer of the model."""
        self.tokenizer = tokenizer
        self._encoder = Encoder(tokenizer)
        self._stops = frozenset(stop_token_ids(model, tokenizer))
        if not self._stops:
            raise ConfigError("the model's tokenizer has no token that ends an answer")
        self._end = _end_of_answer(tokenizer, self._stops)

    def answer(self, text: str, after: str, *, markup: bool = False) -> tuple[int, ...]:
        """The ids of ``text`` up to its end, which is added where it has none.

        after: the prompt. markup: names of control tokens, as ``<think>``, become these tokens.
        """
        # A word's token usually includes the space in front, so the answer begins with one, unless
        # the prompt ends with white space or a tag such as ``<|im_start|>``.
        joint = "" if not after or after[-1].isspace() or after[-1] == ">" else " "
        said = f"{joint}{text}"
        contents = () if markup else ((0, 0, len(said)),)
        ids = self._encoder.encode(Prompt(text=said, contents=contents), begins=False)
        for place, token in enumerate(ids):
            # An engine would end the answer here.
            if token in self._stops:
                return ids[: place + 1]
        return (*ids, self._end)

    def prompt(self, prompt: Prompt) -> tuple[int, ...]:
        return self._encoder.encode(prompt)

    def text(self, ids: Sequence[int]) -> str:
        """The text of an answer, as an engine gives it."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text


def written(template: str, extraction: str, action: str) -> str:
    """``template`` with the action in the form that ``extraction`` reads.

    Example:
        >>> written("I play {action}", "boxed", "[4]")
        'I play \\\\boxed{[4]}'
    """
    return template.replace(ACTION, EXTRACTIONS.find(extraction).write(action))


def _end_of_answer(tokenizer: Any, stops: frozenset[int]) -> int:
    if tokenizer.chat_template:
        said = [{"role": role, "content": "?"} for role in ("user", "assistant")]
        # A chat model ends answers with a token of its template, which may not be that of a text.
        after = by_chat_template(said, "", tokenizer).markup()[-1]
        for token in tokenizer.encode(after, add_special_tokens=False):
            if token in stops:
                return int(token)
    own = tokenizer.eos_token_id
    return int(own) if own in stops else min(stops)


def given_sample(prompt: Sequence[int], answer: Sequence[int], **about: Any) -> Sample:
    """An answer to learn that no engine sampled; about: the other fields."""
    return Sample(
        prompt_token_ids=tuple(prompt),
        token_ids=tuple(answer),
        logprobs=(0.0,) * len(answer),
        policy_version=OTHER_RUN,
        **about,
    )


# ---------------------------------------------------------------- the samples of a run


def sample_files(run_dir: Path) -> tuple[Path, Path]:
    """Files of a supervised run with what it learns from, and with what it holds out."""
    folder = RunPaths(root=run_dir).samples
    return folder / "train.parquet", folder / "validation.parquet"


def has_samples(run_dir: Path) -> bool:
    # This file is written last, so where it is, all samples are.
    return sample_files(run_dir)[0].is_file()


def count_samples(run_dir: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(sample_files(run_dir)[0]).num_rows)


# ---------------------------------------------------------------- files


def check_file(path: Path) -> None:
    """Raise ConfigError for a dataset that is missing, empty or without the columns.

    ``messages`` are lists of ``role`` and ``content``; ``prompt`` and ``completion`` texts or such
    lists.
    """
    for _, row in _rows(path):
        if "messages" not in row and not {"prompt", "completion"} <= row.keys():
            raise ConfigError(
                f"{path} has the columns {', '.join(row)}; it needs messages, or prompt and "
                "completion"
            )
        return
    raise ConfigError(f"{path} has no rows")


def samples_of_file(path: Path, tokenizer: Any, encoder: AnswerEncoder) -> Iterator[Sample]:
    """A sample per answer: of each message of the assistant, or each completion."""
    for place, row in _rows(path):
        try:
            answers = list(_of_row(row, tokenizer))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{place}: {type(error).__name__}: {error}") from error
        for index, (prompt, answer) in enumerate(answers):
            tokens = encoder.answer(answer, after="", markup=True)
            yield given_sample(
                encoder.prompt(prompt),
                tokens,
                origin=place,
                env_id=path.name,
                turn_index=index,
                last_turn=index + 1 == len(answers),
                observation=prompt.text,
                action=answer,
                policy_uid=path.name,
            )


def _of_row(row: Row, tokenizer: Any) -> Iterator[tuple[Prompt, str]]:
    """Prompts, and the answer to each."""
    if row.get("messages") is not None:
        said = list(row["messages"])
    elif isinstance(row["prompt"], str):
        # The prompt may hold control tokens, so no part of it is plain content.
        yield Prompt(text=row["prompt"], contents=()), _text(row["completion"])
        return
    else:
        said = [*row["prompt"], *row["completion"]]
    first = 0 if row.get("messages") is not None else len(row["prompt"])
    for index, message in enumerate(said):
        if message["role"] == "assistant" and index >= first:
            if not index:
                raise ValueError("an answer stands before any question")
            if not tokenizer.chat_template:
                raise ValueError(
                    "messages need a chat template, which this tokenizer does not have"
                )
            yield by_chat_template(said[:index], "", tokenizer), _text(message["content"])


def _text(answer: Any) -> str:
    if not isinstance(answer, str):
        raise ValueError(f"the answer {answer!r} is no text")
    return answer


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    """The rows of a dataset with their places; ConfigError where it cannot be read."""
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder")
    files = _files(path)
    if not files:
        raise ConfigError(f"{path}: no jsonl, parquet, csv or arrow file, nor a folder with some")
    for file in files:
        try:
            for number, row in enumerate(_READERS[file.suffix](file), start=1):
                yield f"{file} row {number}", row
        # Errors of pyarrow are of these classes, too.
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from error


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix in _READERS else []
    folders = [path / "train", path / "data", path]
    for folder in folders:
        for suffix in _READERS:
            found = sorted(folder.glob(f"*{suffix}"))
            # ``datasets`` writes all parts into one folder, and only ``train`` is to learn from.
            train = [file for file in found if file.name.startswith("train")]
            if found:
                return train or found
    return []


def _jsonl(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"a line is no object: {line[:60].strip()}")
                yield row


def _csv(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)


def _parquet(file: Path) -> Iterator[Row]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(file).iter_batches(1000):
        yield from batch.to_pylist()


def _arrow(file: Path) -> Iterator[Row]:
    import pyarrow as pa

    with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as batches:
        for batch in batches:
            yield from batch.to_pylist()


_READERS = {".arrow": _arrow, ".parquet": _parquet, ".jsonl": _jsonl, ".csv": _csv}
