"""A model divided among cards answers as on a single card."""

import asyncio
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlforge.types import SamplingParams

from .conftest import LORA

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

PROMPTS = ([5, 6, 7], [9, 8, 7, 6, 5, 4])


def test_two_ranks_answer_as_one(engine, model_folder, base_policy, versions, tmp_path):
    adapted = versions[0][0]
    job = {"folder": str(model_folder), "adapter": adapted.path_or_name, "prompts": PROMPTS}
    job["lora"] = dataclasses.asdict(LORA)
    (tmp_path / "job.json").write_text(json.dumps(job))
    script = Path(__file__).with_name("divided_engine.py")
    command = [sys.executable, script, tmp_path / "job.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    divided = json.loads(done.stdout.splitlines()[-1])

    async def answers():
        asked = [(prompt, policy) for prompt in PROMPTS for policy in (base_policy, adapted)]
        params = SamplingParams(max_tokens=8, seed=7)
        return [await engine.generate(prompt, params, policy) for prompt, policy in asked]

    for one, two in zip(asyncio.run(answers()), divided, strict=True):
        assert list(one.token_ids) == two["tokens"]
        assert one.logprobs == pytest.approx(two["logprobs"], abs=1e-4)
