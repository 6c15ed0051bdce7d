# Version 0.2 by its runtime object.
import unstable

envs = [
    unstable.TrainEnvSpec(
        env_id="Nim-v0-train", num_players=2, num_actors=2, prompt_template="qwen3-zs"
    )
]
run = unstable.build(
    model_name="Qwen/Qwen3-1.7B-Base",
    train_envs=envs,
    eval_envs=[
        unstable.EvalEnvSpec(
            env_id="Nim-v0-train",
            num_players=2,
            prompt_template="qwen3-zs",
            fixed_opponent="openai/gpt-4o-mini",
        )
    ],
    batch_size=128,
    learning_rate=2e-5,
    lora_config=None,
)
run.start(learning_steps=60, num_collection_workers=64)
