"""Conditions of what is learned: samples, steps, movement, entropy, speed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlforge.config.games import EnvEntry
from rlforge.config.plugins import ALGORITHMS
from rlforge.config.schema import GamesConfig
from rlforge.record import remedies
from rlforge.record.conditions import condition, of_all, weight_of
from rlforge.record.signals import SPAN, Finding, Seen
from rlforge.types import EnvSpec

#: Conditions of games that all end alike.
_ALL_ALIKE = ("equal_rewards", "no_advantage")
#: Updates over which figures of speed are taken: they vary with what else the machine does.
_FEW = 2
#: Entropy of answers, as a share of that of the legal moves, up to which they hardly differ.
_ALIKE = 0.35
#: Share of a run's updates above which a warm-up is long.
_RISING = 0.5
#: Share of a gradient to which it may be cut: Adam evens out all but the smallest ones.
_CUT = 1e-3
#: Nats a token by which a usual update moves a policy, and those to aim at from far away.
_USUAL_MOVE, _FAR_AIM = 1e-4, 1e-2
#: Most by which another rate is larger or smaller.
_MOST_FACTOR = 1000.0


def _rate(seen: Seen) -> str:
    return f"{seen.config.learner.learning_rate:g}"


def _settings(change: Mapping[str, Any], config: GamesConfig) -> str:
    """Keys of ``change`` under ``engine`` with the values that they have now."""
    return ", ".join(f"{key}={getattr(config.engine, key.partition('.')[2]):g}" for key in change)


def _share_of_choices(seen: Seen) -> float | None:
    """Entropy of answers as a share of that of the legal moves."""
    entropy, choices = seen.now("answer_entropy"), seen.now("info/legal_actions")
    return (
        None if entropy is None or choices is None or choices <= 1 else entropy / math.log(choices)
    )


def _narrow(seen: Seen) -> tuple[Mapping[str, Any], str]:
    """The change that widens answers which the engines make alike, and the mend in words."""
    share = _share_of_choices(seen)
    if share is None:
        share = seen.now("answer_entropy")
    wider = remedies.wider(seen.config) if share is not None and share <= _ALIKE else {}
    named = _settings(wider, seen.config)
    return wider, f"answers hardly differ: change {named}" if named else ""


@condition(
    "share of samples without an advantage",
    0.9,
    "no_advantage_share",
    explains=("skipped_steps", "no_gradient", "not_moved"),
    games="alike",
)
def no_advantage(seen: Seen, threshold: float) -> Finding | None:
    share = seen.now("no_advantage_share")
    if share is None or share < threshold:
        return None
    group = getattr(seen.config.algorithm, "group_size", None)
    what = f"in groups of {group} games whose rewards are all the same" if group else "turns"
    wider, mend = _narrow(seen)
    larger = "raise algorithm.group_size or engine.temperature, or " if group else ""
    return Finding(
        text=f"{of_all(share)} samples have no advantage ({what})",
        mend=mend or f"{larger}give rewards that tell games apart (rewards)",
        weight=weight_of(share),
        change=wider or remedies.variety(seen.config),
    )


@condition(
    "largest less least of the rewards that are trained on, at most",
    0.0,
    *("reward_spread", "raw_reward_spread", "reward_mean"),
    explains=("no_advantage", "skipped_steps", "no_gradient", "not_moved"),
    games="alike",
)
def equal_rewards(seen: Seen, threshold: float) -> Finding | None:
    spread = seen.now("reward_spread")
    if spread is None or spread > threshold:
        return None
    wider, mend = _narrow(seen)
    # Where all win together, no opponent loses.
    if all(_one_team(entry) for entry in seen.config.env.train):
        usual = "`rlforge sft` teaches a start that gains something, or take easier games (env)"
    else:
        usual = "choose opponents that win some games and lose some (pool), or other games (env)"
        wider = wider or remedies.opponents(seen.config)
    if (raw := seen.now("raw_reward_spread")) is not None and raw > threshold:
        mend = "the games pay differently, and rewards make it the same: mend rewards"
        wider = remedies.rewards(seen.config)
    return Finding(
        text="all rewards of a batch are equal", mend=mend or usual, weight="barren", change=wider
    )


def _one_team(entry: EnvEntry) -> bool:
    rules = {name: getattr(entry, name) for name in ("id", "source", "num_players", "winners")}
    return entry.num_players == 1 or EnvSpec(**rules).won_by == "all"


@condition("norm of the gradient, at most", 1e-12, "grad_norm", "loss", explains=("not_moved",))
def no_gradient(seen: Seen, threshold: float) -> Finding | None:
    norm = seen.now("grad_norm")
    # A step that was skipped has no gradient, and signals of its own.
    if norm is None or norm > threshold or seen.now("skipped_no_signal"):
        return None
    wider, mend = _narrow(seen)
    return Finding(
        text=f"the gradient is {norm:.1g}",
        mend=mend or "check algorithm (loss, clipping) and rewards",
        weight="barren",
        change=wider,
    )


@condition(
    "share of the last ten updates without a step",
    0.5,
    "skipped_no_signal",
    explains=("no_gradient", "not_moved"),
    games="alike",
)
def skipped_steps(seen: Seen, threshold: float) -> Finding | None:
    share = seen.mean("skipped_no_signal")
    if share is None or share < threshold:
        return None
    wider, mend = _narrow(seen)
    return Finding(
        text=f"{share:.0%} of the last 10 updates made no step: their batches had no advantage",
        mend=mend or "a larger learner.batch_size, other opponents (pool) or rewards give one",
        weight=weight_of(share),
        change=wider or remedies.batches(seen.config),
    )


@condition(
    "steps of an update that are not finite",
    1,
    *("nonfinite_steps", "grad_norm"),
    explains=("not_moved",),
)
def nan_steps(seen: Seen, threshold: float) -> Finding | None:
    steps = seen.now("nonfinite_steps")
    if steps is None or steps < threshold or steps == 0:
        return None
    every, algorithm = seen.now("grad_norm") is None, seen.config.algorithm.name
    mend = (
        f"lower learner.learning_rate={_rate(seen)}, and go on from a version before "
        "(learner.initial_adapter)"
    )
    if plugged := not ALGORITHMS.has_own(algorithm):
        mend = f"is the loss of algorithm.name={algorithm} finite for its last batch? else {mend}"
    return Finding(
        text=f"{'all' if every else f'{steps:.0f}'} optimizer steps of an update are skipped: loss "
        "or gradient is not finite",
        mend=mend,
        weight="final" if every else "slow",
        change={} if plugged else remedies.rate(seen.config, 0.1),
    )


@condition(
    "nats a token by which an update moves the policy, in the mean of ten, at most",
    1e-06,
    *("moved", "lr", "grad_norm"),
)
def not_moved(seen: Seen, threshold: float) -> Finding | None:
    moved = seen.mean("moved")
    # Updates without a step have a signal of their own.
    if moved is None or moved > threshold or seen.mean("skipped_no_signal") == 1.0:
        return None
    learner, norm = seen.config.learner, seen.now("grad_norm")
    text = f"an update moves the policy by {moved:.1g} nats a token"
    # A change names one cause: two that make steps larger would make them too large together.
    if seen.step <= learner.warmup_updates:
        if not _long_warmup(seen):
            return None
        return Finding(
            text=f"{text} while its rate rises",
            mend=f"lower learner.warmup_updates={learner.warmup_updates}",
            weight="barren",
            change=remedies.warmup(seen.config),
        )
    if learner.schedule != "constant" and _at_full_rate(seen, moved) > threshold:
        return None
    if norm is not None and learner.grad_clip < _CUT * norm:
        return Finding(
            text=f"{text}, as learner.grad_clip={learner.grad_clip:g} cuts gradients of {norm:.2g}",
            mend="raise learner.grad_clip",
            weight="barren",
            change=remedies.clip(seen.config),
        )
    # A small step moves the policy by the square of its rate.
    factor = min(_MOST_FACTOR, math.sqrt(_USUAL_MOVE / moved)) if moved > 0 else _MOST_FACTOR
    return Finding(
        text=text,
        mend=f"raise learner.learning_rate={_rate(seen)}",
        weight="barren",
        # The mend of a long warm-up raises the rate, too.
        change={} if _long_warmup(seen) else remedies.rate(seen.config, factor),
    )


def _at_full_rate(seen: Seen, moved: float) -> float:
    """The divergence of a step at the rate before its schedule: it grows by the rate's square."""
    rate = seen.mean("lr")
    if rate is None:
        return moved
    return moved * (seen.config.learner.learning_rate / rate) ** 2 if rate else math.inf


def _long_warmup(seen: Seen, threshold: float = _RISING) -> bool:
    last = seen.config.total_updates
    return last is None or seen.config.learner.warmup_updates > threshold * last


@condition(
    "nats a token by which an update moves the policy",
    2.0,
    *("moved", "clip_fraction"),
    explains=("nan_steps", "importance", "clipped"),
)
def moved_far(seen: Seen, threshold: float) -> Finding | None:
    moved = seen.now("moved")
    if moved is None or moved < threshold:
        return None
    size = f"{moved:,.0f}" if moved >= 100 else f"{moved:.2g}"
    return Finding(
        text=f"an update moves the policy by {size} nats a token",
        mend=f"lower learner.learning_rate={_rate(seen)}, learner.epochs or optimizer_steps",
        # So far away a step no longer grows by the square of its rate.
        change=remedies.rate(seen.config, max(1 / _MOST_FACTOR, _FAR_AIM / moved)),
    )


@condition(
    "gap of engine's and learner's log-probs, in nats",
    0.03,
    "logprob_gap_mean",
    explains=("importance", "clipped"),
)
def logprob_gap(seen: Seen, threshold: float) -> Finding | None:
    gap = seen.now("logprob_gap_mean")
    # Engines that leave out tokens draw the others more often than the learner has it, by design.
    if gap is None or gap < threshold or remedies.whole(seen.config):
        return None
    return Finding(
        text=f"log-probs of engine and learner differ by {gap:.2g} nats in the mean",
        mend="they should agree: compare engine=transformers, model.dtype=float32 and "
        "engine.temperature=1 with what is set",
        change=remedies.agreeing(seen.config),
    )


@condition(
    "distance of mean importance weights from 1",
    0.5,
    *("importance_weight_mean", "lag_mean"),
    explains=("clipped",),
)
def importance(seen: Seen, threshold: float) -> Finding | None:
    mean = seen.now("importance_weight_mean")
    if mean is None or abs(mean - 1) < threshold:
        return None
    change, mend = _nearer(seen)
    return Finding(
        text=f"importance weights have a mean of {mean:.2g} instead of 1", mend=mend, change=change
    )


def _nearer(seen: Seen) -> tuple[Mapping[str, Any], str]:
    """The change that brings engines and learner together, and the mend in words."""
    if whole := remedies.whole(seen.config):
        return whole, f"draw from all tokens: change {_settings(whole, seen.config)}"
    mend = "lower learner.learning_rate or buffer.max_staleness"
    return remedies.rate(seen.config, 0.3), mend


@condition("share of clipped tokens", 0.6, "clip_fraction", "importance_capped_fraction")
def clipped(seen: Seen, threshold: float) -> Finding | None:
    shares = [seen.now(name) or 0.0 for name in ("clip_fraction", "importance_capped_fraction")]
    if max(shares) < threshold:
        return None
    change, mend = _nearer(seen)
    return Finding(
        text=f"{max(shares):.0%} of the tokens are clipped, and teach nothing",
        mend=mend,
        change=change,
    )


@condition(
    "entropy of answers in the first ten updates, as a share of that of the legal moves, at most",
    _ALIKE,
    *("answer_entropy", "info/legal_actions"),
    explains=(*_ALL_ALIKE, "moved_far", "importance", "clipped"),
)
def low_entropy(seen: Seen, threshold: float) -> Finding | None:
    share = _share_of_choices(seen)
    # A policy that has learned may be certain; one that begins so has nothing to try.
    if share is None or share > threshold or seen.step > SPAN:
        return None
    wider = remedies.wider(seen.config)
    named = _settings(wider, seen.config)
    return Finding(
        text=f"answers begin with an entropy of {seen.now('answer_entropy'):.2g} nats, "
        f"{share:.0%} of what {seen.now('info/legal_actions'):.1f} legal moves allow",
        mend=f"change {named}"
        if named
        else f"raise engine.temperature={seen.config.engine.temperature:g}, or "
        "algorithm.entropy_coef",
        change=wider,
    )


@condition(
    "entropy, as a share of that of random tokens",
    0.97,
    *("entropy_share", "entropy"),
    explains=("cut_answers", "format", "illegal_moves", *_ALL_ALIKE, "one_seat"),
)
def high_entropy(seen: Seen, threshold: float) -> Finding | None:
    share = seen.now("entropy_share")
    if share is None or share < threshold:
        return None
    colder = remedies.colder(seen.config)
    return Finding(
        text=f"answers are all but random tokens (entropy is {share:.0%} of the most)",
        mend=f"lower engine.temperature={seen.config.engine.temperature:g}"
        if colder
        else f"does model.name={seen.config.model.name} load with its weights? a model that has "
        "learned nothing yet needs `rlforge sft` first",
        change=colder,
    )


@condition("share of time in which the learner waits", 0.95, "learner_share", "games_per_s")
def waiting(seen: Seen, threshold: float) -> Finding | None:
    works = seen.mean("learner_share", _FEW)
    # The first update of a run waits while the engines start.
    if works is None or 1 - works < threshold or seen.step <= _FEW:
        return None
    return Finding(
        text=f"the learner waits for games {1 - works:.0%} of the time",
        mend="the engines are slow or few: `rlforge doctor --run RUN` measures them, and "
        "engine.max_parallel_seq and engine.num_engines give more",
    )


@condition("share of time in which engines and learner rest", 0.95, "idle_share")
def idle(seen: Seen, threshold: float) -> Finding | None:
    idle = seen.mean("idle_share")
    if idle is None or idle < threshold:
        return None
    return Finding(
        text=f"engines and learner both rest {idle:.0%} of the time",
        mend="raise collector.num_collectors or collector.num_train_workers",
    )


@condition("share of samples that are thrown away", 0.5, "lost_share")
def thrown_away(seen: Seen, threshold: float) -> Finding | None:
    lost = seen.mean("lost_share")
    if lost is None or lost < threshold:
        return None
    return Finding(
        text=f"{lost:.0%} of the samples are thrown away before they are learned from",
        mend="raise buffer.max_staleness or buffer.max_age, or lower collector.num_train_workers",
    )


@condition(
    "share of samples beyond learner.max_train_len", 0.1, "samples_too_long", explains=("no_batch",)
)
def too_long(seen: Seen, threshold: float) -> Finding | None:
    long, samples = seen.now("samples_too_long") or 0.0, seen.now("samples") or 0.0
    if not long or (share := long / (long + samples)) < threshold:
        return None
    return Finding(
        text=f"{of_all(share)} samples are longer than learner.max_train_len, and left out",
        mend="raise learner.max_train_len, or lower engine.max_model_len",
        weight=weight_of(share, lasting=True),
        change=remedies.samples(seen.config),
    )


@condition("share of updates in which the rate rises", _RISING, "lr", explains=("not_moved",))
def warmup(seen: Seen, threshold: float) -> Finding | None:
    rises, last = seen.config.learner.warmup_updates, seen.config.total_updates
    # A run that short is a trial.
    if not seen.step or last is None or last < SPAN or not _long_warmup(seen, threshold):
        return None
    reached = f", and reaches {last / rises:.2g} of it" if rises > last else ""
    return Finding(
        text=f"the learning rate rises for {min(rises, last)} of {last} updates{reached}",
        mend=f"lower learner.warmup_updates={rises}",
        change=remedies.warmup(seen.config),
    )
