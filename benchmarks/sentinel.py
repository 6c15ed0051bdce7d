"""How soon the sentinel names collapses that are planted, and how often it is wrong.

    python benchmarks/sentinel.py [--seeds N] [--updates N] [--planted N]

Self-play at Kuhn poker with ``+experiment=kuhn_grpo`` and the real learner. Games are drawn from
the policy's own table (``rlforge.lab.exact.table``) instead of by an engine, where illegal answers
are the tokens of other actions; half of the groups are played against a former version. Every five
updates come an exact measure and 200 games against the start. Collapses are planted at the middle
of shorter runs:

- handicap: the second seat is paid a chip less;
- rate: the learning rate times 10;
- entropy: the magnet that holds the entropy up is switched off, and the learning rate times 3;
- sign: the second seat learns from the negative of its rewards;
- pool: no former versions any more, and no magnet.

The figures are the updates from the planting to the first alarm, by which signal, and the alarms of
runs in which nothing was planted.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pyspiel
import torch
from common import record

from rlforge.config.compose import compose
from rlforge.config.schema import RunConfig
from rlforge.games.openspiel import action_numbers, load_game
from rlforge.lab.exact.table import Answer, Questions
from rlforge.lab.sentinel.signals import Sentinel
from rlforge.learner import make_learner
from rlforge.learner.ranks import Ranks
from rlforge.models.load import load_tokenizer, resolve_model
from rlforge.record.results import Alarm
from rlforge.rollout.lineup import train_envs
from rlforge.samples import Sample, TrainBatch, UpdateResult
from rlforge.types import EvalResult, PolicyRef

EVERY, GAMES, GROUP = 5, 200, 8
#: Updates between versions that stay as opponents.
SPACING = 10
Row = list[tuple[str | None, Answer, float]]
Table = dict[str, Row]
"""Of each decision, by its key: its answers, each with its action and log-prob.

The action is None for an answer that is illegal there.
"""


class Kuhn:
    """Self-play at Kuhn poker, one update at a time, and its sentinel."""

    def __init__(self, seed: int, updates: int, *overrides: str) -> None:
        self._seed, self._updates = seed, updates
        config = self._composed(*overrides)
        resolve_model(config.model)
        (env,) = train_envs(config)
        tokenizer = load_tokenizer(config.model)
        self._questions = Questions(env, config, tokenizer)
        asked = self._questions
        #: The key of the decision, the action, and the answer: legal ones, then illegal ones.
        self._rows = [(*at, answer) for at, answer in zip(asked.owners, asked.answers, strict=True)]
        self._rows += _illegal_answers(asked, tokenizer)
        self._game, self._env_id = load_game(env.id), env.id
        self._groups = round(config.learner.batch_size / (2.2 * GROUP))
        self._random = random.Random(seed)
        self._learner = make_learner(config, torch.device("cpu"), Ranks())
        self._past = [self._table()[0]]
        self.former = 0.5  # share of groups against a former version
        self.handicap, self.sign = 0.0, 1.0
        self.sentinel = Sentinel(config.sentinel)
        self._games_with_past, self._points = 0, 0.0

    def change(self, *overrides: str) -> None:
        """Go on under another configuration."""
        state = self._learner.state_dict()
        config = self._composed(*overrides)
        self._learner = make_learner(config, torch.device("cpu"), Ranks())
        self._learner.load_state_dict(state)

    def faster(self, factor: float) -> None:
        """Multiply the learning rate."""
        self._learner.take_smaller_steps(factor)

    def update(self) -> list[Alarm]:
        """One update; what the sentinel noticed."""
        table, logprobs = self._table()
        version = self._learner.version
        alarms = []
        if version % EVERY == 0:
            uid = f"step-{version}"
            policy = PolicyRef(uid=uid, kind="checkpoint", version=version)
            alarms += self.sentinel.measured(self._questions.measure(logprobs, policy))
            alarms += self.sentinel.evaluated(self._against_start(table, version))
        samples = [sample for group in range(self._groups) for sample in self._group(group, table)]
        if version % SPACING == 0:
            self._past.append(table)
        batch = TrainBatch(samples=tuple(samples), whole_episodes=True)
        result: UpdateResult = self._learner.update(batch)
        alarms += self.sentinel.learned(result.version, result.metrics)
        alarms += self.sentinel.met_past(result.version, self._games_with_past, self._points)
        return alarms

    def _composed(self, *overrides: str) -> RunConfig:
        lines = ["+experiment=kuhn_grpo", f"seed={self._seed}"]
        lines += [f"learner.total_updates={self._updates}", "learner.schedule=constant"]
        return compose([*lines, *overrides]).config

    def _table(self) -> tuple[Table, list[float]]:
        """The policy as a table, and the log-probs of all legal answers."""
        pairs = [(answer.prompt, answer.tokens) for _, _, answer in self._rows]
        logprobs = self._learner.answer_logprobs(pairs)
        table: Table = {}
        for (key, action, answer), logprob in zip(self._rows, logprobs, strict=True):
            table.setdefault(key, []).append((action, answer, logprob))
        return table, logprobs[: len(self._questions.answers)]

    def _group(self, group: int, table: Table) -> list[Sample]:
        """The samples of the current version in games from one deal."""
        dealt, version = self._dealt(), self._learner.version
        rivals = [table, table]
        if len(self._past) > 1 and self._random.random() < self.former:
            rivals[self._random.randrange(2)] = self._random.choice(self._past[:-1])
        samples = []
        for number in range(GROUP):
            turns, rewards = self._play(dealt.clone(), rivals)
            if rivals[0] is not rivals[1]:
                own = 0 if rivals[0] is table else 1
                self._games_with_past += 1
                self._points += float(rewards[own] > 0)
            for seat in (0, 1):
                own_turns = [turn for turn in turns if turn[0] == seat]
                if rivals[seat] is not table:
                    continue
                paid = rewards[seat] - self.handicap * seat
                for index, (_, answer, logprob) in enumerate(own_turns):
                    samples.append(
                        Sample(
                            origin=f"{version}-{group}-{number}",
                            env_id=self._env_id,
                            player_id=seat,
                            group_id=f"{version}-{group}",
                            turn_index=index,
                            last_turn=index == len(own_turns) - 1,
                            observation="",
                            action="",
                            prompt_token_ids=answer.prompt,
                            token_ids=answer.tokens,
                            logprobs=(logprob, *(0.0,) * (len(answer.tokens) - 1)),
                            raw_reward=paid,
                            reward=paid * (self.sign if seat else 1.0),
                            policy_uid=f"step-{version}",
                            policy_version=version,
                        )
                    )
        return samples

    def _dealt(self) -> pyspiel.State:
        state = self._game.new_initial_state()
        while state.is_chance_node():
            actions, chances = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(self._random.choices(actions, chances)[0])
        return state

    def _play(
        self, state: pyspiel.State, tables: Sequence[Table]
    ) -> tuple[list[tuple[int, Answer, float]], list[float]]:
        """Turns as (seat, answer, log-prob), and the rewards of both seats."""
        turns = []
        while not state.is_terminal():
            seat = state.current_player()
            row = tables[seat][self._questions.game.key(state)]
            weights = [math.exp(logprob) for _, _, logprob in row]
            action, answer, logprob = self._random.choices(row, weights)[0]
            turns.append((seat, answer, logprob))
            if action is None:  # forfeits, as in rlforge.games.openspiel
                least = self._game.min_utility()
                return turns, [least if seat == loser else -least for loser in (0, 1)]
            state.apply_action(action_numbers(state, "words")[action])
        return turns, list(state.returns())

    def _against_start(self, table: Table, version: int) -> EvalResult:
        wins = 0
        for game in range(GAMES):
            own = game % 2
            tables = [self._past[0], self._past[0]]
            tables[own] = table
            wins += self._play(self._dealt(), tables)[1][own] > 0
        return EvalResult(
            step=version,
            env_id=self._env_id,
            opponent="base",
            policy_uid=f"step-{version}",
            games=GAMES,
            wins=wins,
            draws=0,
            losses=GAMES - wins,
            win_rate=wins / GAMES,
            ci95=(0.0, 1.0),
            mean_reward=0.0,
            invalid_rate=0.0,
        )


def _illegal_answers(asked: Questions, tokenizer: Any) -> list[tuple[str, None, Answer]]:
    """At each decision the tokens that are an action in brackets, and none of its own."""
    actions = [number for token, number in tokenizer.get_vocab().items() if token.endswith("]")]
    legal: dict[str, set[tuple[int, ...]]] = {}
    prompts: dict[str, tuple[int, ...]] = {}
    for (key, _), answer in zip(asked.owners, asked.answers, strict=True):
        legal.setdefault(key, set()).add(answer.tokens)
        prompts[key] = answer.prompt
    return [
        (key, None, Answer(prompt=prompts[key], tokens=(number,)))
        for key in legal
        for number in sorted(actions)
        if (number,) not in legal[key]
    ]


def handicap(run: Kuhn) -> None:
    run.handicap = 1.0


def rate(run: Kuhn) -> None:
    run.faster(10.0)


def entropy(run: Kuhn) -> None:
    run.change("algorithm.kl.coef=0")
    run.faster(3.0)


def sign(run: Kuhn) -> None:
    run.sign = -1.0


def pool(run: Kuhn) -> None:
    run.former = 0.0
    run.change("algorithm.kl.coef=0")


PLANTED: dict[str, Callable[[Kuhn], None]] = {
    "handicap": handicap,
    "rate": rate,
    "entropy": entropy,
    "sign": sign,
    "pool": pool,
}


def planted(name: str, seed: int, updates: int) -> dict[str, Any]:
    """Updates until the sentinel names the collapse ``name``, and the signal; alarms before it."""
    run = Kuhn(seed, updates)
    before = [alarm for _ in range(updates // 2) for alarm in run.update()]
    PLANTED[name](run)
    for update in range(1, updates // 2 + 1):
        if alarms := run.update():
            return {"updates": update, "signal": alarms[0].signal, "before": len(before)}
    return {"updates": None, "signal": None, "before": len(before)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Planted collapses, and false alarms.")
    parser.add_argument("--seeds", type=int, default=6, help="of runs without a collapse")
    parser.add_argument("--updates", type=int, default=1024, help="of such a run")
    parser.add_argument("--planted", type=int, default=160, help="updates of a run with a collapse")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {}
    for name in PLANTED:
        found[name] = planted(name, 0, arguments.planted)
        print(name, found[name], flush=True)
    false: list[list[str]] = []
    for seed in range(arguments.seeds):
        run = Kuhn(seed, arguments.updates)
        alarms = [alarm for _ in range(arguments.updates) for alarm in run.update()]
        false.append([alarm.text for alarm in alarms])
        print(f"seed {seed}:", false[-1] or "no alarm", flush=True)
    named = sum(one["updates"] is not None and one["updates"] <= 20 for one in found.values())
    record(
        "sentinel",
        {
            "planted": found,
            "named_within_20": named,
            "runs": len(false),
            "updates": arguments.updates,
            "runs_with_false_alarms": sum(map(bool, false)),
            "false_alarms": [text for texts in false for text in texts],
        },
    )


if __name__ == "__main__":
    main()
