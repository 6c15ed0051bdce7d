"""Buffer of whole episodes, and of whole groups of them."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Mapping
from itertools import chain
from typing import Any

from rlforge.buffer.admission import BufferSettings
from rlforge.buffer.base import Buffer, Shaped, Stamp, VersionQueue
from rlforge.rewards.sampling import is_constant
from rlforge.samples import Episode, Sample
from rlforge.system.values import from_json, to_json


@dataclasses.dataclass(slots=True)
class _Group:
    """Games that stay together: a GRPO group, or a single episode without one.

    Attributes:
        games: Games of the group less those that bring no episode.
        stamp: None before a game is played.
        ended: Sum of the versions in which its games ended.
    """

    group_id: str | None
    games: int
    played: list[Shaped]
    stamp: Stamp | None = None
    ended: int = 0

    @property
    def last(self) -> int:
        """Last version that may be trained on it."""
        assert self.stamp is not None, "it has episodes"
        return self.stamp.last

    @property
    def complete(self) -> bool:
        return len(self.played) >= self.games

    @property
    def episodes(self) -> list[Episode]:
        return [episode for game in self.played for episode in game.episodes]

    @property
    def turns(self) -> int:
        return sum(map(len, self.episodes))

    @property
    def has_advantage(self) -> bool:
        """Whether the scores of any player differ; a score is the mean reward of the turns."""
        scores: dict[int, list[float]] = {}
        for episode in self.episodes:
            rewards = [turn.reward for turn in episode]
            scores.setdefault(episode[0].player_id, []).append(math.fsum(rewards) / len(rewards))
        return not all(is_constant(of_player) for of_player in scores.values())


class EpisodeBuffer(Buffer):
    """Stores whole episodes, for group advantages and critics.

    Episodes with a ``group_id`` are drawn, evicted and dropped with their group, and drawn only
    once all ``group_size`` games of it are stored or have left it. A batch takes whole groups until
    it has at least n episodes.

    A group is as old as its newest game, so that short games may wait for the long ones of their
    group; with ``max_staleness`` 0 as its oldest.

    With ``max_replaced``, complete groups whose players each have equal scores are not stored, and
    their places are free for other games.

    Example:
        >>> settings = BufferSettings(
        ...     max_size=64, max_staleness=1, batch_size=8, batch_delay=1.0, seed=0
        ... )
        >>> buffer = EpisodeBuffer(settings)
        >>> buffer.reserve(100)  # a batch of 8 episodes, 2 episodes a game
        4
        >>> buffer.ready(), buffer.draw(8, version=0)
        (False, None)
    """

    kind = "episode"
    default_samples_per_game = 2.0

    def __init__(self, settings: BufferSettings) -> None:
        super().__init__(settings)
        self._complete: VersionQueue[_Group] = VersionQueue(lambda g: g.last, self._random)
        self._complete_size = 0
        self._open: dict[str, _Group] = {}
        self._open_size = 0
        #: Version at which each incomplete group was dropped.
        self._given_up: dict[str, int] = {}
        #: Episodes without advantage, of the batch being filled and of the last one drawn.
        self._replacing = 0
        self.replaced = 0
        #: ``group_wait`` of the last 64 groups.
        self._group_waits: deque[float] = deque(maxlen=64)

    def size(self) -> int:
        return self._complete_size + self._open_size

    def drawable(self) -> int:
        return self._complete_size

    def clear(self) -> None:
        self._complete.clear()
        self._complete_size = 0
        for group_id in list(self._open):
            self._give_up(group_id)

    @property
    def group_wait(self) -> float:
        """Mean updates that a game of a group waits for the last one of its group."""
        return math.fsum(self._group_waits) / max(1, len(self._group_waits))

    def _store(self, game: Shaped) -> None:
        group_id = game.group_id
        if group_id in self._given_up:
            self._observe(game)
            self._losses.stale += sum(map(len, game.episodes))
            return
        open_group = None if group_id is None else self._open.get(group_id)
        group = open_group or _Group(group_id, game.group_size, [])
        if game.episodes:
            group.stamp = self._stamp(chain(*group.episodes, *game.episodes))
            if self._too_old(group.stamp):
                self._observe(game)
                self._losses.add(group.stamp, group.stamp.turns)
                if group_id is not None:
                    self._give_up(group_id)
                return
        if group_id is None:
            self._observe(game)
            # No group holds the episodes of a game together, so each is drawn by itself.
            for episode in game.episodes:
                self._add_complete(_Group(None, 1, [Shaped([episode])], group.stamp))
            return
        self._open[group_id] = group
        if game.episodes:
            group.played.append(game)
            group.ended += self.version
            self._open_size += len(game.episodes)
        else:
            # The game's episodes were filtered: a group that waited for it would never be complete.
            group.games -= 1
        if group.complete:
            self._close(group_id)

    def _close(self, group_id: str) -> None:
        """Make a complete group drawable, or leave it out."""
        group = self._open.pop(group_id)
        self._open_size -= len(group.episodes)
        if group.played:
            for game in group.played:
                self._observe(game)
            self._group_waits.append(self.version - group.ended / group.games)
        replacing = self._replacing + len(group.episodes)
        # For admission, games of groups that are left out have their full yield: else more games
        # would start, and some would go stale.
        if replacing <= self._settings.max_replaced and not group.has_advantage:
            self._replacing = replacing
        elif group.episodes:
            self._add_complete(group)

    def _add_complete(self, group: _Group) -> None:
        self._complete.add([group])
        self._complete_size += len(group.episodes)

    def _evict_one(self) -> int:
        gone = self._complete.evict()
        self._complete_size -= len(gone.episodes)
        return gone.turns

    def _give_up(self, group_id: str) -> None:
        """Drop an open group and refuse its later episodes."""
        if (group := self._open.pop(group_id, None)) is not None:
            self._open_size -= len(group.episodes)
        # The group's games in progress still end, and would else open it again, never complete.
        self._given_up[group_id] = self.version

    def _take(self, n: int) -> tuple[list[Sample], int]:
        episodes: list[Episode] = []
        while len(episodes) < n:
            episodes += self._complete.take().episodes
        self._complete_size -= len(episodes)
        self.replaced, self._replacing = self._replacing, 0
        return [*chain(*episodes)], len(episodes)

    def _drop_before(self, version: int) -> None:
        for group in self._complete.drop_older(version):
            self._complete_size -= len(group.episodes)
            assert group.stamp is not None
            self._losses.add(group.stamp, group.turns)
        for group_id, group in list(self._open.items()):
            if group.stamp is not None and group.stamp.last < version:
                self._losses.add(group.stamp, group.turns)
                self._give_up(group_id)
        # Older ids may go: a game that ends even later only reopens its group, which is dropped
        # again once its turns are stale.
        oldest = version - self._settings.max_staleness * self._settings.wait
        self._given_up = {g: since for g, since in self._given_up.items() if since >= oldest}

    def _contents(self) -> dict[str, Any]:
        groups = [*self._complete, *self._open.values()]
        return {
            "groups": [
                {
                    "group_id": group.group_id,
                    "games": group.games,
                    "stamp": group.stamp,
                    "ended": group.ended,
                    "played": [to_json(game.episodes) for game in group.played],
                }
                for group in groups
            ],
            "given_up": dict(self._given_up),
            "replaced": [self._replacing, self.replaced],
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        groups = [
            _Group(
                group["group_id"],
                group["games"],
                [Shaped(from_json(list[tuple[Sample, ...]], game)) for game in group["played"]],
                None if group["stamp"] is None else Stamp(*group["stamp"]),
                group["ended"],
            )
            for group in state["groups"]
        ]
        self._complete.clear()
        self._complete.add(group for group in groups if group.complete)
        self._open = {g.group_id: g for g in groups if g.group_id is not None and not g.complete}
        self._complete_size = sum(len(group.episodes) for group in self._complete)
        self._open_size = sum(len(group.episodes) for group in self._open.values())
        self._given_up = dict(state["given_up"])
        self._replacing, self.replaced = state["replaced"]
