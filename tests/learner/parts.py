"""Real parts for the learner's tests: tiny random Llamas and an algorithm of a few lines."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tests import factories
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlforge.algorithms.base import LossInputs, LossOutput, Reference, Targets
from rlforge.config.model import LoraConfig
from rlforge.config.training import LearnerConfig
from rlforge.learner import Learner, PolicySpec
from rlforge.samples import Sample

VOCABULARY = 40
PAD = 0


model, sample, batch = factories.llama, factories.sample, factories.batch


class PolicyGradient:
    """REINFORCE with a token mean, and the optional inputs that a test switches on.

    Keeps every ``LossInputs`` it was given in ``seen``.
    """

    def __init__(
        self, *, reference: bool = False, values: bool = False, entropy: bool = False
    ) -> None:
        self.reference = Reference(to="base") if reference else None
        self.needs_values = values
        self.needs_entropy = entropy
        self.seen: list[LossInputs] = []
        self.critic: list[Sequence[float] | None] = []

    def targets(self, samples: Sequence[Sample], values: Sequence[float] | None) -> Targets:
        self.critic.append(values)
        rewards = tuple(sample.reward for sample in samples)
        return Targets(
            advantages=rewards,
            returns=rewards if values is not None else None,
            metrics={"targets_seen": float(len(samples))},
        )

    def loss(self, inputs: LossInputs) -> LossOutput:
        self.seen.append(inputs)
        weight = inputs.mask / inputs.total_tokens
        loss = -(inputs.logprobs * inputs.advantages[:, None] * weight).sum()
        if inputs.reference_logprobs is not None:
            loss = loss + ((inputs.logprobs - inputs.reference_logprobs) ** 2 * weight).sum()
        if inputs.entropy is not None:
            loss = loss - 0.1 * (inputs.entropy * weight).sum()
        if inputs.values is not None:
            assert inputs.returns is not None
            loss = loss + ((inputs.values - inputs.returns) ** 2).sum() / inputs.total_sequences
        return LossOutput(loss=loss, metrics={"share": weight.sum()})


def random_steps(count: int, seed: int = 0, **changes: Any) -> list[Sample]:
    """Samples of different lengths with random tokens, log-probs and rewards."""
    draw = random.Random(seed)

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(draw.randrange(1, VOCABULARY) for _ in range(number))

    samples = []
    for _ in range(count):
        answer = draw.randint(1, 5)
        fields = {
            "prompt_token_ids": tokens(draw.randint(1, 9)),
            "token_ids": tokens(answer),
            "logprobs": tuple(-draw.random() for _ in range(answer)),
            "reward": draw.uniform(-1, 1),
        }
        samples.append(sample(**fields, **changes))
    return samples


def conversation(turns: int, game: str = "g", player: int = 0, seed: int = 0) -> list[Sample]:
    """Samples of one seat whose prompts continue all earlier prompts and answers."""
    draw = random.Random(seed)

    def drawn(most: int) -> tuple[int, ...]:
        return tuple(draw.randrange(1, VOCABULARY) for _ in range(draw.randint(1, most)))

    samples, prompt = [], drawn(6)
    for turn in range(turns):
        answer = drawn(4)
        fields = {"origin": game, "player_id": player, "turn_index": turn, "token_ids": answer}
        fields |= {"logprobs": tuple(-draw.random() for _ in answer), "reward": draw.gauss()}
        samples.append(sample(prompt_token_ids=prompt, **fields))
        prompt = prompt + answer + drawn(5)
    return samples


def randomise_adapter(model: torch.nn.Module, seed: int = 1) -> None:
    """B is zero in a fresh adapter, which would hide half of the gradient."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)


def learner(
    model: torch.nn.Module | None = None,
    algorithm: Any = None,
    *,
    lora: LoraConfig | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    initial_value_head: dict[str, torch.Tensor] | None = None,
    initial_adapter: str | None = None,
    device: str = "cpu",
    **given: Any,
) -> Learner:
    """A learner of ``model`` with large steps; ``given``: its arguments and configuration."""
    names = ("total_updates", "ranks", "value_learning_rate", "max_nonfinite", "kept_versions")
    arguments = {name: given.pop(name) for name in (*names, "name", "beside") if name in given}
    spec = PolicySpec(
        model=factories.llama() if model is None else model,
        lora=lora or LoraConfig(rank=4, alpha=8),
        temperature=temperature,
        pad_token_id=PAD,
        seed=seed,
        initial_value_head=initial_value_head,
        start=None if initial_adapter is None else Path(initial_adapter),
    )
    settings = {"mini_batch_size": 4, "learning_rate": 1e-2, "grad_clip": 1e9, **given}
    config = LearnerConfig(**settings)
    return Learner(spec, config, algorithm or PolicyGradient(), device=device, **arguments)


def adapted(
    algorithm: Any = None, model: Any = None, **given: Any
) -> tuple[Learner, torch.nn.Module]:
    """A learner with an adapter that is not zero, and its model."""
    model = factories.llama() if model is None else model
    made = learner(model, algorithm, **given)
    randomise_adapter(model)
    return made, model


def of_speed(name: str) -> bool:
    """Whether a metric describes the computation of an update, not its result."""
    speed = ("tokens_per_s", "padding_share", "reused_share", "tflops", "memory_peak_gb")
    return name in speed or name.startswith("seconds")


def outcome(metrics: Any) -> dict[str, float]:
    """The metrics of an update that describe its result."""
    return {name: number for name, number in metrics.items() if not of_speed(name)}


@torch.no_grad()
def plain_logprobs(model: Any, sample: Sample, temperature: float = 1.0) -> torch.Tensor:
    """[answer, vocabulary] by the model's own pass over this sample alone, without dropout."""
    training = model.training
    tokens = torch.tensor([sample.prompt_token_ids + sample.token_ids])
    logits = model.eval()(tokens).logits[0].float()
    model.train(training)
    return (logits / temperature).log_softmax(-1)[len(sample.prompt_token_ids) - 1 : -1]


def answer_logprobs(model: Any, of: Sequence[Sample], temperature: float = 1.0) -> torch.Tensor:
    """Those of all answer tokens, one after the other."""
    tables = [plain_logprobs(model, sample, temperature) for sample in of]
    chosen = [torch.tensor(sample.token_ids)[:, None] for sample in of]
    return torch.cat([t.gather(1, c)[:, 0] for t, c in zip(tables, chosen, strict=True)])


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of all parameters."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def record_gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Filled by each backward pass with the gradient accumulated so far."""
    gradients: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            gradients[name] = parameter.grad.clone()

        return hook

    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(keep(name))
    return gradients


class Made(TorchDispatchMode):
    """Storages of the tensors that are made inside the block, with the numbers that they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[tuple[int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.tensors.append((leaf.untyped_storage().data_ptr(), leaf.numel()))
        return out

    def sizes(self, without: torch.Tensor | None = None) -> set[int]:
        """Numbers in those tensors; ``without`` views of this one."""
        ignored = 0 if without is None else without.untyped_storage().data_ptr()
        return {count for place, count in self.tensors if place != ignored}


def gpt2() -> torch.nn.Module:
    return factories.causal_lm("gpt2", n_embd=32, n_layer=2, n_head=2, n_positions=64)


def minicpm() -> torch.nn.Module:
    """The head reads scaled hidden states: only the model's own forward pass knows."""
    ranks = {"dim_model_base": 16, "q_lora_rank": 8, "kv_lora_rank": 8, "head_dim": None}
    heads = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
    return factories.causal_lm("minicpm3", **ranks, **heads, num_key_value_heads=4)


def first_update(
    samples: Sequence[Sample], algorithm: Any = None, model: Any = None, **given: Any
) -> tuple[dict[str, torch.Tensor], Any]:
    """Gradients and metrics of an update from an adapter that is not zero."""
    made, model = adapted(algorithm, model, **given)
    gradients = record_gradients(model)
    return gradients, made.update(batch(samples)).metrics


def same_gradients(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Fails unless they agree up to rounding."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
