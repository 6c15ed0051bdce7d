# Version 0.2 with all of its parts, and a fixed opponent.

import ray
import unstable
import unstable.reward_transformations as retra

MODEL_NAME = "Qwen/Qwen3-4B-Base"
MAX_GENERATION_LENGTH = 2048
lora_config = {
    "lora_rank": 32,
    "lora_alpha": 64,
    "lora_dropout": 0.0,
    "target_modules": ["q_proj", "v_proj"],
}
vllm_config = {
    "model_name": MODEL_NAME,
    "temperature": 0.6,
    "max_tokens": MAX_GENERATION_LENGTH,
    "max_parallel_seq": 128,
    "max_loras": 8,
    "lora_config": lora_config,
    "max_model_len": 2 * 4096,
}
sampler = unstable.samplers.env_samplers.UniformRandomEnvSampler(
    train_env_specs=[
        unstable.TrainEnvSpec(
            env_id="SimpleTak-v0-train", num_players=2, num_actors=1, prompt_template="qwen3-zs"
        )
    ],
    eval_env_specs=[
        unstable.EvalEnvSpec("SimpleTak-v0-train", 2, "qwen3-zs"),
        unstable.EvalEnvSpec(env_id="Sudoku-v0-train", num_players=1, prompt_template="qwen3-sp"),
    ],
)
tracker = unstable.Tracker.options(name="Tracker").remote(run_name="fixed/4b", wandb_project=None)
registry = unstable.ModelRegistry.options(name="ModelRegistry").remote(tracker=tracker, beta=5.0)
ray.get(registry.add_checkpoint.remote(uid="base", path=None, iteration=0))
ray.get(registry.add_fixed.remote(name="google/gemini-2.0-flash-lite-001"))
models = unstable.samplers.model_samplers.FixedOpponentModelSampler(model_registry=registry)
scheduler = unstable.GameScheduler.options(name="GameScheduler").remote(
    model_sampler=models, env_sampler=sampler, logging_dir=ray.get(tracker.get_log_dir.remote())
)
buffer = unstable.StepBuffer.options(name="Buffer").remote(
    max_buffer_size=384 * 2,
    tracker=tracker,
    final_reward_transformation=None,
    step_reward_transformation=retra.ComposeStepRewardTransforms([retra.RewardForFormat(1.5)]),
    sampling_reward_transformation=retra.ComposeSamplingRewardTransforms(
        [retra.NormalizeRewards(z_score=True)]
    ),
)
collector = unstable.Collector.options(name="Collector").remote(
    vllm_config=vllm_config, tracker=tracker, buffer=buffer, game_scheduler=scheduler
)
learner = unstable.REINFORCELearner.options(num_gpus=1, name="Learner").remote(
    model_name=MODEL_NAME,
    lora_cfg=lora_config,
    batch_size=384,
    mini_batch_size=1,
    learning_rate=1e-5,
    grad_clip=0.2,
    buffer=buffer,
    tracker=tracker,
    model_registry=registry,
)
ray.get(
    learner.initialize_algorithm.remote(
        max_train_len=3000, max_generation_len=MAX_GENERATION_LENGTH
    )
)
try:
    collector.collect.remote(num_train_workers=256, num_eval_workers=None)
    ray.get(learner.train.remote(100))
finally:
    ray.kill(collector, no_restart=True)
    ray.shutdown()
