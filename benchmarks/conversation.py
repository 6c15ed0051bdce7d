"""Episodes of many turns: tokens computed and time, as conversations and turn by turn.

    python benchmarks/conversation.py [--turns N] [--games N] [--layers L] [--width H] [--repeats N]

Each of ``--games`` players has ``--turns`` turns in one growing conversation: a first prompt of 200
tokens, then by turns an answer of 24 and a message of 56. The model is a Llama of random weights in
float32, the tokens are random, and both halves compute the same numbers:

- conversation: the embedded engine keeps keys and values between the turns
  (``SamplingParams.conversation``), and the learner has all turns of a player in one row.
- turn by turn: every prompt is read whole, and every turn is a row of its own, with nothing shared.

Tokens computed are those that a layer reads, padding left out: of the engine's prompts and answers,
and of the learner's rows. By turns the two halves and repeats take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import record, shown, spread
from transformers import LlamaConfig, LlamaForCausalLM

from rlforge.config.compose import compose
from rlforge.config.schema import RunConfig
from rlforge.engines.base import LocalEngine
from rlforge.engines.registry import make_engine
from rlforge.learner import make_learner
from rlforge.learner.ranks import Ranks
from rlforge.models.tiny.vocabulary import build_tokenizer
from rlforge.types import PolicyRef, SamplingParams, Step, TrainBatch

FIRST, ANSWER, MESSAGE = 200, 24, 56
BASE = PolicyRef(uid="base", kind="checkpoint")
WAYS = ("conversation", "turn by turn")


def make_model(folder: Path, layers: int, width: int) -> Path:
    """A Llama of random weights with a tokenizer, as a folder to load."""
    tokenizer = build_tokenizer([" yes", " no"])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=max(1, width // 64),
        max_position_embeddings=1 << 16,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def configured(model: Path, turns: int, games: int) -> RunConfig:
    """The configuration of engine and learner."""
    length = FIRST + turns * (ANSWER + MESSAGE)
    return compose(
        [
            "env.context=conversation",
            "model=hf",
            f"model.name={model}",
            "model.prompt_template=default",
            "engine=transformers",
            # Of the longest episodes some are kept while as many run.
            f"engine.max_parallel_seq={2 * games}",
            f"engine.max_model_len={length}",
            f"engine.max_tokens={ANSWER}",
            "rewards=none",
            "learner=default",
            "learner.mini_batch_size=null",
            "learner.share_prefixes=false",
            "hardware.device=cpu",
        ]
    ).config


@dataclasses.dataclass(frozen=True)
class Half:
    """What an engine or a learner computed of all episodes."""

    tokens: int
    seconds: float


async def play(
    engine: LocalEngine, turns: int, games: int, *, keep: bool
) -> tuple[Half, list[Step]]:
    """All episodes at the same time; the steps to learn from."""
    before, start = engine.stats(), time.perf_counter()
    episodes = await asyncio.gather(*(_episode(engine, n, turns, keep) for n in range(games)))
    seconds, after = time.perf_counter() - start, engine.stats()
    tokens = after.read_tokens - before.read_tokens
    tokens += after.generated_tokens - before.generated_tokens
    return Half(tokens=tokens, seconds=seconds), [step for steps in episodes for step in steps]


async def _episode(engine: LocalEngine, number: int, turns: int, keep: bool) -> list[Step]:
    draw = random.Random(number)
    prompt = tuple(draw.randrange(3, 40) for _ in range(FIRST))
    steps = []
    for turn in range(turns):
        params = SamplingParams(
            max_tokens=ANSWER,
            seed=1000 * number + turn,
            conversation=number if keep else None,
        )
        answer = await engine.generate(prompt, params, BASE)
        steps.append(
            Step(
                game_id=f"game-{number}",
                env_id="conversation",
                player_id=0,
                group_id=None,
                turn_index=turn,
                last_turn=turn == turns - 1,
                observation="",
                action="",
                prompt_token_ids=prompt,
                token_ids=answer.token_ids,
                logprobs=answer.logprobs,
                raw_reward=0.0,
                reward=draw.gauss(0.0, 1.0),
                policy_uid=BASE.uid,
                policy_version=0,
            )
        )
        message = tuple(draw.randrange(3, 40) for _ in range(MESSAGE))
        prompt = (*prompt, *answer.token_ids, *message)
    return steps


def learn(config: RunConfig, steps: list[Step], *, together: bool) -> tuple[Half, dict[str, float]]:
    """One update on all steps; its metrics."""
    if not together:
        steps = [dataclasses.replace(step, game_id=str(n)) for n, step in enumerate(steps)]
    learner = make_learner(config, torch.device("cpu"), Ranks())
    batch = TrainBatch(steps=tuple(steps), whole_episodes=True, min_version=0, max_version=0)
    metrics = dict(learner.update(batch).metrics)
    read = sum(len(step.prompt_token_ids) + len(step.token_ids) - 1 for step in steps)
    tokens = round(read * (1 - metrics["reused_share"]))
    return Half(tokens=tokens, seconds=metrics["seconds"]), metrics


def measure(config: RunConfig, turns: int, games: int, repeats: int) -> dict[str, Any]:
    """Tokens and seconds of both ways, and how far their log-probs are apart."""
    engine = make_engine(config, device="cpu", threads=None)
    halves: dict[str, list[tuple[Half, Half]]] = {way: [] for way in WAYS}
    gaps: list[dict[str, float]] = []
    try:
        for _ in range(repeats + 1):  # the first is not counted
            for way in WAYS:
                together = way == WAYS[0]
                played, steps = asyncio.run(play(engine, turns, games, keep=together))
                learned, metrics = learn(config, steps, together=together)
                halves[way].append((played, learned))
                if together:
                    gaps.append(metrics)
    finally:
        asyncio.run(engine.close())
    rows: dict[str, Any] = {}
    for way, runs in halves.items():
        rows[way] = {
            "engine_tokens": runs[-1][0].tokens,
            "learner_tokens": runs[-1][1].tokens,
            "engine": spread([played.seconds for played, _ in runs[1:]]),
            "learner": spread([learned.seconds for _, learned in runs[1:]]),
        }
    ours, theirs = (rows[way] for way in WAYS)
    ratios = {
        f"{half}_tokens": ours[f"{half}_tokens"] / theirs[f"{half}_tokens"]
        for half in ("engine", "learner")
    } | {
        f"{half}_seconds": ours[half]["median_s"] / theirs[half]["median_s"]
        for half in ("engine", "learner")
    }
    both = sum(ours[f"{half}_tokens"] for half in ("engine", "learner"))
    ratios["tokens"] = both / sum(theirs[f"{half}_tokens"] for half in ("engine", "learner"))
    return {
        "ways": rows,
        "ratios": ratios,
        "logprob_gap_mean": max(one["logprob_gap_mean"] for one in gaps),
        "logprob_gap_max": max(one["logprob_gap_max"] for one in gaps),
    }


def show(results: dict[str, Any]) -> None:
    """A table."""
    print(f"{'':14}{'engine tokens':>15}{'learner tokens':>16}{'engine s':>22}{'learner s':>22}")
    for way, row in results["ways"].items():
        print(
            f"{way:14}{row['engine_tokens']:>15,}{row['learner_tokens']:>16,}"
            f"{shown(row['engine'], digits=2):>22}{shown(row['learner'], digits=2):>22}"
        )
    print(
        "conversation to turn by turn: "
        + ", ".join(f"{name} {ratio:.3f}" for name, ratio in results["ratios"].items())
    )
    print(
        f"log-probs of learner and engine: mean {results['logprob_gap_mean']:.1e}, "
        f"most {results['logprob_gap_max']:.1e} apart"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Conversations against single turns.")
    parser.add_argument("--turns", type=int, default=20, help="of each player")
    parser.add_argument("--games", type=int, default=8, help="at the same time")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256, help="of the model, a multiple of 64")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.repeats < 2 or arguments.width % 64 or arguments.turns < 1:
        parser.error("--repeats: at least 2; --width: a multiple of 64; --turns: at least 1")
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder), arguments.layers, arguments.width)
        config = configured(model, arguments.turns, arguments.games)
        results = measure(config, arguments.turns, arguments.games, arguments.repeats)
    show(results)
    record("conversation", vars(arguments) | results)


if __name__ == "__main__":
    main()
