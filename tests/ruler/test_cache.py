from __future__ import annotations

from pathlib import Path

import pytest

from rlforge.ruler.cache import AnswerCache
from rlforge.ruler.question import Question, Verdict

VERDICTS = {
    "a": Verdict(score=0.25, explanation="wise »ä«"),
    "b": Verdict(score=1.0, explanation=""),
}


def _question(text: str = "which?") -> Question:
    messages = ({"role": "user", "content": text},)
    return Question(ids=("a", "b"), members={"a": (0,), "b": (1,)}, messages=messages, schema={})


@pytest.mark.parametrize("on_disk", [True, False])
def test_answers_are_found_by_content_and_voice(tmp_path: Path, on_disk: bool) -> None:
    cache = AnswerCache(tmp_path / "deep" / "judge.sqlite" if on_disk else None)
    assert cache.get("m", _question()) is None
    cache.put("m", _question(), VERDICTS)
    assert cache.get("m", _question()) == VERDICTS
    assert cache.get("another", _question()) is None
    assert cache.get("m", _question("who?")) is None
    cache.close()
    assert cache.get("m", _question()) == VERDICTS


def test_answers_outlive_the_process(tmp_path: Path) -> None:
    first = AnswerCache(tmp_path / "judge.sqlite")
    first.put("m", _question(), VERDICTS)
    first.close()
    assert AnswerCache(tmp_path / "judge.sqlite").get("m", _question()) == VERDICTS


def test_a_later_answer_replaces_an_earlier_one(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "judge.sqlite")
    cache.put("m", _question(), VERDICTS)
    other = {**VERDICTS, "b": Verdict(score=0.0, explanation="no")}
    cache.put("m", _question(), other)
    assert cache.get("m", _question()) == other


def test_a_damaged_file_is_named_and_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "judge.sqlite").write_bytes(b"no database at all" * 100)
    cache = AnswerCache(tmp_path / "judge.sqlite")
    cache.put("m", _question(), VERDICTS)
    assert cache.get("m", _question()) is None
    assert cache.failed
    assert caplog.text.count("judge.sqlite cannot be used") == 1
    assert "ruler.judge.cache=false" in caplog.text
    assert (tmp_path / "judge.sqlite").read_bytes() == b"no database at all" * 100


def test_a_folder_that_cannot_be_made_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache = AnswerCache(tmp_path / "file" / "judge.sqlite")
    cache.put("m", _question(), VERDICTS)
    assert cache.failed
    assert "cannot be used" in caplog.text
