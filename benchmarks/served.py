"""A real service in a process of its own, and adapters with what each of them must answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import torch
from engine import positions

from rlforge.config.engine import EngineConfig
from rlforge.config.model import LoraConfig, ModelConfig
from rlforge.config.schema import RunConfig
from rlforge.continuous.serving.tokens import ADMIN_VARIABLE
from rlforge.engines.registry import make_engine
from rlforge.learner.weights import attach_lora
from rlforge.models.load import load_base_model, load_tokenizer, stop_token_ids
from rlforge.system.checkpoint import write_checkpoint
from rlforge.types import PolicyRef, SamplingParams

TOKEN = "benchmark"
MODEL = ModelConfig(kind="tiny", dtype="float32", lora=LoraConfig(rank=32, alpha=64))
#: Adapters here are random: how well they play, and whether they are worse, is not the question.
OVERRIDES = ("model=tiny", "serve.port=0", "serve.max_concurrent=256")
RANDOM_ADAPTERS = ("deployment.holdout_games=0", "deployment.min_format=0")
START_S = 300.0


def make_adapter(root: Path, seed: int, *, scale: float = 0.1, **lora: Any) -> Path:
    """A checkpoint as the learner writes it, drawn from ``seed``."""
    base = load_base_model(MODEL, torch.device("cpu"), torch.float32)
    wrapped = attach_lora(base, LoraConfig(**{"rank": 32, "alpha": 64} | lora), seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, scale, generator=generator)
    return write_checkpoint(
        root, f"step-{seed}", lambda folder: wrapped.save_pretrained(folder), {"version": seed}
    )


def prompts(number: int) -> list[tuple[int, ...]]:
    """Positions of random SimpleTak games."""
    return positions(load_tokenizer(MODEL), number)


def expected(
    adapters: Sequence[Path | None], asked: Sequence[tuple[int, ...]]
) -> list[list[tuple[str, float]]]:
    """Per adapter (None: the base model) and prompt: the greedy answer of that adapter alone, and
    the log-probability of the first token that seed 0 draws."""

    async def ask() -> list[list[tuple[str, float]]]:
        config = RunConfig(model=MODEL, engine=EngineConfig(max_loras=2, max_model_len=128))
        engine = make_engine(config, device="cpu", threads=1)
        stops = stop_token_ids(MODEL, load_tokenizer(MODEL))
        rows = []
        for path in adapters:
            policy = PolicyRef(
                uid=str(path), kind="checkpoint", path_or_name=str(path) if path else None
            )
            row = []
            for prompt in asked:
                greedy = SamplingParams(temperature=0.0, max_tokens=4, stop_token_ids=stops)
                drawn = SamplingParams(max_tokens=1, stop_token_ids=stops, seed=0)
                text = (await engine.generate(prompt, greedy, policy)).text
                row.append((text, (await engine.generate(prompt, drawn, policy)).logprobs[0]))
            rows.append(row)
        await engine.close()
        return rows

    return asyncio.run(ask())


def greedy(prompt: Sequence[int]) -> dict[str, Any]:
    """A request for the likeliest answer."""
    return {"model": "run", "prompt": list(prompt), "temperature": 0, "max_tokens": 4}


def drawn(prompt: Sequence[int]) -> dict[str, Any]:
    """A request for the token that seed 0 draws, and its log-probability."""
    return {"model": "run", "prompt": list(prompt), "max_tokens": 1, "seed": 0, "logprobs": 0}


class ServiceProcess:
    """A service over the state in ``folder``: ``command`` and its arguments in a new process."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self.folder = folder
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @classmethod
    def rlforge_serve(cls, folder: Path, *overrides: str) -> ServiceProcess:
        """``rlforge serve`` with the tiny model."""
        state = f"serve.state_dir={folder}"
        return cls(
            folder, [sys.executable, "-m", "rlforge", "serve", *OVERRIDES, state, *overrides]
        )

    def start(self) -> None:
        """Returns once it is ready."""
        address = self.folder / "service.json"
        address.unlink(missing_ok=True)
        with (self.folder.parent / f"{self.folder.name}.out").open("ab") as out:
            self._process = subprocess.Popen(
                self._command, stdout=out, stderr=out, env=os.environ | {ADMIN_VARIABLE: TOKEN}
            )
        limit = time.monotonic() + START_S
        while time.monotonic() < limit and self._process.poll() is None:
            if address.is_file():
                self.url = json.loads(address.read_text())["url"]
                if httpx.get(f"{self.url}/ready", trust_env=False).status_code == 200:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the service did not start: see {out.name}")

    def signal(self, number: int) -> int:
        """Send a signal and wait for the end; returns the exit status."""
        assert self._process is not None
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end by itself."""
        assert self._process is not None
        return self._process.wait(120)

    def end(self) -> None:
        """Leave nothing behind, however it went."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGKILL)

    def stop(self) -> int:
        """As Ctrl-C or a supervisor does."""
        return self.signal(signal.SIGTERM)

    def ask(self, prompt: Sequence[int]) -> tuple[int, str, str]:
        """Status, version and greedy answer."""
        answer = httpx.post(
            f"{self.url}/v1/completions", json=greedy(prompt), timeout=180, trust_env=False
        )
        if answer.status_code != 200:
            return answer.status_code, "", answer.text
        body = answer.json()
        return 200, body["system_fingerprint"], body["choices"][0]["text"]

    def admin(self, path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
        """A call with the token; GET without a body."""
        answer = httpx.request(
            "GET" if body is None else "POST",
            f"{self.url}/admin/{path}",
            json=body,
            headers={"authorization": f"Bearer {TOKEN}"},
            timeout=300,
            trust_env=False,
        )
        return dict(answer.json())
