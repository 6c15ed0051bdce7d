# Version 0.1, in a function: opponents by name, two games, transforms with parameters.
import os
import time

import ray
import unstable
from unstable import Collector as Games
from unstable.reward_transformations import (
    ComposeFinalRewardTransforms,
    ComposeSamplingRewardTransforms,
    ComposeStepRewardTransforms,
    NormalizeRewards,
    PenaltyForInvalidMove,
    RewardForFormat,
    RoleAdvantageFormatter,
    WinDrawLossFormatter,
)

MODEL = "meta-llama/Llama-3.2-3B-Instruct"
BATCH = 256
GAMES = ["LiarsDice-v0-train", "Nim-v0-train"]


class LengthBonus:
    def __call__(self, trajectory, step_index, base_reward):
        return base_reward


def main():
    ray.init()
    tracker = unstable.Tracker.remote(run_name=f"llama-{int(time.time())}")
    buffer = unstable.StepBuffer.remote(
        BATCH * 3,
        tracker,
        ComposeFinalRewardTransforms(
            [WinDrawLossFormatter(draw_reward=-0.2), RoleAdvantageFormatter(tau=0.01)]
        ),
        ComposeStepRewardTransforms(
            [
                RewardForFormat(reward=0.1, penalty=-0.1),
                PenaltyForInvalidMove(penalty=-0.5),
                LengthBonus(),
            ]
        ),
        ComposeSamplingRewardTransforms([NormalizeRewards()]),
    )
    pool = unstable.ModelPool.remote("match-quality", 6, tracker=tracker, lag_range=(1, 7))
    ray.get(pool.add_checkpoint.remote(path=None, iteration=-1))
    for name in ["openai/gpt-4o-mini"]:
        ray.get(pool.add_fixed.remote(name))
    ray.get(pool.add_fixed.remote(name="qwen/qwen-2.5-7b-instruct", prior_mu=27.0))
    lora = {"lora_rank": 16, "lora_alpha": 32}
    vllm = {
        "model_name": MODEL,
        "temperature": 1.0,
        "max_tokens": 1024,
        "max_parallel_seq": 64,
        "max_loras": 8,
        "lora_config": lora,
        "max_model_len": 4096,
    }
    vllm["top_p"] = 0.9
    games = Games.remote(
        int(os.environ.get("ACTORS", 3)),
        buffer,
        pool,
        tracker,
        vllm,
        [(GAMES[0], 2, "llama-instruct-zs"), (GAMES[1], 2, "llama-instruct-zs")],
        [("KuhnPoker-v0-train", 2, "default")],
        evaluation_opponent="openai/gpt-4o-mini",
        max_eval_games_per_ckpt=20,
        filter_opponent_invalid=True,
    )
    learner = unstable.StandardLearner.options(num_gpus=1).remote(
        MODEL,
        buffer,
        pool,
        unstable.algorithms.Reinforce(),
        BATCH,
        2,
        1024,
        learning_rate=5e-6,
        lora_cfg=lora,
        tracker=tracker,
        save_every=2,
        shuffle=True,
    )
    games.collect.remote(128, 8)
    ray.get(learner.train.remote(iterations=50))


if __name__ == "__main__":
    main()
