"""Samples of supervised fine-tuning: games of players, a run's own answers, and their files.

They have the tokens with which the model is asked in the game, and which it would have to sample.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rlforge.buffer.batches import read_batch, write_batch
from rlforge.config.sft import ACTION, DataConfig, SftConfig
from rlforge.engines.registry import make_engine
from rlforge.errors import RunError, counted
from rlforge.games.actions import extract
from rlforge.games.base import View
from rlforge.games.orientation import Shown, shown
from rlforge.games.prompts import Prompter
from rlforge.league.names import parse_opponent
from rlforge.models.load import load_decoder, load_tokenizer, prompt_room
from rlforge.record.files import RunPaths
from rlforge.record.game_files import GameWriter, read_games
from rlforge.rollout.collector import Collector
from rlforge.rollout.conversation import conversation_in
from rlforge.rollout.datasets import (
    AnswerEncoder,
    given_sample,
    sample_files,
    samples_of_file,
    written,
)
from rlforge.rollout.episode import Answer
from rlforge.rollout.lineup import as_played_by, train_envs
from rlforge.rollout.policies import SeatPolicies
from rlforge.rollout.schedule import derive_seed, line_up
from rlforge.samples import Sample, TrainBatch
from rlforge.system.loops import wait_for
from rlforge.types import Completion, EnvSpec, GameRecord, GameSpec, Seat, Turn, value

T = TypeVar("T")

#: Seconds between reports of how far the games are.
SAY_EVERY_S = 15.0

Say = Callable[[str], None]


@value
class Samples:
    """Training samples and held-out ones: no game and no row of a file is in both."""

    train: tuple[Sample, ...]
    validation: tuple[Sample, ...]


def load_samples(run_dir: Path) -> Samples:
    """The samples that ``make_samples`` wrote."""
    train, validation = sample_files(run_dir)
    return Samples(train=read_batch(train).samples, validation=read_batch(validation).samples)


def make_samples(config: SftConfig, run_dir: Path, say: Say) -> Samples:
    """The samples of ``config.data``, written into the run directory; RunError without any."""
    data = config.data
    tokenizer = load_tokenizer(config.model)
    encoder = AnswerEncoder(config.model, tokenizer)
    left_out: Counter[str] = Counter()
    found: list[Sample] = []
    if data.players:
        found += config.teachers.answers(config, run_dir, encoder, left_out, say)
    if data.run is not None:
        found += _of_run(Path(data.run), data, left_out)
    if data.file is not None:
        found += samples_of_file(Path(data.file), tokenizer, encoder)
    rng = random.Random(derive_seed(config.seed, "samples"))
    samples = _divided(_selected(found, config, left_out, rng), data.validation, rng)
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in left_out.items() if number)
    if not samples.train:
        raise RunError(f"no sample is left to learn from ({reasons or 'the data are empty'})")
    say(
        f"{len(samples.train):,} samples to learn from, {len(samples.validation):,} held out"
        + (f"; left out: {reasons}" if reasons else "")
    )
    train, validation = sample_files(run_dir)
    decode = load_decoder(config.model)
    write_batch(validation, batch_of(samples.validation), decode)
    # Written last, because ``has_samples`` looks for this file.
    write_batch(train, batch_of(samples.train), decode)
    return samples


def drawn(samples: Sequence[T], size: int, seed: int, number: int) -> list[T]:
    """The ``size`` samples of update ``number``, of passes in random order; the first is 1.

    Example:
        >>> sorted([*drawn("abc", 2, 0, 1), *drawn("abc", 2, 0, 2)[:1]])
        ['a', 'b', 'c']
    """
    epoch, place = divmod((number - 1) * size, len(samples))
    orders = (
        np.random.default_rng([seed, later]).permutation(len(samples))
        for later in itertools.count(epoch)
    )
    order = itertools.islice(itertools.chain.from_iterable(orders), place, place + size)
    return [samples[index] for index in order]


def batch_of(samples: Iterable[Sample]) -> TrainBatch:
    """Samples as the learner takes them."""
    return TrainBatch(samples=tuple(samples), whole_episodes=False)


# ---------------------------------------------------------------- games of players


def demonstration_games(config: SftConfig) -> list[GameSpec]:
    """The games of ``data.players``: environments by weight, all line-ups equally often."""
    envs = train_envs(config)
    players = [parse_opponent(name) for name in config.data.players]
    # Where there are enough players for all seats, no player meets itself.
    lineups = [
        itertools.cycle(
            itertools.permutations(players, env.num_players)
            if len(players) >= env.num_players
            else itertools.product(players, repeat=env.num_players)
        )
        for env in envs
    ]
    specs = []
    for number in range(config.data.games):
        rng = random.Random(derive_seed(config.seed, "data", number))
        [index] = rng.choices(range(len(envs)), [env.weight for env in envs])
        specs.append(
            GameSpec(
                game_id=f"data-{number:07d}",
                env=envs[index],
                seed=derive_seed(config.seed, "data-game", number),
                purpose="train",
                seats=line_up(envs[index], next(lineups[index]), trained_uid=None),
            )
        )
    return specs


def answers_in_games(
    config: SftConfig, run_dir: Path, encoder: AnswerEncoder, left_out: Counter[str], say: Say
) -> list[Sample]:
    """The samples of games that ``data.players`` play; the games go to disk."""
    data = config.data
    # The games alone are in an event loop, where a signal waits until the work waits.
    records, seen = wait_for(_played(config, say))
    failed = [record for record in records if record.error is not None]
    if len(failed) == len(records):
        raise RunError(f"all {len(records)} games failed; the last one: {failed[-1].error}")
    if failed:
        left_out["failed games"] += len(failed)
    if config.collector.save_games:
        for old in RunPaths(root=run_dir).games.glob("data-*.parquet"):
            # A process that was killed before the samples were complete left this file.
            old.unlink()
        writer = GameWriter(run_dir, "data")
        writer.add(records)
        writer.close()
    prompter = Prompter(encoder.tokenizer, config.prompts)
    samples = [
        sample
        for record in records
        if record.error is None
        for sample in _answers(record, seen[record.spec.game_id], config, prompter, encoder)
        if _counts(record, sample.player_id, data, left_out)
    ]
    left_out["not read as their action"] += sum(not sample.token_ids for sample in samples)
    return [sample for sample in samples if sample.token_ids]


async def _played(
    config: SftConfig, say: Say
) -> tuple[list[GameRecord], Mapping[str, Sequence[View]]]:
    """The games, and what their players saw, by game."""
    specs = demonstration_games(config)
    say(f"{', '.join(config.data.players)} play {counted(len(specs), 'game')}")
    async with _players(config) as policies:
        table = _Table(policies)
        collector = Collector(config.collector, None, table.answers)
        async with _reported(table, say):
            return await collector.evaluate(specs), table.seen


@contextlib.asynccontextmanager
async def _players(config: SftConfig) -> AsyncIterator[SeatPolicies]:
    # The run's model has no seat, so its tokenizer and engine are not loaded.
    absent: Any = None
    refs = [parse_opponent(name) for name in config.data.players]
    others = as_played_by(config, refs)
    if not others:
        yield SeatPolicies(config, absent, absent, ())
        return
    device, threads = config.hardware.device, config.hardware.threads
    engine = make_engine(config, device=device, threads=threads, others=others, own=False)
    try:
        yield SeatPolicies(config, absent, engine, (), refs)
    finally:
        await engine.close()


class _Table:
    """Notes what each player saw, of which prompts are made."""

    def __init__(self, policies: SeatPolicies) -> None:
        self._policies = policies
        self.seen: dict[str, list[View]] = {}
        self.turns = 0

    def answers(self, spec: GameSpec) -> Answer:
        answer = self._policies.for_game(spec)
        views = self.seen[spec.game_id] = []

        async def noted(seat: Seat, view: View, seed: int) -> Completion:
            views.append(view)
            completion = await answer(seat, view, seed)
            self.turns += 1
            return completion

        return noted


@contextlib.asynccontextmanager
async def _reported(table: _Table, say: Say) -> AsyncIterator[None]:
    async def report() -> None:
        while True:
            await asyncio.sleep(SAY_EVERY_S)
            say(f"{counted(table.turns, 'turn')} played")

    reporting = asyncio.create_task(report())
    try:
        yield
    finally:
        reporting.cancel()


def _answers(
    record: GameRecord,
    views: Sequence[View],
    config: SftConfig,
    prompter: Prompter,
    encoder: AnswerEncoder,
) -> Iterator[Sample]:
    """The legal answers of imitated players, in the form that the run's model is asked for."""
    env, data = record.spec.env, config.data
    room = prompt_room(config) if env.drops_turns else None
    for seat in record.spec.seats:
        if seat.policy.uid not in (data.imitate or data.players):
            continue
        chat = conversation_in(env, prompter, env.form, room)
        pairs = zip(record.turns, views, strict=True)
        own = [(turn, shown(env, view)) for turn, view in pairs if turn.player_id == seat.player_id]
        first = _first_learned(len(own), data)
        for index, (turn, asked) in enumerate(own):
            if chat is None and (index < first or not _is_good(turn)):
                continue
            # A conversation cannot go on from an answer that the model would not give.
            if not _is_good(turn):
                break
            question = None if chat is None else chat.ask(asked.view)
            prompt, ids = (
                prompter.encode(env.form, asked.view)
                if question is None
                else (question.prompt.text, question.token_ids)
            )
            tokens = encoder.answer(said(turn, env, data.answer, asked), after=prompt)
            text = encoder.text(tokens)
            # A stop token may cut the answer before its action: the sample is then left empty.
            found = extract(env.form.extraction, text, asked.view.legal_actions)
            read = asked.played(found.action) == turn.action
            if index >= first:
                yield sample_of(record, turn, index, ids, tokens if read else ())
            if chat is None or question is None:
                continue
            if not read:
                break
            chat.add(question, Completion(text=text, token_ids=tokens, finish_reason="stop"))


def said(turn: Turn, env: EnvSpec, template: str, asked: Shown) -> str:
    """The answer to learn: an API model's words where they are in the form of ``env``."""
    own = turn.completion.text.strip()
    if turn.completion.finish_reason != "scripted":
        read = extract(env.form.extraction, own, asked.view.legal_actions)
        if read.well_formed and asked.played(read.action) == turn.action:
            return own
        template = ACTION
    return written(template, env.form.extraction, asked.said(turn.action))


def sample_of(
    record: GameRecord, turn: Turn, index: int, prompt: Sequence[int], answer: Sequence[int]
) -> Sample:
    """A turn of a game as a sample; ``index``: among those of its player."""
    reward = record.rewards[turn.player_id]
    return given_sample(
        prompt,
        answer,
        origin=record.spec.game_id,
        env_id=record.spec.env_id,
        player_id=turn.player_id,
        turn_index=index,
        last_turn=False,
        observation=turn.observation,
        action=turn.action,
        raw_reward=reward,
        reward=reward,
        policy_uid=record.spec.seats[turn.player_id].policy.uid,
    )


# ---------------------------------------------------------------- a run's own games


def _of_run(run: Path, data: DataConfig, left_out: Counter[str]) -> Iterator[Sample]:
    """The answers of a run's model that ended by themselves, token by token."""
    for record in read_games(run):
        if record.error is not None:
            continue
        numbers = Counter(turn.player_id for turn in record.turns)
        turns: Counter[int] = Counter()
        for turn in record.turns:
            index, turns[turn.player_id] = turns[turn.player_id], turns[turn.player_id] + 1
            answer = turn.completion
            # Another model's tokens are of another tokenizer.
            if record.spec.seats[turn.player_id].policy.kind == "hf":
                continue
            if not answer.token_ids or not _is_good(turn) or answer.finish_reason != "stop":
                continue
            if index < _first_learned(numbers[turn.player_id], data):
                continue
            if _counts(record, turn.player_id, data, left_out):
                yield sample_of(record, turn, index, answer.prompt_token_ids, answer.token_ids)


# ---------------------------------------------------------------- selection


def _is_good(turn: Turn) -> bool:
    return turn.legal and turn.well_formed


def _first_learned(turns: int, data: DataConfig) -> int:
    return 0 if data.last_turns is None else max(0, turns - data.last_turns)


def _counts(record: GameRecord, player: int, data: DataConfig, left_out: Counter[str]) -> bool:
    counts = data.counts(record.spec.env.outcome(record.rewards, player), record.rewards[player])
    left_out["by outcome"] += not counts
    return counts


def _selected(
    samples: Iterable[Sample], config: SftConfig, left_out: Counter[str], rng: random.Random
) -> list[Sample]:
    data, longest = config.data, config.engine.max_model_len
    limit = min(longest, config.learner.max_train_len or longest)
    kept: list[Sample] = []
    known: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for sample in samples:
        pair = sample.prompt_token_ids, sample.token_ids
        if len(pair[1]) > config.engine.max_tokens or len(pair[0]) + len(pair[1]) > limit:
            left_out["too long"] += 1
        elif data.unique and pair in known:
            left_out["repeated"] += 1
        else:
            known.update([pair] if data.unique else [])
            kept.append(sample)
    if data.max_samples is not None and len(kept) > data.max_samples:
        left_out["beyond data.max_samples"] += len(kept) - data.max_samples
        kept = rng.sample(kept, data.max_samples)
    return kept


def _divided(samples: Sequence[Sample], share: float, rng: random.Random) -> Samples:
    sizes = Counter(sample.origin for sample in samples)
    held: set[str] = set()
    count, games = 0, sorted(sizes)
    rng.shuffle(games)
    # Whole games are held out: turns of one game are alike, so a single one would tell little of
    # others. One game is left to learn from.
    for game in games[1:]:
        if count + sizes[game] / 2 > share * len(samples):
            break
        held.add(game)
        count += sizes[game]
    return Samples(
        train=tuple(sample for sample in samples if sample.origin not in held),
        validation=tuple(sample for sample in samples if sample.origin in held),
    )
