"""Log-probs against the plain forward pass of transformers."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.factories import causal_lm
from tests.learner import parts
from tests.learner.parts import gpt2, minicpm

from rlforge.config.model import LoraConfig
from rlforge.errors import ConfigError
from rlforge.learner.batching import MicroBatch, collate, most_legal, select_rows, whole
from rlforge.learner.logprobs import Reading
from rlforge.learner.partition import in_order, segments
from rlforge.learner.policy import TokenLogprobs
from rlforge.learner.scorer import Scorer, ScorerOptions, Scores, answer_logprobs
from rlforge.learner.weights import attach_lora


def micro_of(samples) -> MicroBatch:
    return collate(select_rows(samples, None).rows, 0, torch.device("cpu"))


granite = partial(causal_lm, "granite", logits_scaling=4.0)
cohere = partial(causal_lm, "cohere", logit_scale=0.25)
gemma = partial(causal_lm, "gemma2", final_logit_softcapping=2.0)
mixtral = partial(causal_lm, "mixtral", num_local_experts=4, num_experts_per_tok=2)


def adapted_llama(**changes) -> torch.nn.Module:
    return with_adapter(parts.model(**{"tie_word_embeddings": False, **changes}))


adapted_tied_llama = partial(adapted_llama, tie_word_embeddings=True)


def test_logprob_by_hand():
    """With a zero head but for one row, logits are known without running the model."""
    model = parts.model(tie_word_embeddings=False)
    torch.nn.init.zeros_(model.lm_head.weight)
    sample = parts.sample(prompt_token_ids=(3, 4), token_ids=(5,), logprobs=(-1.0,))
    uniform = Scorer(model, ScorerOptions(temperature=1.0)).score(micro_of([sample]), entropy=True)
    assert uniform.logprobs.tolist() == pytest.approx([-math.log(40)], abs=1e-6)
    assert uniform.entropy is not None
    assert uniform.entropy.tolist() == pytest.approx([math.log(40)], abs=1e-6)


LAST_LAYERS = {
    "llama": 3,
    "granite": 3,
    "cohere": 3,
    "gemma": 3,
    "gpt2": 1,  # queries, keys and values are one product there
    "mixtral": 3,
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "layout"),
    [*((name, "padded") for name in LAST_LAYERS), ("llama", "packed"), ("llama", "shared")],
)
def test_a_narrowed_last_layer_changes_neither_scores_nor_gradients(name, layout):
    makers = {"granite": granite, "cohere": cohere, "gemma": gemma, "gpt2": gpt2}
    makers |= {"mixtral": mixtral, "llama": parts.model}
    torch.manual_seed(0)
    model = makers[name]().eval()
    head = torch.nn.Linear(32, 1)
    prompt = tuple(range(3, 15))
    samples = [
        parts.sample(prompt_token_ids=prompt[:n], token_ids=(n,), logprobs=(-1.0,))
        for n in (5, 8, 9)
    ]
    results = []
    for narrow in (False, True):
        scorer = Scorer(model, ScorerOptions(temperature=0.9, narrow=narrow), head)
        assert layout == "padded" or scorer.can_pack()
        rows = select_rows(samples, None).rows
        micro = collated(rows if layout == "padded" else in_order(rows), layout)
        scores = scorer.score(micro, entropy=True)
        model.zero_grad()
        (scores.logprobs.sum() + scores.values.square().sum()).backward()
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        results.append((scores, scorer.values(micro), gradients))
        assert len(scorer.narrowed) == (LAST_LAYERS[name] if narrow else 0)
    (plain, plain_values, expected), (scores, values, gradients) = results
    assert (plain.unread, scores.unread > 0) == (0, True)
    torch.testing.assert_close(scores.logprobs, plain.logprobs)
    torch.testing.assert_close(scores.entropy, plain.entropy)
    torch.testing.assert_close(scores.values, plain.values)
    torch.testing.assert_close(values, plain_values)
    assert gradients.keys() == expected.keys()
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[parameter], rtol=1e-4, atol=1e-5)


def test_a_last_layer_that_mixes_positions_is_not_narrowed():
    model = parts.model().eval()
    mlp = model.model.layers[-1].mlp
    own = mlp.forward
    mlp.forward = lambda x: own(x).cumsum(1)
    samples = parts.random_steps(5)
    scorer = Scorer(model, ScorerOptions(temperature=1.0, narrow=True))
    assert scorer.narrowed == ()
    expected = parts.answer_logprobs(model, samples)
    torch.testing.assert_close(scorer.score(micro_of(samples)).logprobs, expected)


@pytest.mark.parametrize(("make", "scale"), [(parts.model, 1), (minicpm, 2)])
def test_values_come_from_the_hidden_state_at_the_last_prompt_token(make, scale):
    torch.manual_seed(0)
    model = make().eval()
    samples = parts.random_steps(4)
    head = torch.nn.Linear(32, 1)
    scorer = Scorer(model, ScorerOptions(temperature=1.0), head)
    micro = micro_of(samples)
    hidden = model.get_decoder()(input_ids=micro.input_ids).last_hidden_state.flatten(0, 1)
    expected = head(hidden[micro.last_prompt] / scale).squeeze(-1)
    assert scorer.decoder_and_head is (make is not minicpm)
    torch.testing.assert_close(scorer.values(micro), expected)
    torch.testing.assert_close(scorer.score(micro).values, expected)
    # Afterwards the head sees all positions again.
    assert model(input_ids=micro.input_ids).logits.shape[:2] == micro.input_ids.shape


@pytest.fixture
def logits_at_once(monkeypatch):
    """Positions whose logits were computed together, pass by pass."""
    rows = []
    logits = Reading.logits

    def counting(reading, outputs):
        rows.append(len(outputs))
        return logits(reading, outputs)

    monkeypatch.setattr(Reading, "logits", counting)
    return rows


def with_adapter(model) -> torch.nn.Module:
    """An adapter on the output layer, too."""
    lora = LoraConfig(rank=2, target_modules=["q_proj", "up_proj", "lm_head"])
    parts.randomise_adapter(attach_lora(model, lora, seed=0))
    return model


HEADS = {
    "granite": granite,
    "cohere": cohere,
    "gemma": gemma,
    "gpt2": gpt2,
    "llama": parts.model,
    "llama, adapted head": adapted_llama,
    "llama, adapted tied head": adapted_tied_llama,
    "qwen3, adapted head": lambda: with_adapter(causal_lm("qwen3")),
}
EVERY_HEAD = pytest.mark.parametrize("make", HEADS.values(), ids=HEADS.keys())


@pytest.mark.one_in(4)
@EVERY_HEAD
def test_no_more_logits_than_allowed_are_computed_at_once(make, logits_at_once):
    scorer = Scorer(make(), ScorerOptions(temperature=1.0, max_logits=3 * 40))
    samples = parts.random_steps(8)
    logits_at_once.clear()
    answers = sum(len(sample.token_ids) for sample in samples)
    with parts.Made() as made:
        scores = scorer.score(micro_of(samples), entropy=True)
        assert sum(logits_at_once) == answers
        scores.logprobs.sum().backward()
    assert max(logits_at_once) == 3
    assert answers * 40 not in made.sizes()


def scored(scorer, model, micro) -> list[torch.Tensor]:
    """Log-probs, entropies, and the gradient of both weighed unequally."""
    model.zero_grad()
    scores = scorer.score(micro, entropy=True)
    weights = torch.linspace(-1.0, 2.0, len(micro.token_ids))[micro.flat]
    (scores.logprobs @ weights + scores.entropy @ weights.flip(0)).backward()
    return [
        torch.empty(len(weights)).index_copy(0, micro.flat, scores.logprobs.detach()),
        torch.empty(len(weights)).index_copy(0, micro.flat, scores.entropy.detach()),
        *(p.grad.clone() for p in model.parameters() if p.grad is not None),
    ]


class Plain:
    """All logits of the model's own forward pass, and torch's gradient."""

    def __init__(self, model, temperature):
        self._model = model
        self._temperature = temperature

    def score(self, micro, *, entropy):
        logits = self._model(input_ids=micro.input_ids).logits.flatten(0, 1)[micro.positions]
        logs = torch.log_softmax(logits / self._temperature, -1)
        chosen = logs.gather(-1, micro.token_ids[:, None]).squeeze(-1)
        return Scores(logprobs=chosen, entropy=-(logs.exp() * logs).sum(-1), values=None)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *((name, "padded") for name in HEADS),
        # Padded rows are computed with the attention of packed ones, too.
        *(("llama", layout) for layout in ("distinct", "packed", "shared")),
        *(("gpt2", layout) for layout in ("packed", "shared")),
        *(("qwen3, adapted head", layout) for layout in ("packed", "shared")),
        ("llama, adapted head", "shared"),
    ],
)
def test_by_chunks_scores_and_gradients_are_those_of_the_whole_model(name, layout):
    torch.manual_seed(0)
    model = HEADS[name]()
    samples = parts.random_steps(7)
    alike = [replace(s, prompt_token_ids=(9, 8, 7, *s.prompt_token_ids)) for s in samples]
    rows = in_order(select_rows(alike, None).rows)
    padded = collate(rows, 0, torch.device("cpu"))
    expected = scored(Plain(model, 0.8), model, padded)
    scorer = Scorer(model, ScorerOptions(temperature=0.8, max_logits=3 * 40))
    assert layout == "padded" or scorer.can_pack()
    actual = scored(scorer, model, collated(rows, layout))
    assert scorer.decoder_and_head
    assert len(actual) == len(expected) > 3
    for ours, plain in zip(actual, expected, strict=True):
        assert (ours - plain).norm() <= 1e-4 * plain.norm()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", [adapted_llama, adapted_tied_llama])
def test_an_adapted_head_in_float32_is_exact_where_the_rest_is_bfloat16(make):
    model = make()
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(torch.float32 if "lora" in name else torch.bfloat16)
    micro = micro_of(parts.random_steps(6))
    errors = []
    for fp32_head in (True, False):
        options = {"autocast": torch.bfloat16, "fp32_head": fp32_head}
        scorer = Scorer(model, ScorerOptions(temperature=1.0, max_logits=3 * 40, **options))
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = model.get_decoder()(input_ids=micro.input_ids).last_hidden_state
        at = hidden.flatten(0, 1)[micro.positions].double()
        head = model.get_output_embeddings()
        low = head.lora_B["default"].weight.double() @ head.lora_A["default"].weight.double()
        weight = head.base_layer.weight.double() + head.scaling["default"] * low
        exact = torch.log_softmax(at @ weight.T, -1).gather(-1, micro.token_ids[:, None])
        logprobs = scorer.score(micro).logprobs
        logprobs.sum().backward()
        errors.append(float((logprobs.detach() - exact.detach().squeeze(-1)).abs().max()))

    assert errors[0] < 1e-5
    assert errors[1] > 1e-4


def test_a_reference_without_its_adapter_has_the_head_without_it():
    model = parts.model()
    lora = LoraConfig(rank=2, target_modules=["lm_head"])
    adapted = attach_lora(model, lora, seed=0)
    parts.randomise_adapter(adapted)
    sample = parts.random_steps(1)[0]
    scorer = Scorer(model, ScorerOptions(temperature=1.0))
    with adapted.disable_adapter(), torch.no_grad():
        scores = scorer.score(micro_of([sample]))
    expected = parts.answer_logprobs(parts.model(), [sample])
    torch.testing.assert_close(scores.logprobs, expected, atol=1e-5, rtol=1e-5)


def test_a_float32_head_is_refused_where_only_the_whole_model_gives_logits():
    with pytest.raises(ConfigError, match=r"learner\.fp32_head: the logits of MiniCPM3.*off"):
        Scorer(minicpm(), ScorerOptions(temperature=1.0, fp32_head=True))


# ---------------------------------------------------------------- legal tokens


def some_legal() -> list:
    """Samples with and without legal tokens, and two of equal tokens with other legal ones."""
    generator = torch.Generator().manual_seed(3)

    def beside(token: int, count: int) -> tuple[int, ...]:
        others = torch.randperm(39, generator=generator)[:count] + 1
        return tuple(sorted({token, *others.tolist()}))

    samples = [
        replace(sample, prompt_token_ids=(9, 8, *sample.prompt_token_ids))
        for sample in parts.random_steps(6)
    ]
    for n in (0, 2, 5):
        sets = tuple(beside(token, n + 1) for token in samples[n].token_ids)
        samples[n] = replace(samples[n], legal_tokens=sets)
    twin = replace(samples[5], legal_tokens=tuple((token,) for token in samples[5].token_ids))
    bare = replace(samples[5], legal_tokens=())
    return [*samples, twin, bare, samples[5]]


def collated(rows, layout: str) -> MicroBatch:
    made = {"packed": whole(rows), "shared": segments(rows)}.get(layout)
    return collate(rows, 0, torch.device("cpu"), made, distinct=layout == "distinct")


def expected_legal(model, samples, temperature: float, width: int) -> torch.Tensor:
    """[N, width]: log-softmax of the model's logits at each legal token, with gradient."""
    rows = []
    for sample in samples:
        ids = torch.tensor([sample.prompt_token_ids + sample.token_ids])
        table = torch.log_softmax(model(input_ids=ids).logits[0].float() / temperature, -1)
        first = len(sample.prompt_token_ids) - 1
        for at in range(len(sample.token_ids)):
            row = torch.full((width,), -math.inf)
            if sample.legal_tokens:
                tokens = list(sample.legal_tokens[at])
                chosen = table[first + at, tokens]
                row = torch.cat([chosen, row[len(tokens) :]])
            rows.append(row)
    return torch.stack(rows)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("make", "layout"),
    [
        *((parts.model, layout) for layout in ("padded", "distinct", "packed", "shared")),
        *((adapted_llama, layout) for layout in ("padded", "shared")),
        (granite, "padded"),
        *((minicpm, layout) for layout in ("padded", "distinct")),  # all logits of a pass at once
    ],
)
def test_legal_tokens_score_like_the_plain_model_and_so_do_their_gradients(make, layout):
    torch.manual_seed(0)
    model = make().eval()
    rows = in_order(select_rows(some_legal(), None).rows)
    samples = [some_legal()[row.sample] for row in rows]
    weights = {n: p for n, p in model.named_parameters() if p.requires_grad}
    expected = expected_legal(model, samples, 0.8, most_legal(rows))
    known = expected.isfinite()
    factors = torch.linspace(-1, 2, int(known.sum()))
    gradients = torch.autograd.grad(
        expected[known] @ factors, list(weights.values()), allow_unused=True
    )
    sampled = parts.answer_logprobs(model, samples, 0.8)

    scorer = Scorer(model, ScorerOptions(temperature=0.8, max_logits=3 * 40))
    assert scorer.can_pack() is scorer.decoder_and_head is (make is not minicpm)
    micro = collated(rows, layout)
    scores = scorer.score(micro, entropy=True)

    assert (micro.copies is not None) == (layout in ("distinct", "shared"))
    assert scores.legal_logprobs.shape == expected.shape
    assert torch.equal(scores.legal_logprobs.isfinite(), known)
    torch.testing.assert_close(scores.legal_logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores.logprobs, sampled, atol=1e-5, rtol=1e-5)
    own = torch.autograd.grad(
        scores.legal_logprobs[known] @ factors, list(weights.values()), allow_unused=True
    )
    assert any(gradient is not None for gradient in gradients)
    for ours, plain in zip(own, gradients, strict=True):
        if plain is None:
            assert ours is None or not ours.any()
        else:
            assert (ours - plain).norm() <= 1e-4 * plain.norm()


def test_legal_tokens_change_neither_logprobs_nor_entropies():
    model = parts.model().eval()
    samples = some_legal()
    bare = [replace(sample, legal_tokens=()) for sample in samples]
    scorer = Scorer(model, ScorerOptions(temperature=0.9))
    found, plain = (scorer.score(micro_of(of), entropy=True) for of in (samples, bare))
    assert plain.legal_logprobs is None
    torch.testing.assert_close(found.logprobs, plain.logprobs)
    torch.testing.assert_close(found.entropy, plain.entropy)


def test_logprobs_of_a_batch_are_filled_in_pass_by_pass():
    """Passes with fewer legal tokens, and with none, keep their places."""
    model = parts.model().eval()
    samples = some_legal()
    selection = select_rows(samples, None)
    scorer = Scorer(model, ScorerOptions(temperature=1.0))
    width = most_legal(selection.rows)
    logprobs = TokenLogprobs.zeros(selection.tokens, width, torch.device("cpu"))

    for part in (selection.rows[4:], selection.rows[1:2], selection.rows[2:4], selection.rows[:1]):
        micro = collate(part, 0, torch.device("cpu"))
        logprobs.fill(micro, scorer.score(micro))

    with torch.no_grad():
        expected = expected_legal(model, samples, 1.0, width)
    assert not logprobs.legal.requires_grad
    torch.testing.assert_close(logprobs.legal, expected, atol=1e-5, rtol=1e-5)
    sampled = parts.answer_logprobs(model, samples)
    torch.testing.assert_close(logprobs.sampled, sampled, atol=1e-5, rtol=1e-5)
    assert TokenLogprobs.zeros(3, 0, torch.device("cpu")).legal is None


@pytest.mark.parametrize("most_tokens", [4096, 20])
def test_answers_score_like_the_sum_over_their_tokens(most_tokens):
    model = parts.model().eval()
    samples = parts.random_steps(8)
    pairs = [(sample.prompt_token_ids, sample.token_ids) for sample in [*samples, samples[0]]]
    found = answer_logprobs(model, ScorerOptions(temperature=0.7), pairs, 0, most_tokens)
    expected = [float(parts.answer_logprobs(model, [s], 0.7).sum()) for s in [*samples, samples[0]]]
    assert found == pytest.approx(expected, abs=1e-4)
