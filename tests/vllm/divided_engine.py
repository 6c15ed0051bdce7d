"""An engine of vLLM on two ranks, in a process of its own: its process groups are global.

python divided_engine.py JOB.json    (folder, adapter, prompts; answers go to stdout as JSON)
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from rlforge.config.engine import EngineConfig
from rlforge.config.model import LoraConfig, ModelConfig
from rlforge.config.schema import RunConfig
from rlforge.engines import vllm as vllm_engine
from rlforge.types import PolicyRef, SamplingParams

RANKS = 2


def main(job: dict[str, Any]) -> None:
    def divided(*arguments: Any, **named: Any) -> dict[str, Any]:
        # The arguments for two GPUs, on two processes of a CPU.
        own = given(*arguments, **named)
        for_gpus = given(*arguments, **named | {"device": "cuda", "gpus": float(RANKS)})
        changed = ("tensor_parallel_size", "distributed_executor_backend")
        return own | {key: for_gpus[key] for key in changed}

    given = vllm_engine.vllm_arguments
    vllm_engine.vllm_arguments = divided
    config = RunConfig(
        model=ModelConfig(
            kind="hf", name=job["folder"], dtype="float32", lora=LoraConfig(**job["lora"])
        ),
        engine=EngineConfig(name="vllm", max_parallel_seq=16, max_model_len=512, max_loras=2),
    )
    engine = vllm_engine.VllmEngine(config, device="cpu", threads=1, gpus=0.0)
    adapted = PolicyRef(uid="step-1", kind="checkpoint", path_or_name=job["adapter"], version=1)
    policies = (PolicyRef(uid="step-0", kind="checkpoint"), adapted)

    async def answer() -> list[dict[str, Any]]:
        completions = await asyncio.gather(
            *(
                engine.generate(prompt, SamplingParams(max_tokens=8, seed=7), policy)
                for prompt in job["prompts"]
                for policy in policies
            )
        )
        await engine.close()
        return [{"tokens": each.token_ids, "logprobs": each.logprobs} for each in completions]

    print(json.dumps(asyncio.run(answer())))


if __name__ == "__main__":  # its ranks import this file
    main(json.loads(Path(sys.argv[1]).read_text()))
