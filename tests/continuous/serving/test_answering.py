"""What an answer is made of is checked before anything is served."""

import pytest
from transformers import CanineTokenizer

from rlforge.continuous.serving.answering import Answering
from rlforge.continuous.serving.tokens import AnswerIds
from rlforge.errors import ConfigError
from rlforge.models import load


def test_a_tokenizer_in_python_is_refused(config, monkeypatch):
    monkeypatch.setattr(load, "load_tokenizer", lambda _: CanineTokenizer())
    with pytest.raises(ConfigError, match=r"CanineTokenizer is a tokenizer in Python.*json"):
        Answering(None, config, AnswerIds("secret"))
