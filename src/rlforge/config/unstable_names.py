"""Names of UnstableBaselines 0.1 and 0.2, and what is in their place here.

docs/unstable_baselines.md has them, too; messages hint at them, and ``rlforge port`` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping


def _by_name(table: Mapping[str, str]) -> Mapping[str, str]:
    """Each word of the values -> its key; of a word that stands twice, the first."""
    found: dict[str, str] = {}
    for place, names in table.items():
        for name in names.split():
            found.setdefault(name, place)
    return found


ARGUMENTS = _by_name(
    {
        "model.name": "model_name",
        "model.lora": "lora_config lora_cfg",
        "model.lora.rank": "lora_rank",
        "model.lora.alpha": "lora_alpha",
        "model.lora.dropout": "lora_dropout",
        "model.lora.target_modules": "target_modules",
        "model.action_extraction": "action_extraction action_extraction_fn",
        "model.prompt_template": "prompt_template",
        "engine": "vllm_config cfg",
        "engine.num_engines": "num_actors",
        "engine.max_loras": "max_loras",
        "engine.max_parallel_seq": "max_parallel_seq",
        "engine.max_model_len": "max_model_len",
        "engine.temperature": "temperature",
        "engine.top_p": "top_p",
        "engine.max_tokens": "max_tokens",
        "env.train": "training_envs train_envs train_env_specs",
        "env.eval": "evaluation_envs eval_envs eval_env_specs",
        "eval.opponents": "evaluation_opponent fixed_opponent",
        "eval.max_games_per_checkpoint": "max_eval_games_per_ckpt",
        "collector.filter_opponent_invalid": "filter_opponent_invalid",
        "collector.num_train_workers": "num_workers num_train_workers num_collection_workers",
        "collector.num_eval_workers": "num_eval_workers",
        "pool.mode": "sample_mode opponent_sampling_strategy",
        "pool.max_active_lora": "max_active_lora",
        "pool.lag_range": "lag_range",
        "pool.fixed_opponents": "fixed_opponents",
        "pool.rating_beta": "beta",
        "buffer.max_size": "max_buffer_size buffer_size",
        "buffer.strategy": "buffer_strategy",
        "rewards.final": "final_reward_transformation",
        "rewards.step": "step_reward_transformation",
        "rewards.sampling": "sampling_reward_transformation",
        "algorithm.name": "algorithm",
        "algorithm.max_generation_len": "max_generation_len",
        "algorithm.value_learning_rate": "critic_learning_rate",
        "algorithm.normalize_advantages": "normalize_adv",
        "learner.total_updates": "iterations learning_steps",
        "learner.batch_size": "batch_size",
        "learner.mini_batch_size": "mini_batch_size",
        "learner.learning_rate": "learning_rate",
        "learner.grad_clip": "grad_clip gradient_clipping",
        "learner.batch_delay_buffer": "batch_delay_buffer",
        "learner.initial_adapter": "initial_lora_path",
        "learner.num_learners": "num_learners",
        "learner.save_every": "save_every",
        "learner.activation_checkpointing": "activation_checkpointing",
        "learner.gradient_checkpointing": "gradient_checkpointing",
        "learner.use_trainer_cache": "use_trainer_cache",
        "learner.max_train_len": "max_train_len",
        "run_dir": "ckpt_root",
        "name": "run_name",
        "tracker.wandb_project": "wandb_project",
        "tracker.flush_every_s": "FLUSH_EVERY",
    }
)
"""Arguments -> keys."""

COMPONENTS: Mapping[str, tuple[str, str]] = {
    "WinDrawLossFormatter": ("rewards.final", "win_draw_loss"),
    "RoleAdvantageFormatter": ("rewards.final", "role_advantage"),
    "RoleAdvantageByEnvFormatter": ("rewards.final", "role_advantage_by_env"),
    "ScaleRewardTransform": ("rewards.final", "scale"),
    "RewardForFormat": ("rewards.step", "format_reward"),
    "PenaltyForInvalidMove": ("rewards.step", "invalid_move_penalty"),
    "DiscountFutureRewards": ("rewards.step", "discount"),
    "NormalizeRewards": ("rewards.sampling", "normalize"),
    "NormalizeRewardsByEnv": ("rewards.sampling", "normalize_by_env"),
    "ClampRewards": ("rewards.sampling", "clamp"),
}
"""Reward transforms -> key of the list, and name in it."""

PARAMETERS = {
    "tau": "decay",  # 1 - tau
    "win_reward": "win",
    "draw_reward": "draw",
    "loss_reward": "loss",
}
"""Parameters of reward transforms."""

ENTRIES = {"env_id": "id"}
"""Fields of an environment."""

MODES = {"match-quality": "match_quality", "ts-dist": "ts_dist"}
"""Modes of the pool."""

_PLACES = _by_name(
    {
        "rlforge.engines.base.Engine": "VLLMActor",
        "rlforge.engines.base.Generator.generate": "submit_prompt",
        "rlforge.engines.base.Engine.stats": "_report_loop _tok_rate",
        "rlforge.rollout.collector.Collector": "Collector",
        "rlforge.rollout.collector.Collector.train": "collect",
        "rlforge.rollout.schedule.GameScheduler.next_games": "_submit_train",
        "rlforge.rollout.evaluation.plan_evaluation": "_submit_eval",
        "rlforge.rollout.collector.Ports.deliver": "_handle_finished _post_train _post_eval",
        "rlforge.rollout.episode.play_game": "play_episode run_game",
        "rlforge.league.pool.ModelPool": "ModelPool ModelRegistry",
        "rlforge.league.pool.ModelPool.add_checkpoint": "add_checkpoint",
        "rlforge.league.pool.ModelPool.add_fixed": "add_fixed",
        "rlforge.league.pool.ModelPool.current": "current_uid latest_ckpt",
        "rlforge.league.pool.ModelPool.policy": "ckpt_path",
        "rlforge.league.pool.ModelPool.opponents": "sample",
        "rlforge.league.pool.ModelPool.push_outcome": "push_game_outcome",
        "rlforge.league.ratings.RatingTable.record": "_update_ratings",
        "rlforge.league.pool.ModelPool.active": "_maintain_active_pool",
        "rlforge.league.pool.ModelPool.snapshot": "snapshot",
        "rlforge.league.exploration.ExplorationTracker": "ExplorationTracker",
        "rlforge.buffer.StepBuffer": "StepBuffer",
        "rlforge.buffer.StepBuffer.draw": "get_batch",
        "rlforge.buffer.StepBuffer.clear": "clear",
        "rlforge.buffer.StepBuffer.size": "size",
        "rlforge.buffer.StepBuffer.reserve": "continue_collection stop",
        "rlforge.buffer.batches.write_batch": "write_training_data_to_file",
        "rlforge.preflight.plan.make_plan": "step_buffer model_pool",
        "rlforge.learner.Learner": "StandardLearner Learner",
        "rlforge.learner.Learner.update": "train",
        "rlforge.learner.Learner.state_dict": "_step _samples_seen",
        "rlforge.learner.layers.apply_memory_options": "enable_full_activation_ckpt",
        "rlforge.algorithms.Algorithm": "BaseAlgo",
        "rlforge.algorithms.make_algorithm": "initialize",
        "rlforge.algorithms.Algorithm.targets": "prepare_batch",
        "rlforge.algorithms.Algorithm.loss": "update",
        "rlforge.record.tracker.Tracker": "Tracker",
        "rlforge.record.tracker.Tracker.add_games": "add_trajectory",
        "rlforge.record.tracker.Tracker.add_eval": "add_eval_episode",
        "rlforge.record.tracker.Tracker.log_inference": "log_inference",
        "rlforge.record.tracker.Tracker.log_learner": "log_learner",
        "rlforge.record.tracker.Tracker.log_pool": "log_model_pool",
        "rlforge.record.tracker.Tracker.progress": "get_interface_info",
        "rlforge.record.tracker.Tracker.tick": "_flush_if_due",
        "rlforge.log_scalar": "_put",
        "rlforge.record.files.RunPaths": "BaseTracker",
        "rlforge.show.display.Display": "TerminalInterface",
        "rlforge.games.prompts": "templates",
        "rewards.final": "FinalRewardTransform ComposeFinalRewardTransforms",
        "rewards.step": "StepRewardTransform ComposeStepRewardTransforms",
        "rewards.sampling": "SamplingRewardTransform ComposeSamplingRewardTransforms",
        "rlforge.samples.Trajectory": "Trajectory actions extracted_actions infos num_turns "
        "format_feedbacks",
        "rlforge.samples.Sample": "Step pid obs act reward step_info",
        "rlforge.types.PolicyRef": "Opponent uid path_or_name rating active",
        "rlforge.types.GameRecord": "EpisodeResult traj end_by_opponent_invalid action_seq "
        "final_rewards",
        "rlforge.types.GameSpec": "PlaySpec TaskMeta env_id player_id agent_specs type ckpt_uid "
        "opponent_uid",
        "rlforge.types.Seat": "AgentSpec",
    }
)
"""Classes, methods and fields -> what does their work."""


def in_place_of(name: str) -> str | None:
    """Counterpart of a name, as a line of YAML or a Python name.

    Example:
        >>> in_place_of("num_actors"), in_place_of("RewardForFormat")
        ('engine.num_engines', 'rewards.step=[{name: format_reward}]')
    """
    if name in COMPONENTS:
        key, component = COMPONENTS[name]
        return f"{key}=[{{name: {component}}}]"
    if name in PARAMETERS:
        return f"{PARAMETERS[name]} of an entry of rewards.final"
    return ARGUMENTS.get(name) or _PLACES.get(name)


def spelled_here(name: str) -> str:
    """The name here of a transform, parameter, field or mode; others as they are.

    Example:
        >>> spelled_here("ts-dist"), spelled_here("tau"), spelled_here("mirror")
        ('ts_dist', 'decay', 'mirror')
    """
    if name in COMPONENTS:
        return COMPONENTS[name][1]
    return {**MODES, **PARAMETERS, **ENTRIES}.get(name, name)
