"""``engine=auto``: vLLM where a trial shows that it computes the learner's log-probs.

    obstacle? ──▶ vLLM starts ──▶ trial ──▶ vLLM
        │              │            │
        └──────────────┴────────────┴─────▶ the embedded engine, and why

All of it happens in the engine's process before its first request, so each engine decides for its
own machine, also after a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rlforge.config.schema import PolicyConfig
from rlforge.engines import registry
from rlforge.engines.base import LocalEngine
from rlforge.engines.vllm_settings import VLLM_VERSION, obstacle
from rlforge.errors import EngineError, first_line
from rlforge.learner.trial import last_bits
from rlforge.learner.weights import attach_lora, save_adapter
from rlforge.models.devices import named_device, resolve_dtype
from rlforge.models.last_layer import trial_tokens
from rlforge.models.load import load_base_model
from rlforge.system.loops import in_thread
from rlforge.types import Completion, PolicyRef, SamplingParams

log = logging.getLogger(__name__)

#: Prompts, tokens of each and of its answers. Every policy answers every prompt.
PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS = 3, 6, 6
#: Seconds for the answers; the first ones compile vLLM's kernels.
PATIENCE_S = 300.0

#: Mean error of log-probs that harms no update, in nats.
HARMLESS = 1e-4
#: Errors that rounding explains, relative to those of other last bits of the embeddings. vLLM's are
#: 0.9 in bfloat16 (SmolLM2 135M, 30 layers).
ROUNDING = 4.0
#: Least distance of two policies' log-probs, relative to rounding.
TOLD_APART = 2.0

BASE = "base"


def auto(config: PolicyConfig, device: str, threads: int | None, gpus: float) -> LocalEngine:
    """Engine ``auto``: as ``tried``, unless vLLM cannot be used here in any case."""
    reason = obstacle(config, named_device(device).type)
    if reason is not None:
        return _embedded(config, device, threads, gpus, reason)
    return tried(config, device, threads, gpus)


def tried(config: PolicyConfig, device: str, threads: int | None, gpus: float) -> LocalEngine:
    """vLLM once it has passed ``try_out``, else the embedded engine; its ``about`` says why.

    Errors of vLLM, at its start or in the trial, are reasons and not raised.
    """
    try:
        engine = registry.vllm(config, device, threads, gpus)
        try:
            gap = in_thread(lambda: asyncio.run(try_out(engine, config, device)))
        except BaseException:
            with contextlib.suppress(Exception):
                in_thread(lambda: asyncio.run(engine.close()))
            # ``_free`` below cannot collect vLLM's memory while a name refers to the engine.
            del engine
            raise
    # vLLM, torch and the driver raise errors of many kinds; none may end the run.
    except Exception as error:
        log.warning("engine=auto does not take vLLM", exc_info=error)
        reason = first_line(error)[:300]
    else:
        engine.about = (
            f"vLLM {VLLM_VERSION}: in a trial its log-probs were the learner's within {gap:.1g}, "
            "for the model and for adapters swapped under their own ids"
        )
        return engine
    _free()
    return _embedded(config, device, threads, gpus, reason)


def _embedded(
    config: PolicyConfig, device: str, threads: int | None, gpus: float, reason: str
) -> LocalEngine:
    engine = registry.transformers(config, device, threads, gpus)
    engine.about = f"transformers, not vLLM: {reason}"
    return engine


def _free() -> None:
    """Release an ended vLLM's GPU memory and process groups."""
    gc.collect()
    if (state := sys.modules.get("vllm.distributed.parallel_state")) is not None:
        # The clean-up fails if vLLM's start had failed; the embedded engine must start even so.
        with contextlib.suppress(Exception):
            state.cleanup_dist_env_and_memory()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


async def try_out(engine: LocalEngine, config: PolicyConfig, device: str) -> float:
    """Largest mean difference of an engine's log-probs from the learner's, over three policies.

    The model and two adapters answer the same prompts together, then the first adapter once more.
    The plain model with the learner's adapter scores the answers. Raises EngineError where
    log-probs differ by more than rounding explains, and where adapters are too alike to tell apart.
    """
    temperature = config.engine.temperature
    dtype = resolve_dtype(config.model.dtype, named_device(device))
    with tempfile.TemporaryDirectory() as folder:
        reference = _Reference(config, dtype, Path(folder))
        async with asyncio.timeout(PATIENCE_S):
            answers = await _answers(engine, reference, temperature)
    drawn = [answer for own in answers.values() for answer in own]
    engines = torch.tensor([answer.logprobs for answer in drawn])
    scored = {uid: reference.logprobs(uid, drawn, temperature) for uid in reference.policies}
    end, largest = 0, 0.0
    for uid, answered in answers.items():
        own = slice(end, end := end + len(answered))
        gaps = {
            other: float((logprobs[own] - engines[own]).abs().mean())
            for other, logprobs in scored.items()
        }
        # Models magnify rounding differently: changed last bits show how much this one does.
        again = reference.logprobs(uid, answered, temperature, rounded=True)
        noise = float((again - scored[uid][own]).abs().mean())
        allowed = max(HARMLESS, ROUNDING * noise)
        told_by = min(gap for other, gap in gaps.items() if other != uid)
        log.info(
            "log-probs of %s are %.2g from the learner's, by rounding up to %.2g, and %.2g from "
            "the nearest other policy's",
            *(uid, gaps[uid], allowed, told_by),
        )
        # Not ``gap > allowed``, because a gap of nan must fail, too.
        if not gaps[uid] <= allowed:
            closest = min(gaps, key=lambda other: gaps[other])
            instead = f"; {closest} has answered instead" if gaps[closest] <= allowed else ""
            raise EngineError(
                f"in a trial its log-probs of {uid} were {gaps[uid]:.2g} from the learner's, and "
                f"rounding explains {allowed:.1g}{instead}"
            )
        if told_by < TOLD_APART * allowed:
            raise EngineError(f"the adapters of the trial are too much alike to tell {uid} by")
        largest = max(largest, gaps[uid])
    return largest


async def _answers(
    engine: LocalEngine, reference: _Reference, temperature: float
) -> Mapping[str, list[Completion]]:
    tokens = trial_tokens(reference.vocab_size, PROMPTS * PROMPT_TOKENS).tolist()
    prompts = [
        tokens[start : start + PROMPT_TOKENS] for start in range(0, len(tokens), PROMPT_TOKENS)
    ]
    answers: dict[str, list[Completion]] = {uid: [] for uid in reference.policies}
    # The first adapter answers again after the second: a faulty engine may go on with the second.
    again = list(reference.policies)[1]
    for round_of in (list(reference.policies), [again]):
        asked = [(uid, number) for number in range(PROMPTS) for uid in round_of]
        drawn = await asyncio.gather(
            *(
                engine.generate(
                    prompts[number],
                    SamplingParams(temperature=temperature, max_tokens=ANSWER_TOKENS, seed=number),
                    reference.policies[uid],
                )
                for uid, number in asked
            )
        )
        for (uid, _), answer in zip(asked, drawn, strict=True):
            if len(answer.logprobs) != ANSWER_TOKENS:
                raise EngineError(
                    f"in a trial it drew {len(answer.token_ids)} tokens with "
                    f"{len(answer.logprobs)} log-probs, and was to draw {ANSWER_TOKENS}"
                )
            answers[uid].append(answer)
    return answers


class _Reference:
    """Model on the CPU with two adapters, which are saved under ``folder``."""

    def __init__(self, config: PolicyConfig, dtype: torch.dtype, folder: Path) -> None:
        # On the CPU the model takes none of the GPU memory that vLLM and the learner have divided.
        model = load_base_model(config.model, torch.device("cpu"), dtype)
        self.vocab_size: int = model.config.get_text_config().vocab_size
        self._model = attach_lora(model, config.model.lora, seed=0).eval()
        lora = config.model.lora
        root = lora.rank**0.5
        self._scale = lora.alpha / (root if lora.use_rslora else lora.rank)
        self.policies = {BASE: PolicyRef(uid=BASE, kind="checkpoint")}
        self._adapters: dict[str, dict[str, Tensor]] = {}
        for version in (1, 2):
            uid = f"adapter {version}"
            self._adapters[uid] = self._drawn(version)
            self._use(uid)
            path = folder / f"adapter-{version}"
            path.mkdir()
            save_adapter(self._model, path)
            self.policies[uid] = PolicyRef(
                uid=uid, kind="checkpoint", path_or_name=str(path), version=version
            )

    def _weights(self) -> dict[str, Tensor]:
        return {name: p.data for name, p in self._model.named_parameters() if ".lora_" in name}

    def _drawn(self, seed: int) -> dict[str, Tensor]:
        """Adapter that changes a layer's outputs by about a third of their size."""
        generator = torch.Generator().manual_seed(seed)
        drawn = {}
        for name, weight in self._weights().items():
            size = 1 / (3 * self._scale) if ".lora_B." in name else 1.0
            normal = torch.randn(weight.shape, generator=generator)
            drawn[name] = (normal * size * weight.shape[-1] ** -0.5).to(weight)
        return drawn

    def _use(self, uid: str) -> None:
        for name, weight in self._weights().items():
            weight.copy_(self._adapters[uid][name])

    @torch.no_grad()
    def logprobs(
        self, uid: str, drawn: list[Completion], temperature: float, *, rounded: bool = False
    ) -> Tensor:
        """Log-probs [N, ANSWER_TOKENS] of N answers under a policy, in one pass.

        Prompts have one length, and so have answers. ``rounded``: with other last bits
        (``last_bits``).
        """
        tokens = torch.tensor([answer.token_ids for answer in drawn])
        prompts = torch.tensor([answer.prompt_token_ids for answer in drawn])
        with contextlib.ExitStack() as stack:
            if uid == BASE:
                stack.enter_context(self._model.disable_adapter())
            else:
                self._use(uid)
            if rounded:
                stack.enter_context(last_bits(self._model, self._model.dtype))
            ids = torch.cat([prompts, tokens], dim=1)
            logits: Tensor = self._model(input_ids=ids, use_cache=False).logits
        before = logits[:, PROMPT_TOKENS - 1 : -1].float() / temperature
        return before.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
