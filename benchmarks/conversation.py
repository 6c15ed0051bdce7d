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

``real_games`` are games of random legal actions, once, for their tokens alone: what a game says has
other lengths than the messages above, and ``env.context=turn``, against which they are compared,
shows no earlier answers. The tokenizer is SmolLM2's; answers are the model's own 24 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
from common import record, shown, spread
from transformers import LlamaConfig, LlamaForCausalLM

from rlforge.config.compose import compose
from rlforge.config.schema import RunConfig
from rlforge.engines.base import LocalEngine
from rlforge.engines.registry import make_engine
from rlforge.games.prompts import Prompter
from rlforge.games.registry import make_game
from rlforge.learner import make_learner
from rlforge.learner.ranks import Ranks
from rlforge.models.load import load_tokenizer
from rlforge.models.tiny.vocabulary import build_tokenizer
from rlforge.rollout.conversation import Conversation
from rlforge.samples import Sample, TrainBatch
from rlforge.types import Completion, EnvSpec, Form, PolicyRef, SamplingParams

FIRST, ANSWER, MESSAGE = 200, 24, 56
BASE = PolicyRef(uid="base", kind="checkpoint")
WAYS = ("conversation", "turn by turn")
REAL_GAMES = (
    EnvSpec(id="ConnectFour-v0-train"),
    EnvSpec(id="KuhnPoker-v0-long-train"),
    EnvSpec(id="SimpleTak-v0-train"),
    EnvSpec(id="connect_four", source="openspiel"),
    EnvSpec(id="goofspiel", source="openspiel"),
)
#: Overrides of the ways to play real games.
REAL_WAYS: dict[str, list[str]] = {
    "conversation": ["engine.cache_tokens=null", "learner.share_prefixes=false"],
    "turn by turn, nothing shared": ["engine.cache_tokens=0", "learner.share_prefixes=false"],
    "turn by turn": ["engine.cache_tokens=null", "learner.share_prefixes=true"],
}


def make_model(folder: Path, layers: int, width: int, tokenizer: Any) -> Path:
    """A Llama of random weights with ``tokenizer``, as a folder to load."""
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


def configured(model: Path, length: int, games: int, *overrides: str) -> RunConfig:
    """The configuration of engine and learner; length: tokens of the longest episode."""
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
            *overrides,
        ]
    ).config


@dataclasses.dataclass(frozen=True)
class Half:
    """What an engine or a learner computed of all episodes."""

    tokens: int
    seconds: float


async def play(
    engine: LocalEngine, turns: int, games: int, *, keep: bool
) -> tuple[Half, list[Sample]]:
    """All episodes at the same time; the samples to learn from."""
    before, start = engine.stats(), time.perf_counter()
    episodes = await asyncio.gather(*(_episode(engine, n, turns, keep) for n in range(games)))
    seconds, after = time.perf_counter() - start, engine.stats()
    tokens = after.read_tokens - before.read_tokens
    tokens += after.generated_tokens - before.generated_tokens
    return Half(tokens=tokens, seconds=seconds), [one for own in episodes for one in own]


async def _episode(engine: LocalEngine, number: int, turns: int, keep: bool) -> list[Sample]:
    draw = Random(number)
    prompt = tuple(draw.randrange(3, 40) for _ in range(FIRST))
    samples = []
    for turn in range(turns):
        params = SamplingParams(
            max_tokens=ANSWER, seed=1000 * number + turn, conversation=number if keep else None
        )
        answer = await engine.generate(prompt, params, BASE)
        sample = _step(number, 0, turn, prompt, answer, draw)
        samples.append(dataclasses.replace(sample, last_turn=turn == turns - 1))
        message = tuple(draw.randrange(3, 40) for _ in range(MESSAGE))
        prompt = (*prompt, *answer.token_ids, *message)
    return samples


def _step(
    game: int, player: int, turn: int, prompt: tuple[int, ...], answer: Completion, draw: Random
) -> Sample:
    return Sample(
        origin=f"game-{game}",
        env_id="conversation",
        player_id=player,
        group_id=None,
        turn_index=turn,
        last_turn=False,
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


def learn(
    config: RunConfig, samples: list[Sample], *, together: bool
) -> tuple[Half, dict[str, float]]:
    """One update on all samples; its metrics."""
    if not together:
        samples = [dataclasses.replace(sample, origin=str(n)) for n, sample in enumerate(samples)]
    learner = make_learner(config, torch.device("cpu"), Ranks())
    batch = TrainBatch(samples=tuple(samples), whole_episodes=True)
    metrics = dict(learner.update(batch).metrics)
    read = sum(len(sample.prompt_token_ids) + len(sample.token_ids) - 1 for sample in samples)
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
                played, samples = asyncio.run(play(engine, turns, games, keep=together))
                learned, metrics = learn(config, samples, together=together)
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


def measure_real(folder: Path, layers: int, width: int, games: int) -> list[dict[str, Any]]:
    """Of each real game the tokens computed in each way, and their ratio to the first way's."""
    tokenizer = load_tokenizer(compose(["model=smollm2_135m"]).config.model)
    model = make_model(folder, layers, width, tokenizer)
    rows = []
    for env in REAL_GAMES:
        row: dict[str, Any] = {"game": env.id}
        for way, overrides in REAL_WAYS.items():
            config = configured(model, 1 << 13, 2 * games, *overrides)
            prompter = Prompter(tokenizer)
            engine = make_engine(config, device="cpu", threads=None)
            try:
                together = way == "conversation"
                played, samples = asyncio.run(
                    _play_real(engine, prompter, env, games, together=together)
                )
            finally:
                asyncio.run(engine.close())
            learned, _ = learn(config, samples, together=together)
            row["turns_of_a_player"] = len(samples) / (2 * games)
            row[way] = {"engine_tokens": played, "learner_tokens": learned.tokens}
        ours = sum(row["conversation"].values())
        for way in [*REAL_WAYS][1:]:
            row[f"ratio to {way}"] = ours / sum(row[way].values())
        rows.append(row)
    return rows


async def _play_real(
    engine: LocalEngine, prompter: Prompter, env: EnvSpec, games: int, *, together: bool
) -> tuple[int, list[Sample]]:
    """Random games at the same time: the tokens that the engine computed, and the samples."""
    before = engine.stats()
    played = await asyncio.gather(
        *(_real_game(engine, prompter, env, number, together) for number in range(games))
    )
    after = engine.stats()
    tokens = after.read_tokens - before.read_tokens
    tokens += after.generated_tokens - before.generated_tokens
    return tokens, [sample for samples in played for sample in samples]


async def _real_game(
    engine: LocalEngine, prompter: Prompter, env: EnvSpec, number: int, together: bool
) -> list[Sample]:
    game, draw, samples = make_game(env, number), Random(number), []
    chats = [Conversation(prompter, Form()) for _ in range(2)]
    while not game.done:
        view = game.view()
        player = view.player_id
        turn = sum(sample.player_id == player for sample in samples)
        params = SamplingParams(
            max_tokens=ANSWER,
            seed=1000 * number + len(samples),
            conversation=2 * number + player if together else None,
        )
        question = chats[player].ask(view) if together else None
        prompt = question.token_ids if question else prompter.encode(Form(), view)[1]
        answer = await engine.generate(prompt, params, BASE)
        if question:
            chats[player].add(question, answer)
        samples.append(_step(number, player, turn, prompt, answer, draw))
        game.step(draw.choice(view.legal_actions or ()))
    return samples


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
    for row in results["real_games"]:
        ratios = ", ".join(f"{row[f'ratio to {way}']:.3f} of {way}" for way in [*REAL_WAYS][1:])
        print(f"{row['game']}, {row['turns_of_a_player']:.1f} turns a player: {ratios}")


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
        tokenizer = build_tokenizer([" yes", " no"])
        model = make_model(Path(folder), arguments.layers, arguments.width, tokenizer)
        length = FIRST + arguments.turns * (ANSWER + MESSAGE)
        config = configured(model, length, arguments.games)
        results = measure(config, arguments.turns, arguments.games, arguments.repeats)
        other = Path(folder) / "real"
        real = measure_real(other, arguments.layers, arguments.width, arguments.games)
        results["real_games"] = real
    show(results)
    record("conversation", vars(arguments) | results)


if __name__ == "__main__":
    main()
