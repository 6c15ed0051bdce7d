"""Conditions of what is played: games, answers, seats, opponents, evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rlforge.config.per_policy import policy_names
from rlforge.record import remedies
from rlforge.record.conditions import condition, of_all, weight_of
from rlforge.record.remedies import Change
from rlforge.record.signals import SPAN, Condition, Finding, Seen
from rlforge.types import EvalResult

#: Standard errors by which an evaluation is below the start.
_SURE = 2.0
#: Least games from which shares of games are taken.
_GAMES = 16
#: Environments that a sentence names.
_NAMED = 2

What = Callable[[Seen, str], tuple[str, str, Change]]
#: Conditions of games that end before they are decided, or by the first answer.
_UNDECIDED = ("equal_rewards", "no_advantage", "one_seat", "no_batch")


def share_of(
    of: Literal["games", "answers"],
    about: str,
    threshold: float,
    name: str,
    *,
    inverse: bool = False,
    lasting: bool = False,
    **shown: Any,
) -> Callable[[What], Condition]:
    """A condition of the environments where it holds for a share of the games, or of the answers.

    It is made of what returns the end of the sentence, the mend and the change, by environment.

    Args:
        name: Figure of its training games.
        inverse: The share is 1 less the figure.
        lasting: Once it holds for all, it does so to the end.
        shown: Further fields of the ``Condition``.
    """

    def made(what: What) -> Condition:
        def check(seen: Seen, threshold: float) -> Finding | None:
            found = {env: 1 - x if inverse else x for env, x in seen.of_games(name)}
            over = {env: x for env, x in found.items() if x >= threshold}
            played = seen.now("games") or 0
            if of == "games":
                played += seen.now("failed_games") or 0
            if not over or played < _GAMES:
                return None
            named = {env: what(seen, env) for env in sorted(over, key=lambda env: -over[env])}
            # What holds in one environment of several leaves the others to learn from.
            least = min(found.get(entry.id, 0.0) for entry in seen.config.env.train)
            return Finding(
                text=_sentence(of, [(env, over[env], end) for env, (end, _, _) in named.items()]),
                mend=next(mend for _, mend, _ in named.values()),
                weight=weight_of(least, lasting=lasting),
                change={key: new for _, _, change in named.values() for key, new in change.items()},
            )

        return Condition(about, threshold, (f"*/{name}",), check, **shown)

    return made


def _sentence(of: str, named: Sequence[tuple[str, float, str]]) -> str:
    """Two environments of ``named``, with the share and the end of each, and how many more."""
    at = "of" if of == "games" else "in"
    alike: dict[tuple[str, str], list[str]] = {}
    for env, share, end in named[:_NAMED]:
        alike.setdefault((of_all(share), end), []).append(env)
    clauses = [
        f"{share} {of} {at} {' and '.join(envs)} {end}" for (share, end), envs in alike.items()
    ]
    more = len(named) - _NAMED
    return ", and ".join(clauses) + (f", and {more} more" if more > 0 else "")


@share_of(
    "games",
    "share of games cut by max_turns",
    0.5,
    "turn_limit_rate",
    lasting=True,
    explains=_UNDECIDED,
    games=lambda game: game.end_reason == "turn_limit",
)
def turn_limit(seen: Seen, env: str) -> tuple[str, str, Change]:
    limits = {entry.max_turns for entry in seen.config.env.train if entry.id == env}
    at = f"max_turns={limits.pop()}" if len(limits) == 1 else "their turn limit"
    return f"are cut at {at}", "raise max_turns in env.train", remedies.turns(seen.config, env)


@share_of(
    "games",
    "share of games cut by timeout_s",
    0.5,
    "timeout_rate",
    explains=_UNDECIDED,
    games=lambda game: game.end_reason == "timeout",
)
def time_limit(seen: Seen, env: str) -> tuple[str, str, Change]:
    limits = {entry.timeout_s for entry in seen.config.env.train if entry.id == env}
    at = f"timeout_s={limits.pop():g}" if len(limits) == 1 else "their time limit"
    return (
        f"are cut at {at}",
        "raise timeout_s in env.train, or play fewer games at once (collector.num_train_workers)",
        remedies.seconds(seen.config, env),
    )


@share_of(
    "games",
    "share of games that exceed the context",
    0.5,
    "context_limit_rate",
    lasting=True,
    explains=_UNDECIDED,
    games=lambda game: game.end_reason == "context_limit",
)
def context_limit(seen: Seen, env: str) -> tuple[str, str, Change]:
    return (
        "end because the conversation exceeds "
        f"engine.max_model_len={seen.config.engine.max_model_len}",
        "raise engine.max_model_len, or set env.context=turn or env.overflow=drop_oldest",
        remedies.conversations(seen.config),
    )


@share_of(
    "games",
    "share of games that fail",
    0.25,
    "failed_rate",
    lasting=True,
    explains=_UNDECIDED,
    games=lambda game: game.error is not None,
)
def failed_games(seen: Seen, env: str) -> tuple[str, str, Change]:
    return "fail", "logs/collector-0.log names the error", {}


@share_of(
    "answers",
    "share of answers cut by engine.max_tokens",
    0.5,
    "truncated_rate",
    explains=("format", "illegal_moves", *_UNDECIDED),
    turns=lambda turn: turn.completion.finish_reason == "length",
)
def cut_answers(seen: Seen, env: str) -> tuple[str, str, Change]:
    tokens = seen.config.engine.max_tokens
    return (
        f"are cut at engine.max_tokens={tokens}",
        "raise engine.max_tokens",
        remedies.answers(seen.config),
    )


@share_of(
    "answers",
    "share of answers that are not in the form",
    0.9,
    "format_success",
    inverse=True,
    explains=("illegal_moves", *_UNDECIDED),
    turns=lambda turn: not turn.well_formed,
)
def format(seen: Seen, env: str) -> tuple[str, str, Change]:
    return (
        f"are not in the form that model.action_extraction={seen.config.model.action_extraction} "
        "reads",
        f"does model.prompt_template={seen.config.model.prompt_template} fit the model? "
        "`rlforge replay` shows answers; `rlforge sft` teaches the form",
        {},
    )


@share_of(
    "answers",
    "share of illegal moves",
    0.9,
    "invalid_rate",
    explains=_UNDECIDED,
    turns=lambda turn: not turn.legal,
)
def illegal_moves(seen: Seen, env: str) -> tuple[str, str, Change]:
    return (
        "are no legal moves",
        "a prompt that lists them (model.prompt_template) or `rlforge sft` helps",
        {},
    )


@condition("games that end without a batch, as a multiple of its samples", 2.0, games="any")
def no_batch(seen: Seen, threshold: float) -> Finding | None:
    games, samples = seen.now("games_without_batch"), seen.now("buffer_size")
    if not games or games < threshold * seen.batch_games:
        return None
    # Dynamic sampling leaves samples out for a time.
    none = samples == 0 and not getattr(seen.config.algorithm, "dynamic_sampling", False)
    return Finding(
        text=f"{games:.0f} games have ended "
        f"{'and none gave a sample' if none else 'without a batch'} to learn from",
        mend="`rlforge replay RUN` shows them; seats of policies, rewards and "
        "collector.filter_opponent_invalid say what is learned from",
        weight="final" if none else "slow",
    )


@condition("share of one seat", 0.99, "seat_share_max")
def one_seat(seen: Seen, threshold: float) -> Finding | None:
    share = seen.now("seat_share_max")
    several = any(entry.num_players > 1 for entry in seen.config.env.train)
    # Of several policies each may have a seat of its own.
    if share is None or share < threshold or not several or len(policy_names(seen.config)) > 1:
        return None
    return Finding(
        text=f"{of_all(share)} samples are of one seat: the policy does not learn the others",
        mend="leave the seats of policies out, so that it plays all",
        change=remedies.seats(seen.config),
    )


@condition("share of games against one opponent", 0.99, "opponent_share_max")
def one_opponent(seen: Seen, threshold: float) -> Finding | None:
    pool, share = seen.config.pool, seen.now("opponent_share_max")
    if share is None or share < threshold:
        return None
    # A run that asks for one opponent has what it asks for; at the start a pool has one version.
    asked = pool.mode == "mirror" or (pool.mode == "fixed" and len(pool.fixed_opponents) == 1)
    if asked or seen.step < SPAN:
        return None
    return Finding(
        text=f"{of_all(share)} games are against one opponent",
        mend=f"pool.mode={pool.mode} weighs it most; `rlforge show pool.mode` lists others",
    )


@condition("evaluations in a row below the start", 3, games="lost")
def below_start(seen: Seen, threshold: float) -> Finding | None:
    for (env, opponent), results in seen.evals.items():
        start, *later = results
        last = later[-max(1, int(threshold)) :]
        if len(last) < threshold or not start.games:
            continue
        if all(_worse(one, start) for one in last):
            return Finding(
                text=f"{len(last)} evaluations of {env} against {opponent} are below the start "
                f"({last[-1].win_rate:.0%} wins instead of {start.win_rate:.0%})",
                mend="is the reward what it should be (rewards)? else lower learner.learning_rate",
                # A reward of one's own is the likelier cause, and at another rate it stays one.
                change=remedies.rewards(seen.config) or remedies.rate(seen.config, 0.3),
            )
    return None


def _worse(now: EvalResult, start: EvalResult) -> bool:
    """Whether a score is below that of the start by more than chance; a draw is half a win."""
    if not now.games:
        return False
    scores = [one.score for one in (now, start)]
    noise = math.sqrt(
        sum(x * (1 - x) / one.games for x, one in zip(scores, (now, start), strict=True))
    )
    return scores[1] - scores[0] > _SURE * noise
