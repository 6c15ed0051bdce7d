"""Conditions under which a run learns little or nothing; see ``rlforge.record.signals``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sized
from typing import Literal

from rlforge.record import remedies
from rlforge.record.remedies import Change
from rlforge.record.signals import SPAN, Condition, Finding, Seen, Weight
from rlforge.types import EvalResult

#: From this share on, a share is all but a few.
_ALL = 0.99
#: From this share on, it is shown as 100 %.
_EACH = 0.9995
#: Updates over which figures of speed are taken: they vary with what else the machine does.
_FEW = 2
#: Standard errors by which an evaluation is below the start.
_SURE = 2.0
#: Least games from which shares of games are taken.
_GAMES = 16


Check = Callable[[Seen, float], Finding | None]
What = Callable[[Seen, str], tuple[str, str, Change]]


def _of_all(share: float) -> str:
    return "all" if share >= _EACH else f"{share:.0%} of all"


def _rate(seen: Seen) -> str:
    return f"{seen.config.learner.learning_rate:g}"


def _temperature(seen: Seen) -> str:
    return f"{seen.config.engine.temperature:g}"


def _weight(share: float) -> Weight:
    return "barren" if share >= _ALL else "slow"


def _share(
    of: Literal["games", "answers"], name: str, what: What, *, inverse: bool = False
) -> Check:
    """A check of the environment with the largest share of its games, or of the answers in them.

    Args:
        name: Figure of its training games.
        what: Returns the end of the sentence, the mend and the change, for the environment.
        inverse: The share is 1 less the figure.
    """

    def check(seen: Seen, threshold: float) -> Finding | None:
        shares = [(env, 1 - x if inverse else x) for env, x in seen.of_games(name)]
        env, share = max(shares, key=lambda pair: pair[1], default=("", 0.0))
        played = seen.now("games") or 0
        if of == "games":
            played += seen.now("failed_games") or 0
        if not env or share < threshold or played < _GAMES:
            return None
        end, mend, change = what(seen, env)
        final = of == "games" and share >= _EACH
        return Finding(
            text=f"{_of_all(share)} {of} {'of' if of == 'games' else 'in'} {env} {end}",
            mend=mend,
            weight="final" if final else _weight(share),
            change=change,
        )

    return check


def _cut_by_turns(seen: Seen, env: str) -> tuple[str, str, Change]:
    limits = {entry.max_turns for entry in seen.config.env.train if entry.id == env}
    at = f"max_turns={limits.pop()}" if len(limits) == 1 else "their turn limit"
    return f"are cut at {at}", "raise max_turns in env.train", remedies.turns(seen.config, env)


def _cut_by_context(seen: Seen, env: str) -> tuple[str, str, Change]:
    return (
        "end because the conversation exceeds "
        f"engine.max_model_len={seen.config.engine.max_model_len}",
        "raise it, or set env.context=turn or env.overflow=drop_oldest",
        remedies.conversations(seen.config),
    )


def _failed(seen: Seen, env: str) -> tuple[str, str, Change]:
    return "fail", "logs/collector-0.log names the error", {}


def _not_in_form(seen: Seen, env: str) -> tuple[str, str, Change]:
    return (
        f"are not in the form that model.action_extraction={seen.config.model.action_extraction} "
        "reads",
        f"does model.prompt_template={seen.config.model.prompt_template} fit the model? "
        "`rlforge replay` shows answers; `rlforge sft` teaches the form",
        {},
    )


def _cut_answers(seen: Seen, env: str) -> tuple[str, str, Change]:
    tokens = seen.config.engine.max_tokens
    return f"are cut at engine.max_tokens={tokens}", "raise it", remedies.answers(seen.config)


def _illegal(seen: Seen, env: str) -> tuple[str, str, Change]:
    return (
        "are no legal moves",
        "a prompt that lists them (model.prompt_template) or `rlforge sft` helps",
        {},
    )


def _no_advantage(seen: Seen, threshold: float) -> Finding | None:
    share = seen.now("no_advantage_share")
    if share is None or share < threshold:
        return None
    group = getattr(seen.config.algorithm, "group_size", None)
    what = f"in groups of {group} games whose rewards are all the same" if group else "turns"
    return Finding(
        text=f"{_of_all(share)} samples have no advantage ({what})",
        mend="raise algorithm.group_size or engine.temperature, or give rewards that tell games "
        "apart (rewards)"
        if group
        else "give rewards that tell games apart (rewards)",
        weight=_weight(share),
        change=remedies.variety(seen.config),
    )


def _equal_rewards(seen: Seen, threshold: float) -> Finding | None:
    spread = seen.now("reward_spread")
    if spread is None or spread > threshold:
        return None
    return Finding(
        text="all rewards of a batch are equal",
        mend="choose opponents that win some games and lose some (pool), or other games (env)",
        weight="barren",
    )


def _no_gradient(seen: Seen, threshold: float) -> Finding | None:
    norm = seen.now("grad_norm")
    # A step that was skipped has no gradient, and signals of its own.
    if norm is None or norm > threshold or seen.now("skipped_no_signal"):
        return None
    return Finding(
        text=f"the gradient is {norm:.1g}",
        mend="check algorithm (loss, clipping) and rewards",
        weight="barren",
    )


def _skipped(seen: Seen, threshold: float) -> Finding | None:
    share = seen.mean("skipped_no_signal")
    if share is None or share < threshold:
        return None
    return Finding(
        text=f"{share:.0%} of the last 10 updates made no step: their batches had no advantage",
        mend="a larger learner.batch_size, other opponents (pool) or rewards give one",
        weight=_weight(share),
        change=remedies.batches(seen.config),
    )


def _nan_steps(seen: Seen, threshold: float) -> Finding | None:
    steps = seen.now("nonfinite_steps")
    if steps is None or steps < threshold or steps == 0:
        return None
    every = seen.now("grad_norm") is None
    return Finding(
        text=f"{'all' if every else f'{steps:.0f}'} optimizer steps of an update are skipped: loss "
        "or gradient is not finite",
        mend=f"lower learner.learning_rate={_rate(seen)}, and go on from "
        "a version before (learner.initial_adapter)",
        weight="final" if every else "slow",
        change=remedies.rate(seen.config, 0.1),
    )


def _not_moved(seen: Seen, threshold: float) -> Finding | None:
    moved = seen.mean("moved")
    # Updates without a step have a signal of their own.
    if moved is None or moved > threshold or seen.mean("skipped_no_signal") == 1.0:
        return None
    return Finding(
        text=f"an update moves the policy by {moved:.1g} nats a token",
        mend=f"raise learner.learning_rate={_rate(seen)}",
        weight="barren",
        change=remedies.rate(seen.config, 100 if moved < threshold / 100 else 10),
    )


def _moved_far(seen: Seen, threshold: float) -> Finding | None:
    moved = seen.now("moved")
    if moved is None or moved < threshold:
        return None
    return Finding(
        text=f"an update moves the policy by {moved:.2g} nats a token",
        mend=f"lower learner.learning_rate={_rate(seen)}, learner.epochs or optimizer_steps",
        change=remedies.rate(seen.config, 0.1),
    )


def _logprob_gap(seen: Seen, threshold: float) -> Finding | None:
    gap = seen.now("logprob_gap_mean")
    if gap is None or gap < threshold:
        return None
    return Finding(
        text=f"log-probs of engine and learner differ by {gap:.2g} nats in the mean",
        mend="they should agree: compare engine=transformers, model.dtype=float32 and "
        "engine.temperature=1 with what is set",
    )


def _weights(seen: Seen, threshold: float) -> Finding | None:
    mean = seen.now("importance_weight_mean")
    if mean is None or abs(mean - 1) < threshold:
        return None
    return Finding(
        text=f"importance weights have a mean of {mean:.2g} instead of 1",
        mend="lower buffer.max_staleness or learner.learning_rate; a cut distribution "
        "(engine.top_p, engine.top_k) does the same",
        change=remedies.rate(seen.config, 0.3),
    )


def _clipped(seen: Seen, threshold: float) -> Finding | None:
    shares = [seen.now(name) or 0.0 for name in ("clip_fraction", "importance_capped_fraction")]
    if max(shares) < threshold:
        return None
    return Finding(
        text=f"{max(shares):.0%} of the tokens are clipped, and teach nothing",
        mend="lower learner.learning_rate or buffer.max_staleness",
        change=remedies.rate(seen.config, 0.3),
    )


def _low_entropy(seen: Seen, threshold: float) -> Finding | None:
    entropy, choices = seen.now("answer_entropy"), seen.now("info/legal_actions")
    # A policy that has learned may be certain; one that begins so has nothing to try.
    if entropy is None or choices is None or choices <= 1 or seen.step > SPAN:
        return None
    share = entropy / math.log(choices)
    if share > threshold:
        return None
    return Finding(
        text=f"answers begin with an entropy of {entropy:.2g} nats, {share:.0%} of what "
        f"{choices:.1f} legal moves allow",
        mend=f"raise engine.temperature={_temperature(seen)}, or algorithm.entropy_coef",
        change=remedies.temperature(seen.config, up=True),
    )


def _high_entropy(seen: Seen, threshold: float) -> Finding | None:
    share = seen.now("entropy_share")
    if share is None or share < threshold:
        return None
    return Finding(
        text=f"answers are all but random tokens (entropy is {share:.0%} of the most)",
        mend=f"lower engine.temperature={_temperature(seen)}; does the model load "
        "with its weights?",
        change=remedies.temperature(seen.config, up=False),
    )


def _one_seat(seen: Seen, threshold: float) -> Finding | None:
    share = seen.now("seat_share_max")
    several = any(entry.num_players > 1 for entry in seen.config.env.train)
    # Of several policies each may have a seat of its own.
    if share is None or share < threshold or not several or len(_policies(seen)) > 1:
        return None
    return Finding(
        text=f"{_of_all(share)} samples are of one seat: the policy does not learn the others",
        mend="leave the seats of policies out, so that it plays all",
    )


def _policies(seen: Seen) -> Sized:
    return getattr(seen.config, "policies", ())


def _one_opponent(seen: Seen, threshold: float) -> Finding | None:
    pool, share = seen.config.pool, seen.now("opponent_share_max")
    if share is None or share < threshold:
        return None
    # A run that asks for one opponent has what it asks for; at the start a pool has one version.
    asked = pool.mode == "mirror" or (pool.mode == "fixed" and len(pool.fixed_opponents) == 1)
    if asked or seen.step < SPAN:
        return None
    return Finding(
        text=f"{_of_all(share)} games are against one opponent",
        mend=f"pool.mode={pool.mode} weighs it most; `rlforge show pool.mode` lists others",
    )


def _below_start(seen: Seen, threshold: float) -> Finding | None:
    for (env, opponent), results in seen.evals.items():
        start, *later = results
        last = later[-max(1, int(threshold)) :]
        if len(last) < threshold or not start.games:
            continue
        if all(_worse(one, start) for one in last):
            return Finding(
                text=f"{len(last)} evaluations of {env} against {opponent} are below the start "
                f"({last[-1].win_rate:.0%} wins instead of {start.win_rate:.0%})",
                mend="is the reward what it should be (rewards)? lower learner.learning_rate",
                change=remedies.rate(seen.config, 0.3),
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


def _waiting(seen: Seen, threshold: float) -> Finding | None:
    works = seen.mean("learner_share", _FEW)
    # The first update of a run waits while the engines start.
    if works is None or 1 - works < threshold or seen.step <= _FEW:
        return None
    return Finding(
        text=f"the learner waits for games {1 - works:.0%} of the time",
        mend="the engines are slow or few: `rlforge doctor --run RUN` measures them, and "
        "engine.max_parallel_seq and engine.num_engines give more",
    )


def _idle(seen: Seen, threshold: float) -> Finding | None:
    idle = seen.mean("idle_share")
    if idle is None or idle < threshold:
        return None
    return Finding(
        text=f"engines and learner both rest {idle:.0%} of the time",
        mend="raise collector.num_collectors or collector.num_train_workers",
    )


def _thrown_away(seen: Seen, threshold: float) -> Finding | None:
    lost = seen.mean("lost_share")
    if lost is None or lost < threshold:
        return None
    return Finding(
        text=f"{lost:.0%} of the samples are thrown away before they are learned from",
        mend="raise buffer.max_staleness or buffer.max_age, or lower collector.num_train_workers",
    )


def _too_long(seen: Seen, threshold: float) -> Finding | None:
    long, samples = seen.now("samples_too_long") or 0.0, seen.now("samples") or 0.0
    if not long or (share := long / (long + samples)) < threshold:
        return None
    return Finding(
        text=f"{_of_all(share)} samples are longer than learner.max_train_len, and left out",
        mend="raise it, or lower engine.max_model_len",
        weight=_weight(share),
        change=remedies.samples(seen.config),
    )


def _warmup(seen: Seen, threshold: float) -> Finding | None:
    learner = seen.config.learner
    last = seen.config.total_updates
    # A run that short is a trial.
    if last is None or last < SPAN or seen.step < last:
        return None
    if learner.warmup_updates <= threshold * last:
        return None
    return Finding(
        text=f"the learning rate rises for {learner.warmup_updates} of {last} updates",
        mend="lower learner.warmup_updates",
        change=remedies.warmup(seen.config),
    )


TURN_LIMIT = Condition(
    "share of games cut by max_turns",
    0.5,
    ("*/turn_limit_rate",),
    _share("games", "turn_limit_rate", _cut_by_turns),
)
CONTEXT_LIMIT = Condition(
    "share of games that exceed the context",
    0.5,
    ("*/context_limit_rate",),
    _share("games", "context_limit_rate", _cut_by_context),
)
FAILED_GAMES = Condition(
    "share of games that fail", 0.25, ("*/failed_rate",), _share("games", "failed_rate", _failed)
)
CUT_ANSWERS = Condition(
    "share of answers cut by engine.max_tokens",
    0.5,
    ("*/truncated_rate",),
    _share("answers", "truncated_rate", _cut_answers),
)
FORMAT = Condition(
    "share of answers that are not in the form",
    0.9,
    ("*/format_success",),
    _share("answers", "format_success", _not_in_form, inverse=True),
)
ILLEGAL_MOVES = Condition(
    "share of illegal moves", 0.9, ("*/invalid_rate",), _share("answers", "invalid_rate", _illegal)
)
NO_ADVANTAGE = Condition(
    "share of samples without an advantage", 0.9, ("no_advantage_share",), _no_advantage
)
EQUAL_REWARDS = Condition(
    "largest less least reward of a batch, at most",
    0.0,
    ("reward_spread", "reward_mean"),
    _equal_rewards,
)
NO_GRADIENT = Condition("norm of the gradient, at most", 1e-12, ("grad_norm", "loss"), _no_gradient)
SKIPPED_STEPS = Condition(
    "share of the last ten updates without a step", 0.5, ("skipped_no_signal",), _skipped
)
NAN_STEPS = Condition(
    "steps of an update that are not finite", 1, ("nonfinite_steps", "grad_norm"), _nan_steps
)
NOT_MOVED = Condition(
    "nats a token by which an update moves the policy, in the mean of ten, at most",
    1e-6,
    ("moved", "lr"),
    _not_moved,
)
MOVED_FAR = Condition(
    "nats a token by which an update moves the policy", 2.0, ("moved", "clip_fraction"), _moved_far
)
LOGPROB_GAP = Condition(
    "gap of engine's and learner's log-probs, in nats", 0.03, ("logprob_gap_mean",), _logprob_gap
)
IMPORTANCE = Condition(
    "distance of mean importance weights from 1",
    0.5,
    ("importance_weight_mean", "lag_mean"),
    _weights,
)
CLIPPED = Condition(
    "share of clipped tokens", 0.6, ("clip_fraction", "importance_capped_fraction"), _clipped
)
LOW_ENTROPY = Condition(
    "entropy of answers in the first ten updates, as a share of that of the legal moves, at most",
    0.35,
    ("answer_entropy", "info/legal_actions"),
    _low_entropy,
)
HIGH_ENTROPY = Condition(
    "entropy, as a share of that of random tokens",
    0.97,
    ("entropy_share", "entropy"),
    _high_entropy,
)
ONE_SEAT = Condition("share of one seat", 0.99, ("seat_share_max",), _one_seat)
ONE_OPPONENT = Condition(
    "share of games against one opponent", 0.99, ("opponent_share_max",), _one_opponent
)
BELOW_START = Condition("evaluations in a row below the start", 3, (), _below_start)
WAITING = Condition(
    "share of time in which the learner waits", 0.95, ("learner_share", "games_per_s"), _waiting
)
IDLE = Condition("share of time in which engines and learner rest", 0.95, ("idle_share",), _idle)
THROWN_AWAY = Condition("share of samples that are thrown away", 0.5, ("lost_share",), _thrown_away)
TOO_LONG = Condition(
    "share of samples beyond learner.max_train_len", 0.1, ("samples_too_long",), _too_long
)
WARMUP = Condition("share of updates in which the rate rises", 0.5, ("lr",), _warmup)
