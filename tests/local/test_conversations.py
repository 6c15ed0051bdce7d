"""Whole games as conversations: a small real Llama, its engine and its learner in this process."""

import asyncio
import dataclasses
from itertools import pairwise

import pytest
import torch
from tests.factories import batch, game_spec

from rlforge.config.compose import compose
from rlforge.learner import make_learner
from rlforge.learner.ranks import Ranks
from rlforge.local.policies import seat_policies
from rlforge.models.load import load_base_model
from rlforge.record.metrics import Metrics, put_game
from rlforge.rewards import RewardPipeline
from rlforge.rollout.episode import play_game
from rlforge.rollout.lineup import train_envs
from rlforge.rollout.schedule import line_up
from rlforge.types import PolicyRef

GAMES = 6


@pytest.fixture(scope="module")
def config(small_model):
    model = ["model=hf", f"model.name={small_model}", "model.prompt_template=default"]
    given = [
        *("env=tictactoe", "env.context=conversation", *model, "model.action_extraction=raw"),
        *("engine.max_tokens=6", "engine.max_model_len=2048", "rewards=none", "learner=default"),
        *("learner.mini_batch_size=null", "hardware.device=cpu", "hardware.threads=1"),
    ]
    return compose(given).config


@pytest.fixture(scope="module")
def records(config):
    """Games of the untrained model against itself, all at the same time."""
    [env] = train_envs(config)
    base = PolicyRef(uid="step-0", kind="checkpoint")

    async def play():
        async with seat_policies(config, [base], lambda text: None) as seats:
            line = line_up(env, [base, base], trained_uid="step-0")
            specs = [game_spec(f"g{n}", env, line, seed=n) for n in range(GAMES)]
            return await asyncio.gather(*(play_game(one, seats.for_game(one)) for one in specs))

    return asyncio.run(play())


def seats_of(records):
    for record in records:
        assert record.error is None
        for player in (0, 1):
            turns = [turn for turn in record.turns if turn.player_id == player]
            if turns:
                yield [turn.completion for turn in turns]


def test_every_prompt_continues_the_seats_last_prompt_and_answer(records):
    longer = 0
    for answers in seats_of(records):
        for before, after in pairwise(answers):
            known = before.prompt_token_ids + before.token_ids
            assert after.prompt_token_ids[: len(known)] == known
            longer += 1
    assert longer >= GAMES


def test_recorded_logprobs_are_those_of_plain_transformers_on_the_whole_conversation(
    config, records
):
    model = load_base_model(config.model, torch.device("cpu"), torch.float32).eval()
    gaps = []
    for answers in seats_of(records):
        ids = torch.tensor([answers[-1].prompt_token_ids + answers[-1].token_ids])
        with torch.no_grad():
            table = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1)
        expected = table.gather(-1, ids[0, 1:, None]).squeeze(-1)
        for answer in answers:
            begin = len(answer.prompt_token_ids) - 1
            got = torch.tensor(answer.logprobs)
            gaps.append((got - expected[begin : begin + len(got)]).abs())
    gap = torch.cat(gaps)
    assert gap.mean() <= 1e-5
    assert gap.max() <= 1e-3


def test_the_learner_computes_each_token_of_a_conversation_once_and_agrees_with_the_engine(
    config, records
):
    pipeline = RewardPipeline(config.rewards)
    steps = [
        sample for record in records for episode in pipeline.shape(record) for sample in episode
    ]
    learner = make_learner(config, torch.device("cpu"), Ranks())
    metrics = learner.update(batch(steps, whole_episodes=True)).metrics
    assert metrics["logprob_gap_mean"] <= 1e-5
    assert metrics["logprob_gap_max"] <= 1e-3
    apart = sum(len(one.prompt_token_ids) + len(one.token_ids) - 1 for one in steps)
    whole = sum(
        len(answers[-1].prompt_token_ids) + len(answers[-1].token_ids) - 1
        for answers in seats_of(records)
    )
    assert 1 - metrics["reused_share"] <= whole / apart + 1e-9


def test_a_history_that_is_written_anew_is_counted(records):
    """An answer function that leaves out the first token stands for a template that forgets."""
    shares = []
    for forget in (False, True):
        metrics = Metrics(window=1000)
        for record in records:
            completions = iter([turn.completion for turn in record.turns])

            async def again(seat, view, seed, completions=completions, forget=forget):
                answer = next(completions)
                ids = answer.prompt_token_ids
                marked = (len(ids), *ids) if forget else ids
                return dataclasses.replace(answer, prompt_token_ids=marked)

            put_game(metrics, asyncio.run(play_game(record.spec, again)))
        shares.append(metrics.means()["collection-TicTacToe-v0-train/history_cut_rate"])
    assert shares == [0.0, 1.0]
