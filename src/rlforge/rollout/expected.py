"""Expectations of collection before it begins: settings of the buffer, a forecast."""

from __future__ import annotations

import math
from functools import partial

from rlforge.buffer import BUFFERS, BufferSettings
from rlforge.buffer.admission import Flow
from rlforge.config.per_policy import longest_wait, of_policy, policy_names, trained_seats
from rlforge.config.schema import RunConfig
from rlforge.games.registry import make_game
from rlforge.games.trial import trial_turns
from rlforge.rollout.lineup import train_envs


def buffer_settings(config: RunConfig, name: str) -> BufferSettings:
    """The limits of the buffer of a policy, and the first guess of what a game brings."""
    own, seats = of_policy(config, name), trained_seats(config, name)
    workers = config.collector.num_train_workers
    episodes = config.buffer.kind == "episode"
    return BufferSettings(
        max_size=config.buffer.max_size,
        max_staleness=config.buffer.max_staleness,
        batch_size=own.learner.batch_size,
        batch_delay=own.learner.batch_delay_buffer,
        seed=config.seed,
        samples_per_game=float(seats) if episodes else None,
        max_replaced=round(own.algorithm.replaced_batches * own.learner.batch_size),
        save_every=config.learner.save_every,
        wait=longest_wait(config, name),
        max_age=config.buffer.max_age,
        workers=None if workers == "auto" else workers * config.collector.num_collectors,
        slots=config.engine.num_engines * config.engine.max_parallel_seq,
        games=first_games(config, seats, episodes=episodes),
    )


def first_games(config: RunConfig, seats: int, *, episodes: bool) -> tuple[tuple[int, int], ...]:
    """Samples and trained turns of games of random players; ``seats`` are trained in each."""
    envs, enough_s = train_envs(config), 1.0
    if config.determinism == "strict":
        # The number of games must not depend on the speed of the machine.
        enough_s = math.inf
    played = list[tuple[int, int]]()
    for env in envs:
        games = math.ceil(20 * env.weight / math.fsum(other.weight for other in envs))
        found = trial_turns(partial(make_game, env), games, enough_s / len(envs))
        for number, players in enumerate(found):
            own = {(number + place) % env.num_players for place in range(seats)}
            turns = sum(player in own for player in players)
            played.append((len(own) if episodes else turns, turns))
    return tuple(played)


def forecast(config: RunConfig, flow: Flow | None = None) -> str:
    """Games in progress, the engines' places and the age of turns, as sentences.

    flow: flow of the first policy's buffer; None: that at the start.
    """
    if not config.buffer.max_staleness or config.determinism == "strict":
        return "games are played in rounds, each for the next update"
    if flow is None:
        [name, *_] = policy_names(config)
        flow = BUFFERS[config.buffer.kind](buffer_settings(config, name)).flow
    slots = config.engine.num_engines * config.engine.max_parallel_seq
    waiting = ""
    if (more := flow.workers - slots) > 0:
        waiting = f"; {more} requests wait for one, as each game asks one at a time"
    return (
        f"up to {flow.workers} games in progress (collector.num_train_workers="
        f"{config.collector.num_train_workers}) for {slots} places in the engines "
        f"(engine.max_parallel_seq){waiting}. Fewer play where these keep the learner "
        f"busy. Where all do, turns have a mean age of {flow.full_age:.1f} updates when they are "
        "learned from, besides the wait in the buffer. The run names its bottleneck after ten "
        "updates"
    )
