# Version 0.2 with its second algorithm.
import ray
import unstable
import unstable.reward_transformations as retra

BATCH_SIZE: int = 320
lora = {
    "lora_rank": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
}
cfg = {
    "model_name": "Qwen/Qwen3-0.6B",
    "max_tokens": 1024,
    "max_parallel_seq": 96,
    "max_loras": 4,
    "lora_config": lora,
    "max_model_len": 4096,
}
tracker = unstable.Tracker.remote("a2c")
registry = unstable.ModelRegistry.remote(tracker)
scheduler = unstable.GameScheduler.remote(
    unstable.samplers.model_samplers.BaseModelSampler(registry),
    unstable.samplers.env_samplers.UniformRandomEnvSampler(
        [unstable.TrainEnvSpec("ConnectFour-v0-train", 2, 2, "qwen3-reasoning")],
        [unstable.EvalEnvSpec("ConnectFour-v0-train", 2, "qwen3-reasoning")],
    ),
    "logs",
)
buffer = unstable.EpisodeBuffer.remote(
    2 * BATCH_SIZE,
    tracker,
    retra.ComposeFinalRewardTransforms([retra.RoleAdvantageByEnvFormatter()]),
    None,
    retra.ComposeSamplingRewardTransforms([retra.NormalizeRewardsByEnv(True)]),
)
collector = unstable.Collector.remote(cfg, tracker, buffer, scheduler)
learner = unstable.A2CLearner.options(num_gpus=1).remote(
    "Qwen/Qwen3-0.6B",
    lora,
    BATCH_SIZE,
    4,
    1e-5,
    0.2,
    buffer,
    tracker,
    registry,
    gradient_checkpointing=False,
)
ray.get(
    learner.initialize_algorithm.remote(
        infer_mini_batch_size=16,
        critic_learning_rate=1e-4,
        normalize_adv=True,
        max_generation_len=1024,
    )
)
collector.collect.remote(num_train_workers=200, num_eval_workers=8)
ray.get(learner.train.remote(101))
