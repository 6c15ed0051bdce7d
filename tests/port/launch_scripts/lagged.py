# Version 0.1 against former versions, from an adapter; with parts that are not the package's.
import ray
import unstable
import unstable.reward_transformations as retra
from my_project import Curriculum, ScaleRewards  # noqa: F401

CONFIG = {"model": "Qwen/Qwen3-1.7B-Base", "len": 4096}
SHARED = {"max_parallel_seq": 128, "max_loras": 8, "max_model_len": 8192}
lora_cfg = {
    "lora_rank": 32,
    "lora_alpha": 32,
    "lora_dropout": 0.0,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "use_dora": True,
}
tracker = unstable.Tracker.remote(run_name="lagged", wandb_project="UB")
buffer = unstable.StepBuffer.remote(
    max_buffer_size=768,
    tracker=tracker,
    final_reward_transformation=retra.ComposeFinalRewardTransforms([ScaleRewards(0.5)]),
    step_reward_transformation=None,
    sampling_reward_transformation=None,
    buffer_strategy="random",
)
pool = unstable.ModelPool.remote(sample_mode="lagged", max_active_lora=4, tracker=tracker)
ray.get(pool.add_checkpoint.remote(path="outputs/warm/checkpoints/iteration-30", iteration=30))
collector = unstable.Collector.remote(
    num_actors=1,
    step_buffer=buffer,
    model_pool=pool,
    tracker=tracker,
    vllm_config={
        "model_name": CONFIG["model"],
        "max_tokens": CONFIG["len"],
        "lora_config": lora_cfg,
        **SHARED,
    },
    training_envs=[("SimpleTak-v0-train", 2, "qwen3-zs")],
    evaluation_envs=[],
)
learner = unstable.StandardLearner.options(num_gpus=1).remote(
    model_name=CONFIG["model"],
    step_buffer=buffer,
    model_pool=pool,
    tracker=tracker,
    algorithm=unstable.algorithms.Reinforce(),
    batch_size=384,
    mini_batch_size=1,
    max_generation_len=CONFIG["len"],
    lora_cfg=lora_cfg,
    initial_lora_path="outputs/warm/checkpoints/iteration-30",
    ckpt_root="somewhere",
    use_trainer_cache=False,
)
unstable.TerminalInterface(tracker)
unstable.experimental.Curriculum(levels=3)
collector.collect.remote(num_workers=64, num_eval_workers=4)
ray.get(learner.train.remote(30))
