"""Schedules training games: environment, opponents, seats and seed of each ``GameSpec``."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

from rlforge.league.pool import ModelPool
from rlforge.system.values import from_json, to_json
from rlforge.types import EnvSpec, GameRecord, GameSpec, PolicyRef, Seat

_NO_COLLECTOR = ""


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**31) that depends on ``parts`` only, the same in every process."""
    # 31 bits fit every generator that a game may use.
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def line_up(
    env: EnvSpec, policies: Sequence[PolicyRef], trained_uid: str | None
) -> tuple[Seat, ...]:
    """Seats for ``policies`` in order of player id; those of ``trained_uid`` are trained."""
    return tuple(
        Seat(
            player_id=player_id,
            policy=policy,
            trained=policy.uid == trained_uid,
            form=env.asked(policy),
        )
        for player_id, policy in enumerate(policies)
    )


class GameScheduler:
    """Hands out training games of one policy, the learner of them.

    Environments are drawn by weight, opponents by the pool, seats in random order, each equally
    often. With ``group_size`` above 1 that many consecutive games share everything but their id.
    The same seed and the same pool give the same games.
    """

    def __init__(
        self,
        envs: Sequence[EnvSpec],
        pool: ModelPool,
        *,
        group_size: int,
        seed: int,
        part: int = 0,
        name: str = "",
    ) -> None:
        """Start at the first game; environments in which the policy has no seat are left out.

        ``part``: how often the run was resumed before; ``name``: the policy, of several.
        """
        self._pool = pool
        self._name, self._part = name, part
        self._own = (name,) if name else ()
        # Games lost in a crash are played again after the resume, and need other ids.
        self._prefix = "-".join([*self._own, str(part)])
        self._envs = tuple(env for env in envs if self._seats(env))
        self._group_size = group_size
        self._seed = seed
        self._games = 0
        self._draws = 0
        #: Games in which the learner got a seat, by position of the environment in ``envs``.
        self._seatings = [0] * len(self._envs)
        self._open: GameSpec | None = None
        self._left = 0

    def next_games(self, n: int) -> list[GameSpec]:
        """The next ``n`` games; the rest of an open group, with its first line-up, comes first."""
        games = []
        for _ in range(n):
            if self._open is None or not self._left:
                self._open, self._left = self._draw(), self._group_size
            game_id = f"train-{self._prefix}-{self._games:07d}"
            games.append(dataclasses.replace(self._open, game_id=game_id, part=self._part))
            self._games += 1
            self._left -= 1
        return games

    @property
    def open_group(self) -> GameSpec | None:
        """The spec of the remaining games of a started group; None between two groups."""
        return self._open if self._left else None

    def _draw(self) -> GameSpec:
        rng = random.Random(derive_seed(self._seed, *self._own, "env", self._draws))
        [index] = rng.choices(range(len(self._envs)), [env.weight for env in self._envs])
        env = self._envs[index]
        grouped = self._group_size > 1
        learner = self._pool.current(self._name).policy()
        spec = GameSpec(
            game_id="",
            env=env,
            seed=derive_seed(self._seed, *self._own, "train", self._draws),
            purpose="train",
            seats=line_up(env, self._players(index, learner), learner.uid),
            group_id=f"group-{self._prefix}-{self._draws:07d}" if grouped else None,
            group_size=self._group_size,
        )
        self._draws += 1
        return spec

    def _players(self, index: int, learner: PolicyRef) -> list[PolicyRef]:
        number = self._envs[index].num_players
        if not self._pool.limited(self._name):
            policies = self._pool.opponents(number - 1, self._name) if number > 1 else []
            if all(policy.uid == learner.uid for policy in policies):
                # Self-play: the learner has every seat, so none is drawn for it.
                return [*policies, learner]
            policies.insert(self._next_seat(index), learner)
            return policies
        own = self._next_seat(index)
        return [
            learner if seat == own else self._pool.opponents(1, self._name, seat)[0]
            for seat in range(number)
        ]

    def _seats(self, env: EnvSpec) -> list[int]:
        return [seat for seat in range(env.num_players) if self._pool.takes(self._name, seat)]

    def _next_seat(self, index: int) -> int:
        seats = self._seats(self._envs[index])
        # Each block of as many draws as seats is a permutation, so all seats are equally frequent.
        block, position = divmod(self._seatings[index], len(seats))
        random.Random(derive_seed(self._seed, *self._own, "seat", index, block)).shuffle(seats)
        self._seatings[index] += 1
        return seats[position]

    def state_dict(self) -> dict[str, Any]:
        """Counters and the open group, ready for JSON."""
        return {
            "games": self._games,
            "draws": self._draws,
            "seatings": list(self._seatings),
            "open": to_json(self._open),
            "left": self._left,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken, given a pool that does so too."""
        self._games = state["games"]
        self._draws = state["draws"]
        self._seatings = list(state["seatings"])
        self._open = None if state["open"] is None else from_json(GameSpec, state["open"])
        self._left = state["left"]


class GamesUnderWay:
    """The training games that were scheduled and have not ended."""

    def __init__(self, part: int = 0) -> None:
        self._part = part
        self._games: dict[str, tuple[str, GameSpec]] = {}

    @property
    def specs(self) -> list[GameSpec]:
        """Specs of the games, oldest first."""
        return [spec for _, spec in self._games.values()]

    def begin(self, collector: str, specs: Iterable[GameSpec]) -> None:
        """Note that ``collector`` plays ``specs``."""
        self._games.update((_first_id(spec), (collector, spec)) for spec in specs)

    def end(self, record: GameRecord) -> None:
        """Note that a game has ended or failed."""
        first = _first_id(record.spec)
        if record.error is None:
            self._games.pop(first, None)
        elif first in self._games:
            # The collector plays a failed game again; if it dies, attempts count on from this one.
            self._games[first] = (self._games[first][0], record.spec)

    def lose(self, collector: str) -> None:
        """Mark the games of a collector that died as lost, see ``take_lost``."""
        for first, (player, spec) in self._games.items():
            if player == collector:
                # Long games are the likeliest to be lost, and training would lack them.
                self._games[first] = (_NO_COLLECTOR, retry(spec))

    def take_lost(self, count: int, name: str = "") -> list[GameSpec]:
        """At most ``count`` games to play again, oldest first; name: who learns from them."""
        lost = [
            spec
            for player, spec in self._games.values()
            if player == _NO_COLLECTOR and spec.learner == name
        ]
        return lost[:count]

    def state_dict(self) -> list[dict[str, Any]]:
        """The games, ready for JSON."""
        return [to_json(spec) for spec in self.specs]

    def load_state_dict(self, state: Iterable[dict[str, Any]]) -> None:
        """Note that the games that were under way when the state was taken were lost."""
        # The run may have played them again before it was resumed: the part makes the new ids
        # differ.
        lost = (dataclasses.replace(from_json(GameSpec, spec), part=self._part) for spec in state)
        self.begin(_NO_COLLECTOR, map(retry, lost))


def retry(spec: GameSpec) -> GameSpec:
    """The game to play after ``spec`` failed or was lost: same line-up under a new id.

    It is ``ID~N``, in a run that was resumed ``ID~PART.N``, N being the attempt.
    """
    attempt = int(spec.game_id.partition("~")[2].rpartition(".")[2] or 0) + 1
    # First the same game again: most failures are not the game's fault, and are more frequent in
    # long games, so that other games would be shorter. Then, as the game may be the cause, another
    # one; but games of a group must start in the same state.
    again = attempt == 1 or spec.group_id is not None
    part = f"{spec.part}." if spec.part else ""
    return dataclasses.replace(
        spec,
        game_id=f"{_first_id(spec)}~{part}{attempt}",
        seed=spec.seed if again else derive_seed(spec.seed, "retry", attempt),
    )


def same_game(spec: GameSpec) -> str:
    """The id of the game, the same when it is played again."""
    return re.sub(r"~(\d+\.)?1$", "", spec.game_id)


def _first_id(spec: GameSpec) -> str:
    return spec.game_id.partition("~")[0]
