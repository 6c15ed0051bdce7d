import asyncio
import json
import random
import re

import pytest
from tests.harness.control_tokens import TOKENIZERS, attack, control_tokens, with_chat

from rlforge.config.ruler import JudgeConfig, RulerConfig
from rlforge.engines.grammars import Grammars, check_grammar, json_grammar
from rlforge.engines.openai import ChatError
from rlforge.errors import EngineDeadError, EngineError
from rlforge.models.tiny.vocabulary import build_tokenizer
from rlforge.ruler.agreement import without_outcome
from rlforge.ruler.judge import JudgeScorer
from rlforge.ruler.judge_backends import LocalJudge, LocalModel
from rlforge.ruler.question import each_in_turn, read
from rlforge.ruler.registry import make_scorer
from rlforge.types import Completion, PolicyRef

POLICY = PolicyRef(uid="base", kind="checkpoint")
TEXT = "Decision aa\nNO_OP\nDecision bb\nBUY"
MESSAGES = [{"role": "system", "content": "Judge."}, {"role": "user", "content": TEXT}]
_ENTRY = {"properties": {"id": {"enum": ["aa", "bb"]}}}
SCHEMA = {"properties": {"scores": {"items": _ENTRY}}}


class Letters:
    """A tokenizer of one token per character, with or without turn markup."""

    unk_token_id = bos_token_id = eos_token_id = None

    def __init__(self, chat):
        self.added_tokens_decoder = {}
        self.chat_template = "yes" if chat else None

    def encode(self, text, *, add_special_tokens):
        return [ord(letter) for letter in text]

    def apply_chat_template(self, conversation, *, tokenize, add_generation_prompt):
        turns = [f"<{turn['role']}>{turn['content']}" for turn in conversation]
        return "".join(turns) + "<assistant>" * add_generation_prompt


class Model:
    """Scores every decision it is asked about, or fails, after a pause of so many seconds."""

    def __init__(self, failure=None, pause=0.0):
        self.failure, self.pause = failure, pause
        self.asked = []

    async def generate(self, prompt_token_ids, params, policy):
        prompt = "".join(map(chr, prompt_token_ids))
        self.asked.append((prompt, params))
        await asyncio.sleep(self.pause)
        if self.failure is not None:
            raise self.failure
        ids = re.findall(r"Decision (\w+)\n", prompt)
        entries = [{"id": k, "explanation": "", "score": i / len(ids)} for i, k in enumerate(ids)]
        return Completion(text=json.dumps({"scores": entries}), token_ids=(1, 2, 3))


def _local(model, chat=True):
    return LocalModel(generator=model, tokenizer=Letters(chat), policy=POLICY, stop_token_ids=(7,))


async def test_a_local_model_is_asked_in_its_chat_template_for_an_answer_of_a_grammar():
    model = Model()
    judge = LocalJudge(JudgeConfig(max_answer_tokens=99), _local(model))
    reply = await judge.answer(MESSAGES, SCHEMA)
    ((prompt, params),) = model.asked
    assert prompt == f"<system>Judge.<user>{TEXT}<assistant>"
    assert [*read(reply.text, ["aa", "bb"])] == ["aa", "bb"]
    assert (params.temperature, params.max_tokens, params.stop_token_ids) == (0.0, 99, (7,))
    assert reply.tokens == len(prompt) + 3
    assert params.grammar is not None
    check_grammar(params.grammar)


async def test_a_model_without_chat_template_gets_plain_text():
    model = Model()
    await LocalJudge(JudgeConfig(), _local(model, chat=False)).answer(MESSAGES, SCHEMA)
    assert model.asked[0][0] == f"Judge.\n\n{TEXT}\n\nAnswer:"


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (Model(EngineError("prompt too long")), "rejected"),
        (Model(EngineDeadError("engine died")), "refused"),
        (Model(pause=1.0), "again"),
    ],
)
async def test_failures_say_which_requests_may_succeed(model, kind):
    judge = LocalJudge(JudgeConfig(timeout_s=0.05), _local(model))
    with pytest.raises(ChatError) as caught:
        await judge.answer(MESSAGES, SCHEMA)
    assert caught.value.kind == kind


def test_every_answer_of_the_grammar_is_read():
    """Whatever a model would rather say: each id once, a score in range, a short explanation."""
    ids, draw = ["aa", "bb", "cc"], random.Random(0)
    tokenizer = build_tokenizer([])
    grammars = Grammars(tokenizer, len(tokenizer))
    for _ in range(20):
        state = grammars.begin(json_grammar(each_in_turn(ids, 12)), [tokenizer.eos_token_id])
        tokens = [-1]
        while tokens[-1] != tokenizer.eos_token_id:
            tokens.append(int(draw.choice(state.allowed().nonzero()[0])))
            state.take(tokens[-1])
        verdicts = read(tokenizer.decode(tokens[1:-1]), ids)
        assert [*verdicts] == ids
        assert all(len(verdict.explanation) <= 12 for verdict in verdicts.values())


class Listening(Model):
    """Keeps the tokens that it is asked with."""

    async def generate(self, prompt_token_ids, params, policy):
        self.ids = tuple(prompt_token_ids)
        return Completion(text="")


@pytest.mark.parametrize("chat", ["writes", None])
async def test_what_agents_say_makes_no_control_token(chat):
    """``tests/games/test_encoding.py`` has all tokenizers and chat templates."""
    draw = random.Random(str(chat))
    tokenizer = TOKENIZERS["qwen"] if chat is None else with_chat("qwen", chat)
    model = Listening()
    local = LocalModel(generator=model, tokenizer=tokenizer, policy=POLICY)
    judge = LocalJudge(JudgeConfig(), local)

    async def control(rubric, note):
        said = [
            {"role": "system", "content": rubric},
            {"role": "user", "content": f"Decision aa\n{note}"},
        ]
        await judge.answer(said, SCHEMA)
        return control_tokens(tokenizer, model.ids)

    wanted = await control("so", "so")
    for _ in range(20):
        texts = attack(draw), attack(draw)
        assert await control(*texts) == wanted, texts


async def test_a_local_model_judges_a_window(make_window):
    config = RulerConfig(scoring_method="judge", judge=JudgeConfig(model="engine"))
    scorer = make_scorer(config, local=_local(Model()))
    assert isinstance(scorer, JudgeScorer)
    scores = await scorer.score(make_window(0).decisions)
    assert None not in scores.values
    assert scores.metrics["judge_calls"] == scores.metrics["judge_groups"] == 7


async def test_a_real_engine_that_cannot_hold_the_question_leaves_it_unscored(
    make_window, small_model
):
    from rlforge.config.schema import EngineConfig, ModelConfig, RunConfig
    from rlforge.engines.registry import make_engine
    from rlforge.models.load import load_tokenizer

    run = RunConfig(
        model=ModelConfig(kind="hf", name=str(small_model), dtype="float32"),
        engine=EngineConfig(max_model_len=128),
    )
    engine = make_engine(run, device="cpu", threads=1)
    local = LocalModel(generator=engine, tokenizer=load_tokenizer(run.model), policy=POLICY)
    config = RulerConfig(scoring_method="judge", judge=JudgeConfig(model="engine"))
    try:
        scores = await make_scorer(config, local=local).score(make_window(0, each=2).decisions)
    finally:
        await engine.close()
    assert set(scores.values) == {None}
    assert "engine.max_model_len 128" in scores.explanations[0]


@pytest.mark.slow
async def test_smollm2_judges_two_decisions(make_window):
    """A model of 135M parameters would not keep to the form by itself."""
    from rlforge.config.schema import EngineConfig, ModelConfig, RunConfig
    from rlforge.engines.registry import make_engine
    from rlforge.models.load import load_tokenizer, stop_token_ids

    run = RunConfig(
        model=ModelConfig(kind="smollm2_135m", dtype="float32"),
        engine=EngineConfig(max_model_len=4096, max_parallel_seq=4),
    )
    engine = make_engine(run, device="cpu")
    tokenizer = load_tokenizer(run.model)
    local = LocalModel(
        generator=engine,
        tokenizer=tokenizer,
        policy=POLICY,
        stop_token_ids=stop_token_ids(run.model, tokenizer),
    )
    judge = JudgeConfig(
        model="engine", group_size=2, retries=1, max_answer_tokens=160, timeout_s=240
    )
    config = RulerConfig(scoring_method="judge", judge=judge)
    window = make_window(0, each=1, agents=("expert", "noise"))
    decisions = [without_outcome(decision) for decision in window.decisions]
    try:
        scores = await make_scorer(config, local=local).score(decisions)
    finally:
        await engine.close()
    assert scores.metrics["judge_calls"] == 1
    assert scores.metrics["judge_tokens"] > 400
    assert all(score is not None and 0 <= score <= 1 for score in scores.values)
