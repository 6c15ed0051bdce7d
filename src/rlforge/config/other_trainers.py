"""Names of TRL, verl, OpenRLHF, ART and prime-rl, and what is in their place here.

Messages about unknown keys and options answer with them; docs/config.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

KEYS: Mapping[str, str] = {
    "learner.learning_rate": "lr actor_learning_rate actor_lr",
    "learner.total_updates": "max_steps total_steps train_steps training_steps num_train_epochs "
    "total_epochs total_training_steps num_episodes total_episodes num_training_steps num_updates "
    "total_timesteps max_iterations",
    "learner.batch_size": "train_batch_size rollout_batch_size global_batch_size groups_per_step "
    "generation_batch_size",
    "learner.mini_batch_size": "per_device_train_batch_size micro_train_batch_size "
    "micro_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu forward_batch_size",
    "learner.micro_batch_tokens": "ppo_max_token_len_per_gpu train_max_tokens_per_gpu",
    "learner.optimizer_steps": "ppo_mini_batch_size num_mini_batches num_minibatches "
    "steps_per_generation",
    "learner.epochs": "iterations_per_window num_iterations ppo_epochs num_ppo_epochs max_epochs",
    "learner.schedule": "lr_scheduler lr_scheduler_type lr_schedule scheduler warmup_style",
    "learner.warmup_updates": "warmup_steps warmup_ratio lr_warmup_steps lr_warmup_ratio "
    "lr_warmup_steps_ratio num_warmup_steps",
    "learner.final_lr_ratio": "min_lr_ratio min_lr",
    "learner.grad_clip": "max_grad_norm max_norm clip_grad clip_grad_norm gradient_clip_val",
    "learner.betas": "adam_beta1 adam_beta2 adam_betas",
    "learner.gradient_checkpointing": "enable_gradient_checkpointing",
    "learner.packing": "packing_samples use_remove_padding remove_padding",
    "learner.compile": "torch_compile use_torch_compile",
    "learner.fp32_head": "cast_lm_head_to_fp32 fp32_lm_head",
    "learner.num_learners": "num_processes world_size actor_num_gpus_per_node ref_num_nodes "
    "actor_num_nodes",
    "learner.shard_weights": "fsdp fsdp_config zero_stage deepspeed ds_config",
    "learner.save_every": "save_freq save_steps save_interval checkpoint_interval ckpt.interval "
    "save_strategy",
    "learner.keep_checkpoints": "save_total_limit max_actor_ckpt_to_keep max_ckpt_num ckpt.keep "
    "ckpt.keep_last",
    "learner.initial_adapter": "lora_adapter_path adapter_path lora_path",
    "learner.average": "enable_ema use_ema ema",
    "learner.average_decay": "ema_beta ema_decay",
    "learner.weight_decay": "l2 l2_reg wd",
    "algorithm": "adv_estimator advantage_estimator",
    "algorithm.group_size": "num_generations n_samples_per_prompt rollout.n n_samples "
    "trajectories_per_group rollouts_per_example samples_per_prompt num_return_sequences",
    "algorithm.kl.coef": "beta kl_coef init_kl_coef kl_loss_coef kl_penalty_coef kl_beta kl_coeff "
    "kl_penalty",
    "continuous.threshold": "reward_threshold score_threshold",
    "algorithm.kl.estimator": "kl_estimator kl_loss_type kl_penalty",
    "algorithm.kl.to": "ref_model reference_model sync_ref_model use_kl_loss ref_pretrain",
    "algorithm.kl.refresh_every": "ref_model_sync_steps ref_update_steps",
    "algorithm.clip_low": "epsilon eps_clip clip_ratio cliprange clip_range clip_eps clip_epsilon "
    "epsilon_low eps_clip_low clip_ratio_low eps_clip_low_high",
    "algorithm.clip_high": "epsilon eps_clip clip_ratio cliprange clip_range clip_eps "
    "clip_epsilon epsilon_high eps_clip_high clip_ratio_high eps_clip_low_high",
    "algorithm.dual_clip": "delta clip_ratio_c",
    "algorithm.value_clip": "cliprange_value vf_clip vf_clip_param cliprange_vf",
    "algorithm.value_coef": "vf_coef value_loss_coef vf_loss_coeff",
    "algorithm.value_learning_rate": "critic_learning_rate critic_lr critic.optim.lr value_lr",
    "algorithm.gae_lambda": "lam lambd lmbda gae_lam",
    "algorithm.entropy_coef": "entropy_coeff ent_coef entropy_loss_coef entropy_coefficient",
    "algorithm.normalize_std": "scale_rewards norm_adv_by_std_in_grpo no_advantage_std_norm",
    "algorithm.normalize_advantages": "whiten_advantages normalize_advantage no_advantage_norm",
    "algorithm.loss_aggregation": "loss_type loss_agg_mode loss_reduction token_level_loss",
    "algorithm.loss": "loss_type importance_sampling_level policy_loss policy_loss_type loss_mode",
    "algorithm.importance": "vllm_importance_sampling_correction vllm_importance_sampling_mode "
    "enable_vllm_is_correction rollout_is",
    "algorithm.importance_cap": "vllm_importance_sampling_cap tis_imp_ratio_cap "
    "rollout_is_threshold vllm_is_truncated_threshold importance_sampling_cap",
    "algorithm.dynamic_sampling": "filter_groups dynamic_filtering filter_groups.enable "
    "dynamic_filtering_reward_range",
    "algorithm.max_replaced": "max_num_gen_batches",
    "engine.max_tokens": "max_completion_length max_new_tokens max_response_length response_length "
    "generate_max_len max_completion_tokens",
    "engine.max_model_len": "max_prompt_length prompt_max_len max_seq_len max_seq_length seq_len "
    "max_length vllm_max_model_length prompt_length rollout.prompt_length",
    "engine.name": "use_vllm rollout.name inference_backend vllm_mode",
    "engine.num_engines": "vllm_num_engines",
    "engine.vllm.gpu_memory_utilization": "vllm_gpu_memory_utilization "
    "rollout.gpu_memory_utilization",
    "engine.vllm.enforce_eager": "vllm_enforce_eager",
    "engine.vllm.enable_prefix_caching": "vllm_enable_prefix_caching",
    "engine.max_parallel_seq": "max_num_seqs vllm_max_num_seqs",
    "engine.top_k": "rollout.top_k generation_top_k",
    "engine.top_p": "rollout.top_p generation_top_p",
    "engine.temperature": "rollout.temperature sampling_temperature generation_temperature",
    "model.name": "model_name pretrain model_name_or_path model_id base_model model_path "
    "model.path",
    "model.dtype": "torch_dtype bf16 fp16 param_dtype precision mixed_precision rollout.dtype",
    "model.lora": "use_peft use_lora peft_config",
    "model.lora.rank": "lora_r lora_rank",
    "model.lora.alpha": "lora_alpha",
    "model.lora.dropout": "lora_dropout",
    "model.lora.target_modules": "lora_target_modules",
    "hardware.engine_gpus": "vllm_tensor_parallel_size tensor_parallel_size tp_size "
    "tensor_model_parallel_size",
    "hardware.num_gpus": "n_gpus_per_node num_gpus_per_node gpus_per_node",
    "hardware.ray_address": "nnodes num_nodes",
    "hardware.alternate": "colocate_all_models vllm_enable_sleep vllm_enable_sleep_mode "
    "free_cache_engine hybrid_engine",
    "hardware.device": "use_cpu no_cuda cuda",
    "hardware.offload_learner": "param_offload optimizer_offload adam_offload "
    "fsdp_config.param_offload",
    "buffer.max_staleness": "max_async_level async_level max_off_policy_steps off_policy_steps "
    "staleness_threshold",
    "buffer.max_size": "async_queue_size replay_buffer_size",
    "eval.every": "eval_steps eval_interval eval_freq test_freq eval_strategy evaluation_strategy "
    "val_before_train eval_on_start val_interval eval.interval",
    "eval.games": "num_eval_examples eval_n_samples_per_prompt val_kwargs.n num_generations_eval",
    "eval.temperature": "eval_temperature val_kwargs.temperature",
    "tracker.wandb_project": "project project_name use_wandb report_to logger",
    "tracker.tensorboard": "use_tensorboard logging_dir logger",
    "tracker.sinks": "logger loggers",
    "name": "experiment_name exp_name wandb_run_name",
    "run_dir": "output_dir save_path default_local_dir ckpt_path",
    "seed": "random_seed data_seed",
}
"""Key here -> names elsewhere; of a name with dots, these are the last parts of it."""

LEFT_OUT: Mapping[str, str] = {
    "optim optimizer optimizer_name": "the optimizer is AdamW; it has learner.learning_rate, "
    "learner.betas and learner.weight_decay",
    "load_in_4bit load_in_8bit quantization use_qlora": "weights are trained in model.dtype, "
    "because log-probs of quantised ones differ from the engine's; rlforge export --gguf writes a "
    "model that can be quantised",
    "reward_model reward_funcs reward_function reward_fn reward_pretrain remote_rm_url "
    "custom_reward_function": "the games give the rewards; rewards.final and rewards.step change "
    "them, also by a transform of your own, module:Thing",
    "dataset dataset_name prompt_data train_files val_files prompt_key input_key": "prompts come "
    "from games: env=NAME; given answers are learned by rlforge sft",
    "repetition_penalty frequency_penalty presence_penalty min_new_tokens": "an answer would come "
    "from another distribution than the one whose log-probs the learner computes",
    "critic_pretrain critic_model_path": "the critic is a head on the policy: algorithm=ppo or a2c",
    "attn_implementation flash_attn use_flash_attn use_flash_attention use_liger_kernel liger "
    "use_liger": "the learner packs answers without padding, in the "
    "attention that the device has; learner.compile compiles its layers",
    "use_dora dora": "adapters are LoRA, with model.lora.use_rslora if wanted",
    "vllm_server_host vllm_server_port vllm_server_base_url": "vLLM runs in processes of the run "
    "itself: engine=vllm; hardware.ray_address places them on other machines",
    "logging_steps log_interval log_every": "every update is recorded and shown",
    "push_to_hub hub_model_id": "rlforge export writes a folder that any tool can push",
    "use_kl_in_reward kl_in_reward": "the KL penalty is part of the loss: algorithm.kl.coef",
    "target_kl kl_target kl_horizon kl_ctrl.type adap_kl_ctrl adaptive_kl": "algorithm.kl.coef is "
    "fixed, or goes to algorithm.kl.final_ratio of it by the end",
    "critic_warmup freezing_actor_steps": "the critic learns from the first update, at "
    "algorithm.value_learning_rate",
    "early_stopping early_stopping_patience": "rlforge stops for what cannot be learned with "
    "on_no_signal=stop, and runs are compared by rlforge compare",
    "mask_truncated_completions overlong_filtering overlong_filter overlong_penalty_factor "
    "overlong_buffer overlong_buffer_len missing_eos_penalty": "an answer that is cut makes no "
    "legal move, which the game's rules and env.train.0.error_allowance pay",
    "top_entropy_quantile": "every token of an answer is learned from; entropy is kept up by "
    "algorithm.entropy_coef",
    "aux_loss_coef router_aux_loss_coef": "the loss has no term of its own for routers of experts",
    "reward_weights reward_weight": "rewards.final and rewards.step are lists of "
    "transforms, applied in their order",
    "ulysses_sequence_parallel_size sequence_parallel_size context_parallel_size": "the "
    "learner packs whole answers; learner.shard_weights shards a model over learner.num_learners",
    "stop_token_id stop_token stop_strings": "an answer ends at the end tokens of the model's "
    "generation configuration and chat template",
    "async_train async_training": "a run collects while it learns, by buffer.max_staleness; "
    "determinism=strict takes turns",
    "max_samples max_train_samples": "games are played as long as the run learns: "
    "learner.total_updates",
    "adam_epsilon adam_eps optimizer_eps": "AdamW has the epsilon of PyTorch",
    "resume_from_checkpoint resume_mode load_checkpoint": "a run goes on with rlforge train "
    "--resume RUN",
}
"""Names elsewhere -> why there is no such key, and what there is."""

OPTIONS: Mapping[str, Mapping[str, str]] = {
    "algorithm": {
        "dr_grpo drgrpo": "algorithm=grpo algorithm.normalize_std=false "
        "algorithm.loss_aggregation=constant",
        "gae": "algorithm=ppo",
        "max_rl": "algorithm=maxrl",
        "reinforce_plus_plus reinforce++": "algorithm=ppo algorithm.gamma=1 "
        "algorithm.gae_lambda=1, or algorithm=reinforce",
        "dpo kto orpo ipo": "it learns from given pairs, and games give rewards: algorithm=grpo "
        "compares games from the same start",
        "sft bc": "rlforge sft learns given answers",
    },
    "engine": {
        "hf huggingface": "engine=transformers",
        "sglang tgi llama_cpp": "vLLM and transformers alone give log-probs of the sampling "
        "distribution; an engine of your own is engine.name=module:Thing",
    },
    "hardware": {"gpu cuda": "hardware=gpu_1, or auto, which finds GPUs"},
}
"""Group -> option elsewhere -> what is in its place."""


def counterparts(key: str) -> list[str]:
    """Keys here that stand for another trainer's dotted name.

    Example:
        >>> counterparts("actor_rollout_ref.rollout.n"), counterparts("algorithm.beta")
        (['algorithm.group_size'], ['algorithm.kl.coef'])
    """
    # The longest end says most: ``critic.optim.lr`` is not the learner's.
    for end in _ends(key):
        if found := [here for here, names in KEYS.items() if end in names.split()]:
            return found
    return []


def left_out(key: str) -> str | None:
    """The reason why there is no counterpart of another trainer's name, if it is a known one."""
    reasons = {name: reason for names, reason in LEFT_OUT.items() for name in names.split()}
    return next((reasons[end] for end in _ends(key) if end in reasons), None)


def option_for(group: str, option: str) -> str | None:
    """The counterpart of another trainer's option of a group, in words; None for none."""
    known = OPTIONS.get(group, {}).items()
    return next((here for names, here in known if option.lower() in names.split()), None)


def _ends(key: str) -> Iterator[str]:
    # OpenRLHF writes dashes, others underscores.
    parts = key.lower().replace("-", "_").split(".")
    yield from (".".join(parts[start:]) for start in range(len(parts)))
