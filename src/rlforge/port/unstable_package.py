"""Interface of unstable-rl 0.1 and 0.2: arguments in order, and defaults by our keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlforge.config.unstable_names import COMPONENTS

_LEARNER = (
    *("model_name", "step_buffer", "model_pool", "algorithm", "batch_size", "mini_batch_size"),
    *("max_generation_len", "learning_rate", "grad_clip", "batch_delay_buffer", "lora_cfg"),
    *("initial_lora_path", "num_learners", "ckpt_root", "save_every", "tracker"),
    *("activation_checkpointing", "gradient_checkpointing", "use_trainer_cache", "max_train_len"),
)
_LEARNER_2 = (
    *("model_name", "lora_cfg", "batch_size", "mini_batch_size", "learning_rate", "grad_clip"),
    *("buffer", "tracker", "model_registry", "activation_checkpointing", "gradient_checkpointing"),
    *("use_trainer_cache", "initial_lora_path"),
)
TRANSFORMATIONS = (
    *("final_reward_transformation", "step_reward_transformation"),
    "sampling_reward_transformation",
)
_BUFFER = ("max_buffer_size", "tracker", *TRANSFORMATIONS, "buffer_strategy")
_COLLECTOR = (
    *("num_actors", "step_buffer", "model_pool", "tracker", "vllm_config", "training_envs"),
    *("evaluation_envs", "evaluation_opponent", "max_eval_games_per_ckpt"),
    *("filter_opponent_invalid", "action_extraction"),
)
POSITIONS: Mapping[str, Sequence[str]] = {
    "Tracker": ("run_name", "wandb_project"),
    "StepBuffer": _BUFFER,
    "EpisodeBuffer": _BUFFER,
    "ModelPool": ("sample_mode", "max_active_lora", "tracker", "lag_range"),
    "ModelRegistry": ("tracker", "beta"),
    "Collector": _COLLECTOR,
    "StandardLearner": _LEARNER,
    "REINFORCELearner": _LEARNER_2,
    "A2CLearner": _LEARNER_2,
    "UniformRandomEnvSampler": ("train_env_specs", "eval_env_specs", "rng_seed"),
    "initialize_algorithm": ("max_train_len", "max_generation_len"),
    "collect": ("num_workers", "num_eval_workers"),
    "train": ("iterations",),
    "start": ("learning_steps", "num_collection_workers", "num_eval_workers"),
    "build": (),
    "add_fixed": ("name", "prior_mu"),
    "add_checkpoint": ("path", "iteration"),
}
"""Calls that set something -> their arguments in order."""

POSITIONS_2: Mapping[str, Sequence[str]] = {
    "Collector": ("vllm_config", "tracker", "buffer", "game_scheduler"),
    "collect": ("num_train_workers", "num_eval_workers"),
    "add_checkpoint": ("uid", "path", "iteration", "inherit"),
}
"""Calls whose arguments differ in version 0.2 -> these in order."""

PARTS = {
    *("GameScheduler", "BaseModelSampler", "FixedOpponentModelSampler", "TerminalInterface"),
    *("TrainEnvSpec", "EvalEnvSpec", "Reinforce", "AdvantageActorCritic", *COMPONENTS),
    *("ComposeFinalRewardTransforms", "ComposeStepRewardTransforms"),
    "ComposeSamplingRewardTransforms",
}
"""Calls that are read where they are arguments, or that have nothing to set."""

WIRES = {
    *("step_buffer", "episode_buffer", "buffer", "model_pool", "tracker", "model_registry"),
    *("game_scheduler", "model_sampler", "env_sampler", "logging_dir"),
}
"""Arguments that connect the parts, which the run's graph does here."""

WITHOUT = {
    "ckpt_root": "versions are in checkpoints/ of the run directory, run_dir",
    "rng_seed": "seed is the seed of everything",
    "prior_mu": "ratings begin at 25",
    "infer_mini_batch_size": "the critic reads passes of learner.micro_batch_tokens",
    "env_sampling_strategy": "environments are drawn by env.train[].weight",
    "enforce_eager": "not read there, where it is false; engine.vllm.enforce_eager sets it here",
    "inherit": "every version inherits its parent's rating",
}
"""Arguments without a counterpart -> what rlforge has instead."""

MODES = {"fixed", "mirror", "lagged", "random", "match_quality", "ts_dist", "exploration"}
OPPONENT = "google/gemini-2.0-flash-lite-001"
_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
_MORE_TARGETS = ["gate_proj", "up_proj", "down_proj"]
OF_GAMES = {"max_turns": None, "timeout_s": None, "error_allowance": 0}
"""Settings of the package's games: they go to their end, and an invalid move ends them."""

EFFECTIVE: Mapping[str, Any] = {
    "model.prompt_template": "unstable:default",
    "model.action_extraction": "unstable:default",
    "model.lora.rank": 32,
    "model.lora.alpha": 32,
    "model.lora.dropout": 0.05,
    "model.lora.target_modules": _TARGETS,
    "engine.temperature": 0.7,
    "engine.top_p": 0.95,
    "engine.request_timeout_s": 3600.0,
    "pool.rating_beta": 4.0,
    "pool.api.temperature": None,
    "pool.api.max_tokens": None,
    "pool.api.timeout_s": 600.0,
    "pool.api.prompt_template": "textarena:agent",
    "pool.api.action_extraction": "raw",
    "buffer.save_batches_as": ["parquet", "csv"],
    # The package drops nothing for its age; here no sample waits longer with its delay.
    "buffer.max_staleness": 3,
    "algorithm.importance_cap": None,
    "algorithm.loss_aggregation": "constant",
    "learner.grad_clip": 1.0,
    "learner.weight_decay": 0.01,
    "learner.batch_delay_buffer": 1.5,
    "learner.activation_checkpointing": True,
    "learner.gradient_checkpointing": True,
    "collector.learned_seats": "one",
    "eval.continuous": True,
    "eval.max_games_per_checkpoint": 32,
    "eval.games": 32,
    "eval.opponents": [f"openrouter:{OPPONENT}"],
    "eval.base": False,
}
"""Defaults of the package where a script says nothing, by the key that has it here."""

OF_BUILD: Mapping[str, Any] = {
    "batch_size": 384,
    "mini_batch_size": 1,
    "learning_rate": 1e-5,
    "gradient_clipping": 0.2,
    "max_generation_len": 4096,
    "fixed_opponents": [OPPONENT],
    "lora_config": {"lora_dropout": 0.0, "target_modules": [*_TARGETS, *_MORE_TARGETS]},
    "vllm_config": {"temperature": 0.6, "max_parallel_seq": 128, "max_loras": 8},
    "algorithm": "reinforce",
}
"""The defaults of ``unstable.build``, which has its own rewards, too."""

REWARDS_OF_BUILD: Mapping[str, Any] = {
    "rewards.final": [
        {"name": "role_advantage_by_env", "decay": 0.999, "order": "update_then_subtract"}
    ],
    "rewards.step": [
        {"name": "format_reward", "reward": 1.5},
        {"name": "invalid_move_penalty", "reward": 1.0, "penalty": -1.0},
    ],
    "rewards.sampling": [{"name": "normalize_by_env", "z_score": True}],
}
