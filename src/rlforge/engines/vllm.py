"""The vLLM engine: vLLM's own scheduler and kernels, stepped by the worker thread.

vLLM computes in this process. Requests join and leave its running batch between steps; each
brings the adapter version that answers it. Which versions are resident, and which requests wait
for one, is decided here (``AdapterTable``, ``WaitingRoom``).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlforge.config.schema import PolicyConfig
from rlforge.engines.adapters import Adapter, AdapterTable
from rlforge.engines.base import EngineStats
from rlforge.engines.policies import PolicyKey
from rlforge.engines.requests import Answer, check_request, decoder
from rlforge.engines.threaded import ThreadedEngine
from rlforge.engines.vllm_settings import check_installed, vllm_arguments, vllm_environment
from rlforge.engines.waiting import WaitingRoom
from rlforge.errors import ConfigError, EngineError, PolicyLoadError
from rlforge.models.files import VALUE_HEAD
from rlforge.system.utilisation import Span, WorkLog
from rlforge.types import Completion, FinishReason, PolicyRef, SamplingParams, value

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

    from vllm import RequestOutput

#: What our completions call vLLM's reasons; all others are failures of the request.
_FINISHED: dict[str | None, FinishReason] = {"stop": "stop", "length": "length"}


@value
class Asked:
    """A request on its way through the engine. limit: most tokens of the answer."""

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    policy: PolicyRef
    seed: int
    limit: int


class VllmGenerator:
    """The engine's core: one thread calls it (see ``rlforge.engines.threaded.StepGenerator``).

    llm: a vLLM engine that computes in this process. decode: token ids to text. vocab_size: ids
    at or above it are refused. seed: of the draws of requests that bring none.
    """

    def __init__(
        self,
        llm: LLMEngine,
        *,
        max_loras: int,
        max_sequences: int,
        max_model_len: int,
        vocab_size: int,
        decode: Callable[[Sequence[int]], str],
        seed: int,
    ) -> None:
        self._llm = llm
        self._adapters = AdapterTable(max_loras, add=self._add_adapter, remove=self._remove_adapter)
        self._waiting: WaitingRoom[Asked] = WaitingRoom(self._adapters)
        self._under_way: dict[str, tuple[PolicyKey, Asked]] = {}
        self._max_sequences, self._max_model_len = max_sequences, max_model_len
        self._vocab_size, self._decode = vocab_size, decode
        self._seeds = np.random.default_rng(seed)
        self._next_id = 0
        self._requests = self._ended = self._prompt_tokens = 0
        self._tokens_of_ended = self._tokens_under_way = 0
        self._busy_s, self._work = 0.0, WorkLog()

    # ------------------------------------------------------------ requests

    def submit(self, prompt: Sequence[int], params: SamplingParams, policy: PolicyRef) -> int:
        """Queues a request and returns its id. Raises EngineError when it cannot be answered."""
        limit = check_request(
            prompt,
            params,
            policy,
            max_model_len=self._max_model_len,
            vocab_size=self._vocab_size,
        )
        seed = int(self._seeds.integers(2**63)) if params.seed is None else params.seed % 2**63
        asked = Asked(
            id=self._take_id(),
            prompt=tuple(prompt),
            params=params,
            policy=policy,
            seed=seed,
            limit=limit,
        )
        self._waiting.add(PolicyKey.of(policy), asked)
        return asked.id

    def load(self, policy: PolicyRef) -> int:
        """Queues the loading of ``policy`` and returns the id of its answer."""
        ticket = self._take_id()
        self._waiting.add_load(PolicyKey.of(policy), ticket)
        return ticket

    def cancel(self, ids: Iterable[int]) -> None:
        """Forgets requests: they get no answer and take no more room."""
        gone = set(ids)
        self._waiting.cancel(gone)
        names = [name for name, (_, asked) in self._under_way.items() if asked.id in gone]
        for name in names:
            del self._under_way[name]
        self._llm.abort_request(names)
        left = self._count_tokens()
        self._tokens_of_ended += self._tokens_under_way - left
        self._tokens_under_way = left

    def drawn(self, ids: Collection[int]) -> Mapping[int, Sequence[int]]:
        """Tokens so far of those of ``ids`` that are being generated."""
        # vLLM keeps states under ids of its own, which hold ours.
        return {
            number: state.detokenizer.output_token_ids
            for state in self._llm.output_processor.request_states.values()
            if (number := int(state.external_req_id)) in ids
        }

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # ------------------------------------------------------------ state

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to do."""
        return bool(self._under_way) or self._waiting.has_work

    @property
    def progress(self) -> int:
        """Grows with every token generated and with every request that ends."""
        return self._ended + self._tokens_of_ended + self._tokens_under_way

    def stats(self) -> EngineStats:
        """Counters since the start; may be called from another thread."""
        return EngineStats(
            queued=len(self._waiting),
            running=len(self._under_way),
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._tokens_of_ended + self._tokens_under_way,
            busy_s=self._busy_s,
            resident=tuple(key.uid for key in self._adapters.resident),
        )

    def take_busy_spans(self) -> list[Span]:
        """When it computed since the last call; may be called from another thread."""
        return self._work.take()

    # ------------------------------------------------------------ stepping

    def step(self) -> list[Answer]:
        """Load what is asked for, hand requests to vLLM, draw a token for all that run.

        A policy that does not load ends its requests with EngineError. What vLLM's own step
        raises is raised: its state is not to be trusted afterwards.
        """
        started = time.time()
        answers = self._waiting.place_policies([key for key, _ in self._under_way.values()])
        room = self._max_sequences - len(self._under_way)
        for key, asked in self._waiting.admit(room, sys.maxsize):  # vLLM reads prompts in chunks
            answers += self._hand_over(key, asked)
        if self._under_way:
            finished = [output for output in self._llm.step() if output.finished]
            answers += [self._answer(output) for output in finished]
            # Both at once, for whoever asks for stats meanwhile.
            self._tokens_of_ended, self._tokens_under_way = (
                self._tokens_of_ended + sum(len(each.outputs[0].token_ids) for each in finished),
                self._count_tokens(),
            )
        ended = time.time()
        self._ended += len(answers)
        self._busy_s += ended - started
        self._work.add((started, ended))
        return answers

    def drain(self) -> None:
        """Begins no request until ``wake``; what runs goes on."""
        self._waiting.close()

    def sleep(self) -> None:
        """Weights and adapters to the host, no cached prompts; on a CPU vLLM keeps its memory."""
        self._llm.sleep(level=1)

    def wake(self) -> None:
        """Brings weights and adapters back, and begins requests again."""
        if self._llm.is_sleeping():
            self._llm.wake_up()
        self._waiting.open()

    def close(self) -> None:
        """Gives the memory of weights, adapters and KV cache back."""
        self._llm.abort_request(list(self._under_way))
        self._under_way = {}
        self._llm.engine_core.shutdown()

    def _hand_over(self, key: PolicyKey, asked: Asked) -> list[Answer]:
        """Puts a request into vLLM's batch; its error where vLLM refuses it."""
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.lora.request import LoRARequest

        adapter = self._adapters.use(key)
        name = str(asked.id)
        try:
            self._llm.add_request(
                name,
                tokens_input(list(asked.prompt)),
                _vllm_params(asked),
                lora_request=None
                if adapter is None
                else LoRARequest(adapter.name, adapter.number, adapter.path),
            )
        except (VLLMClientError, ValueError) as error:  # such as a temperature above 2
            return [Answer(id=asked.id, error=EngineError(f"vLLM refuses the request: {error}"))]
        self._under_way[name] = (key, asked)
        self._prompt_tokens += len(asked.prompt)
        return []

    def _answer(self, output: RequestOutput) -> Answer:
        _, asked = self._under_way.pop(output.request_id)
        result = output.outputs[0]
        reason = _FINISHED.get(result.finish_reason)
        if reason is None:
            error = EngineError(f"vLLM ended the request: {result.finish_reason}")
            return Answer(id=asked.id, error=error)
        self._requests += 1
        tokens = tuple(result.token_ids)
        completion = Completion(
            text=self._decode(tokens),
            prompt_token_ids=asked.prompt,
            token_ids=tokens,
            logprobs=_logprobs(asked, result.logprobs),
            finish_reason=reason,
            policy_uid=asked.policy.uid,
            policy_version=asked.policy.version,
        )
        return Answer(id=asked.id, completion=completion)

    def _count_tokens(self) -> int:
        states = self._llm.output_processor.request_states.values()
        return sum(state.detokenizer.num_output_tokens() for state in states)

    # ------------------------------------------------------------ adapters

    def _add_adapter(self, adapter: Adapter) -> None:
        from vllm.lora.request import LoRARequest

        try:
            self._llm.add_lora(LoRARequest(adapter.name, adapter.number, adapter.path))
        except Exception as error:  # vLLM, safetensors and torch each have their own kinds
            reason = str(error).strip().splitlines() or [type(error).__name__]
            uid = adapter.name.rpartition("#")[0]
            raise PolicyLoadError(
                f"policy {uid!r} cannot be loaded from {adapter.path}: {reason[0]}; is it "
                "complete, and an adapter of this base model within model.lora.rank?"
            ) from error

    def _remove_adapter(self, adapter: Adapter) -> None:
        self._llm.remove_lora(adapter.number)


def _vllm_params(asked: Asked) -> Any:
    from vllm.sampling_params import RequestOutputKind

    from vllm import SamplingParams as VllmParams

    return VllmParams(
        temperature=asked.params.temperature,
        top_p=asked.params.top_p,
        max_tokens=asked.limit,
        stop_token_ids=list(asked.params.stop_token_ids),
        # Only what the request names ends it; a model's own idea of the end is among those.
        ignore_eos=True,
        seed=asked.seed,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _logprobs(asked: Asked, flat: Any) -> tuple[float, ...]:
    """One log-prob per token of the answer, from vLLM's flat lists of one or more per place."""
    if asked.params.temperature == 0:
        # The distribution of a greedy draw has all its mass on one token.
        return (0.0,) * len(flat)
    return tuple(flat.logprobs[start] for start in flat.start_indices)


class VllmEngine(ThreadedEngine):
    """vLLM with adapters swapped while it runs (see ``rlforge.engines.base``).

    device: ``cpu`` or ``cuda``. threads: OpenMP threads on a CPU. gpus: the engine's share of a
    GPU, of which memory is taken. Raises ConfigError when vLLM is not there, or does not start
    with the model and these settings.
    """

    def __init__(
        self, config: PolicyConfig, *, device: str, threads: int | None, gpus: float
    ) -> None:
        check_installed(device)
        os.environ.update(vllm_environment(device, threads))
        import torch

        from rlforge.models.devices import named_device, resolve_dtype
        from rlforge.models.load import load_model_config, load_tokenizer, model_source

        if threads is not None:
            torch.set_num_threads(threads)
        described = load_model_config(config.model).get_text_config()
        dtype = resolve_dtype(config.model.dtype, named_device(device))
        arguments = vllm_arguments(
            config,
            model=model_source(config.model),
            device=device,
            dtype=str(dtype).removeprefix("torch."),
            positions=getattr(described, "max_position_embeddings", None) or sys.maxsize,
            gpus=gpus,
        )
        if device == "cpu":
            _check_heads(described)
        core = VllmGenerator(
            _start(arguments),
            max_loras=config.engine.max_loras,
            max_sequences=config.engine.max_parallel_seq,
            max_model_len=arguments["max_model_len"],
            vocab_size=described.vocab_size,
            decode=decoder(load_tokenizer(config.model)),
            seed=config.seed,
        )
        super().__init__(core, stuck_after_s=config.engine.stuck_after_s)


def _check_heads(described: Any) -> None:
    """Raises ConfigError for attention heads whose size would crash vLLM's kernels for CPUs."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    heads = described.num_attention_heads
    size = getattr(described, "head_dim", None) or described.hidden_size // heads
    known = CPUAttentionBackend.get_supported_head_sizes()
    if size not in known:
        raise ConfigError(
            f"vLLM on a CPU has no attention for heads of {size} (it has "
            f"{', '.join(map(str, known))}); use engine=transformers or another model"
        )


def _start(arguments: dict[str, Any]) -> LLMEngine:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    source = arguments["model"]
    try:
        with _without_value_head(source) as model:
            return LLMEngine.from_engine_args(EngineArgs(**arguments | {"model": model}))
    except Exception as error:  # configuration, model, memory and driver each have their own kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"vLLM does not start with model {source!r}: {reason[:500]}; check "
            "engine.max_model_len, engine.max_parallel_seq and engine.vllm, or use "
            "engine=transformers"
        ) from error


@contextmanager
def _without_value_head(source: str) -> Iterator[str]:
    """A view of a model directory that lacks the critic's weights: vLLM loads every file it finds.

    Other models are given as they are.
    """
    folder = Path(source)
    if not (folder / VALUE_HEAD).is_file():
        yield source
        return
    with tempfile.TemporaryDirectory() as view:
        for file in folder.iterdir():
            if file.name != VALUE_HEAD:
                (Path(view) / file.name).symlink_to(file.absolute())
        yield view
