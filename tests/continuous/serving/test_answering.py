"""What an answer is made of is checked before anything is served."""

import pytest
from transformers import CanineTokenizer

from rlforge.continuous.serving.answering import Answering, Limits
from rlforge.continuous.serving.tokens import AnswerIds
from rlforge.errors import ConfigError
from rlforge.types import SamplingParams


def test_a_tokenizer_in_python_is_refused():
    service = None
    limits = Limits(model_len=64, vocab_size=100, defaults=SamplingParams(), timeout_s=1.0)
    with pytest.raises(ConfigError, match=r"CanineTokenizer is a tokenizer in Python.*json"):
        Answering(service, CanineTokenizer(), limits, "market", AnswerIds("secret"))
