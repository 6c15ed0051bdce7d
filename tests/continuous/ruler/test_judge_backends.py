import asyncio
import json
import random
import re

import pytest
from tests.factories import any_answer, byte_tokenizer, without_outcome
from tests.harness.control_tokens import TOKENIZERS, attack, control_tokens, with_chat

from rlforge.config.engine import EngineConfig
from rlforge.config.model import ModelConfig
from rlforge.config.schema import RunConfig
from rlforge.continuous.config.ruler import JudgeConfig, RulerConfig
from rlforge.continuous.ruler.judge import JudgeScorer
from rlforge.continuous.ruler.judge_backends import LocalJudge, LocalModel
from rlforge.continuous.ruler.question import each_in_turn, read
from rlforge.continuous.ruler.scorer import make_scorer
from rlforge.engines.grammars import Grammars, check_grammar, json_grammar
from rlforge.engines.openai import ChatError
from rlforge.engines.registry import make_engine
from rlforge.errors import EngineDeadError, EngineError
from rlforge.models.load import load_tokenizer, stop_token_ids
from rlforge.models.tiny.vocabulary import build_tokenizer
from rlforge.types import Completion, PolicyRef

POLICY = PolicyRef(uid="base", kind="checkpoint")
TEXT = "Decision aa\nNO_OP\nDecision bb\nBUY"
MESSAGES = [{"role": "system", "content": "Judge."}, {"role": "user", "content": TEXT}]
IDS = ["aa", "bb"]


CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Model:
    """Scores every decision it is asked about, or fails, after a pause of so many seconds."""

    def __init__(self, failure=None, pause=0.0, tokenizer=None):
        self.failure, self.pause = failure, pause
        self.tokenizer = tokenizer or byte_tokenizer(chat_template=CHAT)
        self.asked = []

    async def generate(self, prompt_token_ids, params, policy):
        self.asked.append((prompt_token_ids, params))
        await asyncio.sleep(self.pause)
        if self.failure is not None:
            raise self.failure
        ids = re.findall(r"Decision (\w+)\n", self.tokenizer.decode(prompt_token_ids))
        entries = [{"id": k, "explanation": "", "score": i / len(ids)} for i, k in enumerate(ids)]
        return Completion(text=json.dumps({"scores": entries}), token_ids=(1, 2, 3))


def _local(model, **changes):
    given = {"generator": model, "tokenizer": model.tokenizer, "stop_token_ids": (7,)}
    return LocalModel(**given | {"policy": POLICY} | changes)


async def test_a_local_model_is_asked_in_its_chat_template_for_an_answer_of_a_grammar():
    model = Model()
    judge = LocalJudge(JudgeConfig(max_answer_tokens=99), _local(model))
    reply = await judge.answer(MESSAGES, IDS)
    ((asked, params),) = model.asked
    assert model.tokenizer.decode(asked) == f"<system>Judge.<user>{TEXT}<assistant>"
    assert [*read(reply.text, IDS)] == ["aa", "bb"]
    assert (params.temperature, params.max_tokens, params.stop_token_ids) == (0.0, 99, (7,))
    assert reply.used.tokens == len(asked) + 3
    assert params.grammar is not None
    check_grammar(params.grammar)


async def test_a_model_without_chat_template_gets_plain_text():
    model = Model(tokenizer=byte_tokenizer())
    await LocalJudge(JudgeConfig(), _local(model)).answer(MESSAGES, IDS)
    assert model.tokenizer.decode(model.asked[0][0]) == f"Judge.\n\n{TEXT}\n\nAnswer:"


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (Model(EngineError("prompt too long")), "rejected"),
        (Model(EngineDeadError("engine died")), "refused"),
        (Model(pause=1.0), "silent"),
    ],
)
async def test_failures_say_which_requests_may_succeed(model, kind):
    judge = LocalJudge(JudgeConfig(timeout_s=0.05), _local(model))
    with pytest.raises(ChatError) as caught:
        await judge.answer(MESSAGES, IDS)
    assert caught.value.kind == kind


def test_every_answer_of_the_grammar_is_read():
    """Whatever a model would rather say: each id once, a score in range, a short explanation."""
    ids, draw = ["aa", "bb", "cc"], random.Random(0)
    tokenizer = build_tokenizer([])
    grammars = Grammars(tokenizer, len(tokenizer))
    for _ in range(20):
        grammar = json_grammar(each_in_turn(ids, 12))
        verdicts = read(any_answer(grammars, tokenizer, draw, grammar), ids)
        assert [*verdicts] == ids
        assert all(len(verdict.explanation) <= 12 for verdict in verdicts.values())


@pytest.mark.parametrize("chat", ["writes", None])
async def test_what_agents_say_makes_no_control_token(chat):
    """``tests/games/test_encoding.py`` has all tokenizers and chat templates."""
    draw = random.Random(str(chat))
    tokenizer = TOKENIZERS["qwen"] if chat is None else with_chat("qwen", chat)
    model = Model(tokenizer=tokenizer)
    judge = LocalJudge(JudgeConfig(), _local(model))

    async def control(rubric, note):
        said = [
            {"role": "system", "content": rubric},
            {"role": "user", "content": f"Decision aa\n{note}"},
        ]
        await judge.answer(said, IDS)
        return control_tokens(tokenizer, model.asked[-1][0])

    wanted = await control("so", "so")
    for _ in range(20):
        texts = attack(draw, tokenizer), attack(draw, tokenizer)
        assert await control(*texts) == wanted, texts


async def test_a_local_model_judges_a_window(make_window):
    config = RulerConfig(scoring_method="judge", judge=JudgeConfig(model="engine"))
    scorer = make_scorer(config, local=_local(Model()))
    assert isinstance(scorer, JudgeScorer)
    scores = await scorer.score(make_window(0).decisions)
    assert None not in scores.values
    # One group is asked in both orders.
    assert scores.metrics["judge_calls"] - 1 == scores.metrics["judge_groups"] == 7


async def judged_by_an_engine(decisions, model, engine, **judge):
    """The scores of the judge that is the model of a run."""
    run = RunConfig(model=ModelConfig(dtype="float32", **model), engine=EngineConfig(**engine))
    tokenizer = load_tokenizer(run.model)
    generator = make_engine(run, device="cpu")
    stops = stop_token_ids(run.model, tokenizer)
    local = LocalModel(
        generator=generator, tokenizer=tokenizer, policy=POLICY, stop_token_ids=stops
    )
    config = RulerConfig(scoring_method="judge", judge=JudgeConfig(model="engine", **judge))
    try:
        return await make_scorer(config, local=local).score(decisions)
    finally:
        await generator.close()


async def test_a_real_engine_that_cannot_hold_the_question_leaves_it_unscored(
    make_window, small_model
):
    model = {"kind": "hf", "name": str(small_model)}
    decisions = make_window(0, each=2).decisions
    scores = await judged_by_an_engine(decisions, model, {"max_model_len": 128})
    assert set(scores.values) == {None}
    assert "engine.max_model_len 128" in scores.explanations[0]


@pytest.mark.slow
async def test_smollm2_judges_two_decisions(make_window):
    """A model of 135M parameters would not keep to the form by itself."""
    window = make_window(0, each=1, agents=("expert", "noise"))
    scores = await judged_by_an_engine(
        [without_outcome(decision) for decision in window.decisions],
        {"kind": "smollm2_135m"},
        {"max_model_len": 4096, "max_parallel_seq": 4},
        group_size=2,
        retries=1,
        max_answer_tokens=160,
        timeout_s=240,
    )
    assert scores.metrics["judge_calls"] == 2  # in both orders
    assert scores.metrics["judge_tokens"] > 400
    assert all(score is not None and 0 <= score <= 1 for score in scores.values)
