"""What can be known to be wrong about model, engine, learner and sizes before anything exists."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlforge.config.compose import Composed
from rlforge.config.rules import no_such_choice
from rlforge.config.schema import GrpoConfig, PolicyConfig, PpoConfig, WindowGrpoConfig
from rlforge.engines.vllm_settings import check_installed, lora_rank
from rlforge.errors import ConfigError
from rlforge.league.modes import mode_names
from rlforge.system.hardware import detect


def check_policy(composed: Composed[PolicyConfig], *, keys: bool = True) -> None:
    """The part of ``validate`` about the policy: model, engine, algorithm and learner."""
    for check in (_check_choices, _check_numbers, _check_model, _check_update, _check_vllm):
        check(composed)
    if keys and composed.config.engine.name == "vllm":
        check_installed()
    if keys:
        _check_compiling(composed)


def _check_choices(composed: Composed[PolicyConfig]) -> None:
    for key, choices in (
        ("model.kind", ("tiny", "tiny_market", "smollm2_135m", "hf")),
        ("model.dtype", ("auto", "float32", "bfloat16")),
        ("engine.name", ("transformers", "vllm")),
        ("pool.mode", tuple(mode_names())),
        ("algorithm.loss_aggregation", ("token_mean", "sequence_mean", "constant")),
        ("algorithm.kl.estimator", ("k1", "k2", "k3")),
        ("algorithm.kl.to", ("base", "previous")),
        ("hardware.device", ("auto", "cpu", "cuda")),
        ("buffer.kind", ("step", "episode")),
        ("buffer.strategy", ("random",)),
        ("learner.train", ("lora", "full")),
        ("learner.packing", ("auto", "on", "off")),
        ("learner.schedule", ("constant", "linear", "cosine")),
        ("tracker.wandb_mode", ("online", "offline")),
        ("tracker.progress", ("auto", "rich", "plain", "off")),
    ):
        value = _value(composed, key)
        if value is not None and value not in choices:
            raise composed.error(key, no_such_choice(str(value), choices))


def _value(composed: Composed[PolicyConfig], key: str) -> object:
    """The value of ``key``; None where the configuration has no such key."""
    value: object = composed.config
    for part in key.split("."):
        value = getattr(value, part, None)
    return value


def _check_numbers(composed: Composed[PolicyConfig]) -> None:
    positive: Sequence[str] = (
        "learner.total_updates",
        "learner.batch_size",
        "learner.mini_batch_size",
        "learner.micro_batch_tokens",
        "learner.optimizer_steps",
        "learner.gradient_accumulation_steps",
        "learner.epochs",
        "learner.learning_rate",
        "learner.grad_clip",
        "learner.save_every",
        "learner.state_every",
        "learner.num_learners",
        "collector.num_train_workers",
        "collector.num_eval_workers",
        "collector.num_collectors",
        "collector.max_failures",
        "engine.num_engines",
        "engine.max_parallel_seq",
        "engine.max_tokens",
        "engine.max_model_len",
        "engine.max_loras",
        "engine.request_timeout_s",
        "engine.stuck_after_s",
        "engine.vllm.kv_cache_gb",
        "engine.vllm.max_num_batched_tokens",
        "buffer.max_size",
        "pool.max_active_lora",
        "pool.temperature",
        "pool.exploration.ngram",
        "pool.exploration.window",
        "model.lora.rank",
        "model.lora.alpha",
        "eval.games",
        "hardware.memory_gb",
        "hardware.num_cpus",
        "hardware.threads",
        "tracker.flush_every_s",
        "tracker.window",
    )
    not_negative: Sequence[str] = (
        "buffer.max_staleness",
        "eval.every",
        "engine.temperature",
        "engine.max_restarts",
        "collector.max_restarts",
        "learner.warmup_updates",
        "learner.weight_decay",
        "learner.keep_checkpoints",
        "algorithm.kl.coef",
        "algorithm.entropy_coef",
        "model.lora.dropout",
        "hardware.num_gpus",
        "hardware.learner_gpus",
        "hardware.engine_gpus",
    )
    _check_each(composed, positive, lambda number: number > 0, "must be above 0")
    _check_each(composed, not_negative, lambda number: number >= 0, "must not be negative")
    for key in ("engine.top_p", "engine.vllm.gpu_memory_utilization"):
        _check_each(composed, (key,), lambda number: 0 < number <= 1, "must lie in (0, 1]")
    if composed.config.engine.temperature == 0:
        raise composed.error(
            "engine.temperature", "training samples; 0 is greedy and leaves nothing to learn from"
        )


def _check_each(
    composed: Composed[PolicyConfig],
    keys: Sequence[str],
    holds: Callable[[float], bool],
    problem: str,
) -> None:
    for key in keys:
        number = _value(composed, key)
        if isinstance(number, int | float) and not holds(number):
            raise composed.error(key, problem)


def _check_model(composed: Composed[PolicyConfig]) -> None:
    model = composed.config.model
    if model.kind == "hf" and not model.name:
        raise composed.error("model.name", "model.kind=hf needs a name; add model.name=ORG/MODEL")
    if model.kind != "hf" and model.name:
        raise composed.error("model.name", f"only for model.kind=hf, not {model.kind}")
    if not model.lora.target_modules and composed.config.learner.train == "lora":
        raise composed.error("model.lora.target_modules", "names no layer to adapt")


def _check_vllm(composed: Composed[PolicyConfig]) -> None:
    config, engine = composed.config, composed.config.engine
    if engine.name != "vllm":
        if config.hardware.engine_gpus > 1:
            raise composed.error(
                "hardware.engine_gpus", "only engine=vllm divides a model among several GPUs"
            )
        return
    if config.learner.train == "full":
        raise composed.error(
            "learner.train",
            "vLLM swaps adapters, not whole models; use learner.train=lora or engine=transformers",
        )
    try:
        lora_rank(config.model.lora.rank)
    except ConfigError as error:
        raise composed.error("model.lora.rank", str(error)) from None
    for key in ("engine.temperature", "eval.temperature"):
        temperature = _value(composed, key)
        if isinstance(temperature, float) and temperature and not 0.01 <= temperature <= 2:
            raise composed.error(key, "vLLM samples at temperatures from 0.01 to 2")
    tokens = engine.vllm.max_num_batched_tokens
    if tokens is not None and tokens < engine.max_parallel_seq:
        raise composed.error(
            "engine.vllm.max_num_batched_tokens",
            f"a step holds one token of each of engine.max_parallel_seq={engine.max_parallel_seq} "
            "sequences at least; raise the one or lower the other",
        )


def _check_update(composed: Composed[PolicyConfig]) -> None:
    learner, algorithm = composed.config.learner, composed.config.algorithm
    if learner.packing == "on" and learner.use_trainer_cache:
        raise composed.error(
            "learner.packing", "keeps no cache; set learner.use_trainer_cache=false"
        )
    passes = learner.gradient_accumulation_steps
    if passes is not None and learner.mini_batch_size is None:
        raise composed.error(
            "learner.gradient_accumulation_steps",
            "counts forward passes of learner.mini_batch_size steps; set that, too",
        )
    if passes is not None and learner.optimizer_steps != 1:
        raise composed.error(
            "learner.optimizer_steps", "follows from learner.gradient_accumulation_steps; drop one"
        )
    several = passes is not None or learner.epochs * learner.optimizer_steps > 1
    if algorithm.kl.coef > 0 and algorithm.kl.to == "previous" and not several:
        raise composed.error(
            "algorithm.kl.to",
            "an update of a single optimizer step has not moved from the previous policy when "
            "its penalty is taken; raise learner.epochs, or use algorithm.kl.to=base",
        )
    for key in ("clip_low", "clip_high"):
        clipped = isinstance(algorithm, GrpoConfig | WindowGrpoConfig | PpoConfig)
        if clipped and getattr(algorithm, key) <= 0:
            raise composed.error(f"algorithm.{key}", "must be above 0")
    if algorithm.importance_cap is not None and algorithm.importance_cap <= 0:
        raise composed.error(
            "algorithm.importance_cap", "must be above 0, or null to switch it off"
        )


def _check_compiling(composed: Composed[PolicyConfig]) -> None:
    """Also what must be installed for it, where the learner runs on this machine."""
    config = composed.config
    if not config.learner.compile:
        return
    from rlforge.learner.layers import check_compiling  # torch: seconds

    device: str | None = config.hardware.device
    if device == "auto":
        device = "cuda" if detect().gpus else "cpu"
    check_compiling(config.learner, None if config.hardware.ray_address else device)
