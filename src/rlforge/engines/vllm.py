"""The vLLM engine: vLLM's own scheduler and kernels, stepped by the worker thread.

Which adapter versions are resident, and which requests wait for one, is decided by ``AdapterTable``
and ``WaitingRoom``, not by vLLM.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlforge.config.schema import PolicyConfig
from rlforge.engines.base import Answer, decoder
from rlforge.engines.core import EngineRequest, StepGenerator
from rlforge.engines.threaded import STUCK_AFTER_S, ThreadedEngine
from rlforge.engines.versions import Adapter, AdapterTable, PolicyKey
from rlforge.engines.vllm_settings import (
    check_heads,
    check_installed,
    vllm_arguments,
    vllm_environment,
)
from rlforge.errors import ConfigError, EngineError, PolicyLoadError, first_line
from rlforge.models.files import VALUE_HEAD
from rlforge.types import FinishReason

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.v1.engine.llm_engine import LLMEngine

    from vllm import RequestOutput

#: vLLM's finish reasons in our words; all others are failures of the request.
_FINISHED: dict[str | None, FinishReason] = {"stop": "stop", "length": "length"}


class ModelLogprobs:
    """Log-probs of drawn tokens before temperature and filters, for the requests that want them."""

    # vLLM gives those after them, or before them, to all requests. So the logits are read where it
    # samples, which is in this process unless several GPUs compute in processes of their own.
    def __init__(self, llm: LLMEngine) -> None:
        self.possible = llm.vllm_config.parallel_config.world_size == 1
        #: By the number of a request, by the place of a token in its answer.
        self._found: dict[int, dict[int, float]] = {}
        if self.possible:
            self._runner: Any = llm.model_executor.driver_worker.worker.model_runner
            self._sample = self._runner.sampler.forward
            self._runner.sampler.forward = self._forward

    def begin(self, number: int) -> None:
        """Read the log-probs of a request from now on."""
        self._found[number] = {}

    def end(self, number: int) -> tuple[float, ...]:
        """The log-probs that were read, in the order of the tokens; none for other requests."""
        found = self._found.pop(number, {})
        return tuple(found[place] for place in sorted(found))

    def _forward(self, logits: Tensor, *args: Any, **kwargs: Any) -> Any:
        # Row of the batch, number of the request, and place of the token that is drawn.
        asked: list[tuple[int, int, int]] = []
        for row, name in enumerate(self._runner.input_batch.req_ids if self._found else ()):
            state = self._runner.requests[name]
            number = (state.sampling_params.extra_args or {}).get("number")
            if number in self._found:
                asked.append((row, number, len(state.output_token_ids)))
        own = [logits[row].float().log_softmax(dim=-1) for row, _, _ in asked]
        output = self._sample(logits, *args, **kwargs)  # changes the logits
        for logprobs, (row, number, place) in zip(own, asked, strict=True):
            token = output.sampled_token_ids[row, 0]
            self._found[number][place] = float(logprobs[token])
        return output


class VllmGenerator(StepGenerator[EngineRequest]):
    """A ``StepGenerator`` over a vLLM engine that computes in this process."""

    seed_range = 2**63

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
        self._adapters = AdapterTable(
            max_loras, add=self._add_adapter, remove=lambda adapter: llm.remove_lora(adapter.number)
        )
        super().__init__(
            self._adapters,
            decode=decode,
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            seed=seed,
        )
        self._max_sequences, self._own = max_sequences, ModelLogprobs(llm)
        self._under_way: dict[str, tuple[PolicyKey, EngineRequest]] = {}
        self._tokens_of_ended = 0

    def _new_request(self, **fields: Any) -> EngineRequest:
        return EngineRequest(**fields)

    def _drop(self, gone: set[int]) -> None:
        names = [name for name, (_, request) in self._under_way.items() if request.id in gone]
        for name in names:
            del self._under_way[name]
            self._own.end(int(name))
        self._llm.abort_request(names)
        self._tokens_of_ended = self._generated_tokens - self._count_tokens()

    def drawn(self, ids: Collection[int]) -> Mapping[int, Sequence[int]]:
        # vLLM keeps states under ids of its own; ``external_req_id`` is ours.
        return {
            number: state.detokenizer.output_token_ids
            for state in self._llm.output_processor.request_states.values()
            if (number := int(state.external_req_id)) in ids
        }

    def _generates(self) -> bool:
        return bool(self._under_way)

    def _running(self) -> int:
        return len(self._under_way)

    def _compute(self) -> list[Answer]:
        """Load policies, hand requests to vLLM, draw a token for all that run."""
        answers = self._waiting.place_policies([key for key, _ in self._under_way.values()])
        room = self._max_sequences - len(self._under_way)
        for key, request in self._waiting.admit(room, sys.maxsize):  # vLLM reads prompts in chunks
            answers += self._hand_over(key, request)
        if self._under_way:
            # Its errors are raised: vLLM's state cannot be trusted afterwards.
            finished = [output for output in self._llm.step() if output.finished]
            answers += [self._answer(output) for output in finished]
            self._tokens_of_ended += sum(len(each.outputs[0].token_ids) for each in finished)
            self._generated_tokens = self._tokens_of_ended + self._count_tokens()
        return answers

    def sleep(self) -> None:
        # Level 1 keeps weights and adapters on the host (not on a CPU), and drops cached prompts.
        self._llm.sleep(level=1)

    def wake(self) -> None:
        if self._llm.is_sleeping():
            self._llm.wake_up()
        self._waiting.closed = False

    def close(self) -> None:
        self._llm.abort_request(list(self._under_way))
        self._under_way = {}
        self._llm.engine_core.shutdown()

    def _hand_over(self, key: PolicyKey, request: EngineRequest) -> list[Answer]:
        """Put a request into vLLM's batch; returns its error if vLLM refuses it."""
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.lora.request import LoRARequest

        wanted = request.params.model_logprobs
        if wanted and not self._own.possible:
            reason = "vLLM over several GPUs gives no log-probs of the model; leave logprobs out"
            return [Answer(id=request.id, error=EngineError(reason))]
        adapter = self._adapters.use(key)
        name = str(request.id)
        try:
            self._llm.add_request(
                name,
                tokens_input(list(request.prompt)),
                _vllm_params(request),
                lora_request=None
                if adapter is None
                else LoRARequest(adapter.name, adapter.number, adapter.path),
            )
        except (VLLMClientError, ValueError) as error:  # such as a temperature above 2
            return [Answer(id=request.id, error=EngineError(f"vLLM refuses the request: {error}"))]
        self._under_way[name] = (key, request)
        if wanted:
            self._own.begin(request.id)
        self._prompt_tokens += len(request.prompt)
        return []

    def _answer(self, output: RequestOutput) -> Answer:
        _, request = self._under_way.pop(output.request_id)
        self._cached_tokens += output.num_cached_tokens or 0
        result, own = output.outputs[0], self._own.end(request.id)
        reason = _FINISHED.get(result.finish_reason)
        if reason is None:
            error = EngineError(f"vLLM ended the request: {result.finish_reason}")
            return Answer(id=request.id, error=error)
        flat: Any = result.logprobs  # several per token, in one list
        drawn = [flat.logprobs[start] for start in flat.start_indices]
        if request.params.temperature == 0:
            # The distribution of a greedy draw has all its mass on one token.
            drawn = [0.0] * len(flat)
        return self._completed(request, result.token_ids, drawn, reason, own)

    def _count_tokens(self) -> int:
        states = self._llm.output_processor.request_states.values()
        return sum(state.detokenizer.num_output_tokens() for state in states)

    def _add_adapter(self, adapter: Adapter) -> None:
        from vllm.lora.request import LoRARequest

        try:
            self._llm.add_lora(LoRARequest(adapter.name, adapter.number, adapter.path))
        except Exception as error:  # vLLM, safetensors and torch each raise their own
            uid = adapter.name.rpartition("#")[0]
            raise PolicyLoadError(
                f"policy {uid!r} cannot be loaded from {adapter.path}: {first_line(error)}; is it "
                "complete, and an adapter of this base model within model.lora.rank?"
            ) from error


def _vllm_params(request: EngineRequest) -> Any:
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    from vllm import SamplingParams as VllmParams

    grammar = request.params.grammar
    return VllmParams(
        temperature=request.params.temperature,
        top_p=request.params.top_p,
        top_k=request.params.top_k,
        min_p=request.params.min_p,
        max_tokens=request.limit,
        stop_token_ids=list(request.params.stop_token_ids),
        # Only the stop tokens of the request end it; the model's end of text is one of those. Where
        # there are none, the end of a grammar does, for which vLLM draws the end of text.
        ignore_eos=grammar is None or bool(request.params.stop_token_ids),
        structured_outputs=None if grammar is None else StructuredOutputsParams(grammar=grammar),
        seed=request.seed,
        extra_args={"number": request.id} if request.params.model_logprobs else None,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


class VllmEngine(ThreadedEngine):
    """vLLM with adapters swapped while it runs (see ``rlforge.engines.base``).

    Raises ConfigError when vLLM is not installed, or does not start with the model and these
    settings.

    Args:
        config: The policy's.
        device: ``cpu`` or ``cuda``.
        threads: OpenMP threads on a CPU.
        gpus: Share of a GPU that it reserves, or number of GPUs.

    Attributes:
        llm: vLLM's own engine, which only the worker thread may step.

    Example: see ``rlforge.engines.transformers.TransformersEngine``, which has the same methods.
    """

    def __init__(
        self, config: PolicyConfig, *, device: str, threads: int | None, gpus: float
    ) -> None:
        check_installed(device)
        os.environ.update(vllm_environment(device, threads))
        import torch

        from rlforge.models.devices import named_device, resolve_dtype
        from rlforge.models.load import load_model_config, load_tokenizer, model_source, positions

        if threads is not None:
            torch.set_num_threads(threads)
        described = load_model_config(config.model).get_text_config()
        dtype = resolve_dtype(config.model.dtype, named_device(device))
        arguments = vllm_arguments(
            config,
            model=model_source(config.model),
            device=device,
            dtype=str(dtype).removeprefix("torch."),
            positions=positions(described),
            gpus=gpus,
        )
        if device == "cpu":  # other sizes would crash vLLM's kernels
            size = described.hidden_size // described.num_attention_heads
            check_heads(config.model.label, [getattr(described, "head_dim", None) or size])
        self.llm = _start(arguments)
        core = VllmGenerator(
            self.llm,
            max_loras=config.engine.max_loras,
            max_sequences=config.engine.max_parallel_seq,
            max_model_len=arguments["max_model_len"],
            vocab_size=described.vocab_size,
            decode=decoder(load_tokenizer(config.model)),
            seed=config.seed,
        )
        super().__init__(core, stuck_after_s=STUCK_AFTER_S)


def _start(arguments: dict[str, Any]) -> LLMEngine:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    source = arguments["model"]
    try:
        with _without_value_head(source) as model:
            return LLMEngine.from_engine_args(EngineArgs(**arguments | {"model": model}))
    except Exception as error:  # configuration, model, memory and driver each raise their own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"vLLM does not start with model {source!r}: {reason[:500]}; check "
            "engine.max_model_len, engine.max_parallel_seq and engine.vllm, or use "
            "engine=transformers"
        ) from error


@contextmanager
def _without_value_head(source: str) -> Iterator[str]:
    """A view of a model directory without the critic's weights; other models as they are."""
    # vLLM loads every file it finds.
    folder = Path(source)
    if not (folder / VALUE_HEAD).is_file():
        yield source
        return
    with tempfile.TemporaryDirectory() as view:
        for file in folder.iterdir():
            if file.name != VALUE_HEAD:
                (Path(view) / file.name).symlink_to(file.absolute())
        yield view
