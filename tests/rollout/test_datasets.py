"""Files of conversations as samples: every form that ``datasets`` writes, and what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.factories import CHATML, byte_tokenizer, model_files
from tests.harness.control_tokens import with_chat

from rlforge.config.model import ModelConfig
from rlforge.errors import ConfigError
from rlforge.models.load import load_tokenizer
from rlforge.rollout.datasets import AnswerEncoder, check_file, samples_of_file

PAIRS = [{"prompt": f"2 + {n} =", "completion": f" {2 + n}"} for n in range(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ModelConfig:
    """A tokenizer of words with chat markup."""
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words = byte_tokenizer("user assistant", marks, 300, eos_token=marks[0], chat_template=CHATML)
    folder = model_files(words, tmp_path_factory.mktemp("models") / "words")
    return ModelConfig(kind="hf", name=str(folder))


@pytest.fixture(scope="module")
def read(model: ModelConfig) -> Callable[[Path], list[tuple[str, str]]]:
    """Prompts and answers of a file as text, the markup included."""
    tokenizer = load_tokenizer(model)
    encoder = AnswerEncoder(model, tokenizer)

    def decoded(path: Path) -> list[tuple[str, str]]:
        check_file(path)
        return [
            (tokenizer.decode(step.prompt_token_ids), tokenizer.decode(step.token_ids))
            for step in samples_of_file(path, tokenizer, encoder)
        ]

    return decoded


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


Read = Callable[[Path], list[tuple[str, str]]]


def test_pairs_are_taken_as_they_are_from_every_kind_of_file(read, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Dataset, DatasetDict

    jsonl(tmp_path / "pairs.jsonl", PAIRS)
    rows = "".join(f"{pair['prompt']},{pair['completion']}\n" for pair in PAIRS)
    (tmp_path / "pairs.csv").write_text(f"prompt,completion\n{rows}")
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for name in ("pairs.parquet", "hub/data/train-00000-of-00001.parquet"):
        pq.write_table(pa.Table.from_pylist(PAIRS), tmp_path / name)
    Dataset.from_list(PAIRS).save_to_disk(tmp_path / "saved")
    parts = {"train": Dataset.from_list(PAIRS), "test": Dataset.from_list(PAIRS[:1])}
    DatasetDict(parts).save_to_disk(tmp_path / "parts")
    expected = [(pair["prompt"], f"{pair['completion']}<|im_end|>") for pair in PAIRS]
    for name in ("pairs.jsonl", "pairs.csv", "pairs.parquet", "saved", "parts", "hub"):
        assert read(tmp_path / name) == expected, name


def test_every_answer_of_a_conversation_is_a_sample_after_all_that_was_said(read, tmp_path):
    said = [
        {"role": role, "content": content}
        for role, content in (
            ("system", "Be brief."),
            ("user", "2 + 2?"),
            ("assistant", "4"),
            ("user", "And 3 + 3?"),
            ("assistant", "6"),
        )
    ]
    begin = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n"
    first = f"{begin}<|im_start|>assistant\n"
    second = f"{first}4<|im_end|>\n<|im_start|>user\nAnd 3 + 3?<|im_end|>\n<|im_start|>assistant\n"
    both = read(jsonl(tmp_path / "said.jsonl", [{"messages": said}]))
    assert both == [(first, "4<|im_end|>"), (second, "6<|im_end|>")]
    # As prompt and completion, answers of the prompt are context.
    last = read(jsonl(tmp_path / "split.jsonl", [{"prompt": said[:4], "completion": said[4:]}]))
    assert last == [(second, "6<|im_end|>")]


def test_names_of_control_tokens_in_questions_stay_text(model, tmp_path):
    tokenizer = load_tokenizer(model)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    asked = {"role": "user", "content": "Say <|im_end|>"}
    said = [asked, {"role": "assistant", "content": "No."}]
    path = jsonl(tmp_path / "said.jsonl", [{"messages": said}])
    [step] = samples_of_file(path, tokenizer, AnswerEncoder(model, tokenizer))
    assert "Say <|im_end|><|im_end|>" in tokenizer.decode(step.prompt_token_ids)
    assert step.prompt_token_ids.count(end) == 1
    assert step.token_ids[-1] == end


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "2"}\n', r"has the columns question; it needs messages, or prompt and c"),
        ("", "has no rows"),
        ("[1]\n", "a line is no object"),
        ("{", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_starts(tmp_path, content, message):
    file = tmp_path / "data.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        check_file(file)
    with pytest.raises(ConfigError, match="no such file"):
        check_file(tmp_path / "absent.jsonl")
    with pytest.raises(ConfigError, match="no jsonl, parquet, csv or arrow file"):
        check_file(Path(__file__))


def test_a_row_that_cannot_be_used_is_named(read, tmp_path):
    rows: list[dict[str, Any]] = [*PAIRS, {"prompt": "2 + 2 =", "completion": None}]
    with pytest.raises(ConfigError, match=r"bad\.jsonl row 4: .*no text"):
        read(jsonl(tmp_path / "bad.jsonl", rows))


def test_prompts_begin_with_the_bos_that_the_tokenizer_adds_and_answers_have_none(tmp_path):
    words = with_chat("llama2", "writes")
    model = ModelConfig(kind="hf", name=str(model_files(words, tmp_path / "words")))
    tokenizer = load_tokenizer(model)
    bos = tokenizer.bos_token_id
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "a board"}]
    rows = [{"messages": said}]
    pairs = [{"prompt": text, "completion": "a board"} for text in ("hello", "<s>hello")]
    for number, file in enumerate((rows, pairs)):
        encoder = AnswerEncoder(model, tokenizer)
        path = jsonl(tmp_path / f"{number}.jsonl", file)
        for step in samples_of_file(path, tokenizer, encoder):
            assert step.prompt_token_ids[0] == bos
            assert [*step.prompt_token_ids, *step.token_ids].count(bos) == 1


def test_arguments_of_the_chat_template_reach_the_samples(tmp_path):
    template = CHATML + "{% if not thinking %}<think></think>{% endif %}"
    words = byte_tokenizer("", ["<|im_end|>"], eos_token="<|im_end|>", chat_template=template)
    folder = str(model_files(words, tmp_path / "words"))
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "a board"}]
    path = jsonl(tmp_path / "said.jsonl", [{"messages": said}])
    for given in (False, True):
        model = ModelConfig(kind="hf", name=folder, chat_template_args={"thinking": given})
        tokenizer = load_tokenizer(model)
        [step] = samples_of_file(path, tokenizer, AnswerEncoder(model, tokenizer))
        assert tokenizer.decode(step.prompt_token_ids).endswith("</think>") is not given
