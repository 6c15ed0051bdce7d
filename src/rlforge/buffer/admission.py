"""Admission control: how many games may start, so that the learner is busy and little is lost."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple

from rlforge.types import value

WANTED_AGE = 1.0
"""Mean age of turns, in updates, that ``num_train_workers: auto`` aims at."""

_WINDOW = 512
_LOST = 5.0
_MARGIN, _GROWTH, _BURST = 1.2, 3.0, 8
_LONGEST_WAIT = 8.0
# Callers ask for games every 0.1 s, so a burst of less than 0.2 s might cap the rate.
_TICK_S = 0.2
_SHORT = 0.7


@value
class BufferSettings:
    """Limits of a buffer, which is ready with batch_size * batch_delay samples.

    Attributes:
        samples_per_game: Expected yield before the first game has ended; None: the class's default.
        max_replaced: Most samples of groups without advantage left out per batch (dynamic sampling
            of DAPO, Yu et al. 2025); only where groups are kept together.
        save_every: Updates from one published version to the next.
        wait: Most updates of the run between two that draw from this buffer, as others train other
            policies.
        max_age: Most updates between the version of a game's oldest turn and the version that is
            trained; ``auto``: see ``Buffer``.
        workers: Most games in progress; None: as many as give turns a mean age of ``WANTED_AGE``,
            at most ``slots``, the sequences that the engines generate at the same time.
        games: Samples and trained turns of games played before the start; they count as the first
            ones.
    """

    max_size: int
    max_staleness: int
    batch_size: int
    batch_delay: float
    seed: int
    samples_per_game: float | None = None
    max_replaced: int = 0
    save_every: int = 1
    wait: int = 1
    max_age: int | Literal["auto"] = "auto"
    workers: int | None = None
    slots: int | None = None
    games: tuple[tuple[int, int], ...] = ()

    @property
    def ready_size(self) -> int:
        return math.ceil(self.batch_size * self.batch_delay)


class Yield(NamedTuple):
    """Samples and trained turns of an ended game, and its life.

    ``life``: draws from its begin until its samples can be drawn.
    """

    samples: int
    turns: int
    life: int


class _Sums(NamedTuple):
    """Sums over games; ``ended`` and ``lives`` over those of this run only."""

    samples: int
    turns: int
    turns_of_turns: int
    samples_of_turns: int
    ended: int
    lives: int


@value
class Flow:
    """State of admission, for people: games, ages in updates, shares of time or samples.

    Attributes:
        games: Mean number in progress.
        target: Mean number that the rule asks for.
        workers: Most that may be in progress.
        age: Mean age of turns learned from, by the time in progress (``expected_age``).
        full_age: The same with all workers.
        waiting: Share of the time in which the learner waits for samples.
        lost: Share of the samples thrown away.
    """

    games: float
    target: float
    workers: int
    age: float
    full_age: float
    waiting: float
    lost: float


def expected_age(games: float, per_game: float, batch_size: float) -> float:
    """Mean age in updates of turns learned from, by Little's law: games · E / (2 · B).

    ``per_game`` is E[l²] / E[l] of a game's trained turns l; ``batch_size``, B, counts turns.

    Example: the quick start of UnstableBaselines, where one seat of each game is learned from:
        >>> expected_age(384, 7.0, 384)
        3.5
    """
    # A game of l turns takes games · l / B updates. Its seats always play the newest version, so
    # when it ends its turns are half of that old, on average.
    return games * per_game / (2 * batch_size)


class Admission:
    """Base-stock control of the samples that are stored and expected.

    With E the expected samples of a game in progress, games are admitted while

        stored + E · in_flight ≤ stock + B · L · min(1, 1 + g) + E · games · max(0, g),

    the order-up-to rule of inventory theory: what is there and ordered covers the demand of the
    lead time, and a stock. B is the batch size, L the life of a game: draws from its begin until
    its samples can be drawn. With a busy learner, in_flight settles at B · L / E (Little's law). g
    = w - 5d weighs the learner's waiting, w, in proportion to what a full batch lacks, against the
    share of lost samples, d. The stock is

        min(max_size, ready_size + max_staleness · B - learning,
            ready_size + 2 · √(B · E · min(1, L))),

    with ``learning`` the samples drawn for versions that are not published yet; the last line is a
    full batch and two standard deviations of the samples that end in one update. w and d are
    running means over 3 + L draws. E is the mean yield of the last 512 games, weighted by their
    turns, and L the mean life, weighted by yield.

    **Pace.** Games that start together end together, and would bring many batches of one version.
    So beyond the first batches, games start at most at max(1.2, min(3, target / games)) times the
    rate games / D that replaces ended ones; D is their mean duration. Games that last less than 0.7
    updates (E · games < 0.7 · B) are of one version in any case and start at once.

    **Rounds.** Without a clock (``now`` is None), and with ``max_staleness`` 0, all games end
    before the next draw: L and w are 0, and there is no pace.

    **Nothing waits for ever.** While no full batch is stored, either a game is in progress, which
    ends; or one is admitted whatever the rule says, unless a publication is due.

    ``samples_per_game`` is E until games have ended.

    Example:
        >>> settings = BufferSettings(
        ...     max_size=128, max_staleness=1, batch_size=64, batch_delay=1.0, seed=0
        ... )
        >>> admission = Admission(settings, samples_per_game=8.0)
        >>> admission.reserve(games=100, stored=0, lacks=64)
        8
    """

    def __init__(self, settings: BufferSettings, samples_per_game: float) -> None:
        if samples_per_game <= 0:
            raise ValueError(f"samples per game must be above 0, not {samples_per_game}")
        self.in_flight = 0
        self._settings, self._guess = settings, samples_per_game
        self._batch, self._ready = settings.batch_size, settings.ready_size
        first = [Yield(samples, turns, 0) for samples, turns in settings.games if samples and turns]
        # Earlier games fill a quarter of the window, so that games of this run soon outweigh them.
        self._games = deque((first * _WINDOW)[: _WINDOW // 4], _WINDOW)
        #: Ended games among those that count.
        self._ended = 0
        self._draw_times: deque[float] = deque(maxlen=_WINDOW)
        self._known: _Sums | None = None
        self._durations: deque[float] = deque(maxlen=64)
        #: Samples drawn, by the version they were drawn for.
        self._learning: dict[int, int] = {}
        self._draws, self._shortage, self._lost, self._waiting = 0, 0.0, 0.0, 0.0
        #: Time of the last reservation.
        self._since: float | None = None
        self._mean, self._wanted, self._tokens = 0.0, 0.0, 0.0

    @property
    def _sums(self) -> _Sums:
        if self._known is None:
            ended = [*islice(reversed(self._games), self._ended)]
            self._known = _Sums(
                samples=sum(game.samples for game in self._games),
                turns=sum(game.turns for game in self._games),
                turns_of_turns=sum(game.turns**2 for game in self._games),
                samples_of_turns=sum(game.samples * game.turns for game in self._games),
                ended=sum(game.samples for game in ended),
                lives=sum(game.samples * game.life for game in ended),
            )
        return self._known

    @property
    def samples_per_game(self) -> float:
        """Expected samples of one game in progress."""
        sums = self._sums
        # Weighted by turns, because a game in progress is rather a long one: the plain mean would
        # expect too few samples, and admit too many games.
        return sums.samples_of_turns / sums.turns if sums.turns else self._guess

    def _turns_of_batch(self) -> float:
        return self._batch * self._sums.turns / self._sums.samples

    def _age(self, games: float) -> float:
        if not self._games:
            return expected_age(games, self._guess, self._batch)
        sums = self._sums
        return expected_age(games, sums.turns_of_turns / sums.turns, self._turns_of_batch())

    @property
    def workers(self) -> int:
        """Most games in progress."""
        if self._settings.workers is not None:
            return self._settings.workers
        aged = math.ceil(WANTED_AGE / self._age(1))
        first = math.ceil(self._ready / self.samples_per_game)
        # Games for a full batch may start at any age; more than the engines' slots would only wait.
        return max(first, min(aged, self._settings.slots or aged))

    @property
    def flow(self) -> Flow:
        """State at the last reservation."""
        games = self._mean
        return Flow(
            games=games,
            target=self._wanted,
            workers=self.workers,
            age=self._age(games),
            full_age=self._age(self.workers),
            waiting=self._waiting,
            lost=self._lost,
        )

    def life(self, share: float) -> float:
        """Life in updates of the longest of the shortest games that bring ``share`` of all turns.

        By Little's law; infinite without a clock, and until 64 games have ended.
        """
        if self._since is None or self._ended < 64:
            return math.inf
        by_turns = sorted(self._games, key=lambda game: game.turns)
        total, seen, longest = sum(game.turns for game in by_turns), 0, 0
        for game in by_turns:
            longest = game.turns
            seen += longest
            if seen >= share * total:
                break
        return longest * max(self._mean, self.in_flight) / self._turns_of_batch()

    def observe(self, game: Yield) -> None:
        """Learn from a game whose samples can be drawn, or were dropped."""
        # A game without samples has weight 0, and would only push others out of the window.
        if game.samples > 0:
            self._games.append(game)
            self._ended += 1
            self._known = None

    def drawn(
        self, samples: int, version: int, lost: float = 0.0, now: float | None = None
    ) -> None:
        """Count ``samples`` drawn for the update that makes ``version`` + 1.

        ``lost`` is the share thrown away of what came since the last draw.
        """
        # Draws before the first update do not age games: those begun by then are for the first
        # batches.
        if now is not None and self._draws:
            self._draw_times.append(now)
        self._learning[version] = self._learning.get(version, 0) + samples
        self._lost += self._weight * (lost - self._lost)

    def draws_since(self, begun: float | None) -> int:
        """Draws after time ``begun``; 0 for None, a game of a round."""
        if begun is None:
            return 0
        return sum(1 for _ in takewhile(begun.__lt__, reversed(self._draw_times)))

    def waited(self, waiting_s: float, working_s: float) -> None:
        if working_s > 0:
            self._draws += 1
            # One long wait must not start too many games for many draws.
            ratio = min(waiting_s / working_s, _LONGEST_WAIT)
            self._shortage += self._weight * (ratio - self._shortage)
            share = waiting_s / (waiting_s + working_s)
            self._waiting += self._weight * (share - self._waiting)

    @property
    def _weight(self) -> float:
        """Weight of the newest draw in the running means."""
        # The means span the life of a game, because a decision shows only that much later.
        life = self._mean * self.samples_per_game / self._batch
        return 1 / min(max(1, self._draws), 3 + life)

    def published(self, version: int) -> None:
        """Stop counting samples drawn to make ``version`` and earlier ones."""
        self._learning = {v: n for v, n in self._learning.items() if v >= version}

    def skipped(self, version: int) -> None:
        """Stop counting samples drawn to make ``version`` + 1, which is not made."""
        self._learning.pop(version, None)

    def reserve(self, games: int, stored: int, lacks: int, now: float | None = None) -> int:
        """Admit up to ``games`` new games, given ``stored`` samples; returns the number admitted.

        ``lacks`` are the samples to a full batch; ``now`` is in seconds, None: games are a round.
        """
        if games < 0:
            raise ValueError(f"cannot reserve {games} games")
        flowing = now is not None and self._settings.max_staleness > 0
        target = min(self.workers, self._target(stored, lacks, flowing))
        # 1e-9 absorbs the rounding error of a mean such as 7 / 3, by which floor would lose a game.
        granted = max(0, min(games, math.floor(target - self.in_flight + 1e-9)))
        if flowing:
            assert now is not None
            granted = int(min(granted, self._pace(target, now)))
        # Without a game in progress the learner would wait for ever, unless the update from the
        # newest batch, which may not be made yet, is published and makes room.
        due = bool(self._learning) and (max(self._learning) + 1) % self._settings.save_every == 0
        if granted == 0 and games > 0 and lacks and not self.in_flight and not due:
            granted = 1
        self._tokens = max(0.0, self._tokens - granted)
        self.in_flight += granted
        return granted

    def _target(self, stored: int, lacks: int, flowing: bool) -> float:
        per_game, life, growth = self.samples_per_game, 0.0, 0.0
        if flowing:
            # The prior, a full batch with a life of one update, keeps the first games from deciding
            # alone.
            sums = self._sums
            life = (self._ready + sums.lives) / (self._ready + sums.ended)
            more = self._shortage * lacks / self._ready - _LOST * self._lost
            # Where samples are lost, more games would only lose more.
            life *= max(0.5, 1 + min(0.0, more))
            # Where the learner waits, engines are the bottleneck and more games may help.
            growth = self._mean * max(0.0, more)
        fresh = self._ready + self._settings.max_staleness * self._batch
        ahead = fresh - sum(self._learning.values())
        safety = 2 * math.sqrt(self._batch * per_game * min(1.0, life))
        stock = min(self._settings.max_size, ahead, self._ready + safety)
        return (stock - stored + self._batch * life) / per_game + growth

    def _pace(self, target: float, now: float) -> float:
        """Games that may start now without a burst that matters."""
        if self._since is None:
            most = min(self._settings.max_size, 2 * self._ready) / self.samples_per_game
            self._tokens = max(1.0, min(target, most))
            self._mean, self._wanted = self._tokens, target
        elif self._durations:
            duration = max(1e-3, sum(self._durations) / len(self._durations))
            passed = now - self._since
            weight = -math.expm1(-passed / duration)
            self._mean += (self.in_flight - self._mean) * weight
            self._wanted += (target - self._wanted) * weight
            # The rate suffices for a full batch of games, even where fewer are in progress.
            few = min(target, self._ready / self.samples_per_game)
            games = max(1.0, few, self._mean)
            # Where samples are lost, growth would add to the losses before they show.
            growth = 1.0 if self._lost > 0.03 else min(_GROWTH, target / games)
            rate = games / duration * max(_MARGIN, growth)
            # The bound spreads games that started together, more with each generation.
            burst = max(1.0, games / _BURST, rate * _TICK_S)
            self._tokens = min(self._tokens + rate * passed, burst)
        self._since = now
        # Games shorter than an update are of one version, so all may start at once.
        if self._durations and self._mean * self.samples_per_game < _SHORT * self._batch:
            return math.inf
        return math.floor(self._tokens)

    def release(self, games: int, duration_s: float | None = None) -> None:
        """Free the places of games that ended, with samples or without.

        ``duration_s`` is their mean duration; None: they did not end and may start again at once.
        """
        if not 0 <= games <= self.in_flight:
            raise ValueError(f"cannot release {games} games: {self.in_flight} are under way")
        self.in_flight -= games
        if duration_s is None:
            self._tokens += games
        else:
            # The window holds 64 durations: a longer list would be thrown away.
            self._durations.extend([duration_s] * min(games, 64))

    def state_dict(self) -> dict[str, Any]:
        """Observed yields and lives. Games in progress do not survive a restart."""
        return {"games": [list(game) for game in self._games], "ended": self._ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``, with no game in progress and no batch unpublished."""
        self._known = None
        self._games.clear()
        self._games.extend(Yield(*game) for game in state["games"])
        self._ended = state["ended"]
        self._learning.clear()
        self._draw_times.clear()
        self.in_flight = 0
        self._since = None
