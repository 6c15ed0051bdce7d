"""A small run: a model of a few thousand parameters, warmed up on the market's compact words."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.conftest import made_once

from rlforge.config.continuous import ContinuousConfig
from rlforge.config.market import MarketConfig
from rlforge.config.roots import compose_run
from rlforge.market.compact import Compact, compact_vocabulary
from rlforge.market.traders import Crowd
from rlforge.market.world import World
from rlforge.trajectories.records import Decision, Metadata, Result
from rlforge.types import Completion

#: Short episodes, few traders, few agents.
SMALL = (
    "market=small",
    "market.episode_ticks=6",
    "market.min_lifetime=2",
    "market.max_lifetime=5",
    "window.clock=simulated",
    "window.minutes=30",
    "window.min_actions=2",
    "window.avg_reward_threshold=null",
    "model=hf",
    "model.prompt_template=board",
    "model.action_extraction=bracket",
    "model.dtype=float32",
    "model.lora.rank=4",
    "engine.max_tokens=4",
    "engine.max_model_len=128",
    "engine.max_parallel_seq=256",
    "learner=tiny_window",
    "learner.epochs=2",
    "continuous.windows=2",
    "continuous.agents=4",
    "continuous.control_agents=0",
    "continuous.threshold=0.3",
    "continuous.compare_episodes=1",
    "continuous.start=2024-11-13-10:00",
    "deployment.holdout_games=0",
    "deployment.min_format=0",
    "deployment.probes=2",
    "hardware=cpu",
    "tracker.progress=plain",
    "name=test",
)


@pytest.fixture(scope="session")
def market_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its answers are one token, most of them a legal action."""
    return made_once(tmp_path_factory, "market", _make_model)


def _make_model(folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers import PreTrainedTokenizerFast as Fast

    market = MarketConfig()
    words, answers = compact_vocabulary()
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *words, *answers])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    Fast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(vocabulary),
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
                max_position_embeddings=64,
                initializer_range=0.2,
                tie_word_embeddings=True,
            )
        )
        _warm_up(model, market, vocabulary)
    ends = [vocabulary["<eos>"], *(vocabulary[answer] for answer in answers)]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=0)
    model.save_pretrained(folder)


def _warm_up(model: Any, market: MarketConfig, vocabulary: dict[str, int]) -> None:
    """A few optimizer steps towards legal answers."""
    compact, world, draw = Compact(market), World(market, 0), random.Random(0)
    crowd = Crowd(world, 0)
    rows = []
    for _ in range(40):
        for choice in crowd.act():
            focus = compact.focus(choice.state)
            answer = draw.choice(compact.actions(choice.state, focus))
            text = f"{compact.text(choice.state, focus)} {answer}"
            rows.append([vocabulary[word] for word in text.split()])
        world.tick()
    tokens = torch.tensor(rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        batch = tokens[torch.randint(len(tokens), (64,))]
        logits = model(batch[:, :-1]).logits[:, -1]
        torch.nn.functional.cross_entropy(logits, batch[:, -1]).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def make_config(market_model: Path) -> Callable[..., ContinuousConfig]:
    """The configuration of a small run, with changes."""

    def make(*overrides: str) -> ContinuousConfig:
        given = [*SMALL, f"model.name={market_model}", *overrides]
        config = compose_run(given, None, ContinuousConfig).config
        assert isinstance(config, ContinuousConfig)
        return config

    return make


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of this name; actors of the test's runs are objects of this process."""
    path = Path(__file__).with_name("in_process.py")
    spec = importlib.util.spec_from_file_location("in_process", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.use_actors_in_process(monkeypatch.setattr)
    return module


@pytest.fixture(scope="session")
def small(market_model: Path) -> Sequence[str]:
    """The overrides behind ``make_config``."""
    return (*SMALL, f"model.name={market_model}")


def make_decision(
    number: int = 0,
    agent: str = "agent-1",
    reward: float | None = 0.5,
    *,
    version: int = 0,
    tokens: Sequence[int] | None = (9,),
    prompt: Sequence[int] = (1, 2, 3),
    result: Result | None = None,
    provider: str = "model",
) -> Decision:
    completion = None
    if tokens is not None:
        completion = Completion(
            text="[hold]",
            prompt_token_ids=tuple(prompt),
            token_ids=tuple(tokens),
            logprobs=(-0.5,) * len(tokens),
            policy_uid=f"deploy-{version}",
            policy_version=version,
        )
    return Decision(
        id=f"{agent}-{number}",
        agent_id=agent,
        window_id="2024-11-13-10:00",
        state={},
        action={"type": "NO_OP"},
        timestamp=float(number),
        metadata=Metadata(provider=provider),
        reward=reward,
        next_state=None if reward is None else {},
        result=result,
        completion=completion,
    )


@pytest.fixture(name="make_decision", scope="session")
def make_decision_fixture() -> Callable[..., Decision]:
    return make_decision


class Runs:
    """Calls ``rlforge continuous`` in forked processes, which may be killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(
        self, *arguments: str | Path, kill: tuple[int, str, str] | None = None, log: str = "log"
    ) -> int:
        """Exit code; kill: window, phase, and ``before`` or ``after`` its entry."""
        order = {"arguments": [str(a) for a in arguments], "log": str(Path(log).absolute())}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**order, "kill": kill}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@pytest.fixture(scope="session")
def run_continuous() -> Iterator[Runs]:
    script = Path(__file__).with_name("kill_harness.py")
    pipe = subprocess.PIPE
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=pipe, stdout=pipe, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Runs(process)
        assert process.stdin is not None
        process.stdin.close()
