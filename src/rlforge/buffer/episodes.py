"""The episode buffer: whole episodes, and whole groups of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlforge.buffer.base import Buffer, BufferSettings, VersionQueue
from rlforge.rewards.sampling import is_constant
from rlforge.system.values import Codec
from rlforge.types import Episode, Step

_EPISODES = Codec(Episode, form="json")


@dataclasses.dataclass(slots=True)
class _Group:
    """Episodes that stay together: a GRPO group, or a single episode that has no group.

    games: those that bring episodes: all of the group but the ones passed over. version: the one
    from which staleness counts; None without episodes.
    """

    group_id: str | None
    games: int
    episodes: list[Episode]
    version: int | None = None

    @property
    def complete(self) -> bool:
        return len({episode.game_id for episode in self.episodes}) >= self.games

    @property
    def steps(self) -> int:
        return sum(len(episode.steps) for episode in self.episodes)

    @property
    def has_advantage(self) -> bool:
        """Whether the scores of any player differ; a score is the mean reward of the turns."""
        scores: dict[int, list[float]] = {}
        for episode in self.episodes:
            rewards = [step.reward for step in episode.steps]
            scores.setdefault(episode.player_id, []).append(math.fsum(rewards) / len(rewards))
        return not all(is_constant(of_player) for of_player in scores.values())


def _version_of_group(group: _Group) -> int:
    assert group.version is not None, "it has episodes"
    return group.version


class EpisodeBuffer(Buffer):
    """Stores whole episodes, for group advantages and critics.

    Episodes with a ``group_id`` are drawn, evicted and dropped together with their group, and drawn
    only once all ``group_size`` games of it are stored or passed over. Where episodes of a group
    were filtered, those left are compared with each other. A batch takes whole groups until it has
    at least n episodes: exactly n if a group's episodes (games times trained seats) divide n,
    otherwise fewer than n plus one group.

    A group is as old as its newest game, so that short games may wait for the long ones of their
    group; with ``max_staleness`` 0 as its oldest.

    With ``max_replaced``, complete groups in which every player's episodes have the same score are
    not stored, and their places are free for other games: a batch then holds groups with an
    advantage only. Admission expects the full yield of every game, so that no more games start
    than without replacement, and none goes stale by it.

    Example:
        >>> settings = BufferSettings(
        ...     max_size=64, max_staleness=1, batch_size=8, batch_delay=1.0, seed=0
        ... )
        >>> buffer = EpisodeBuffer(settings)
        >>> buffer.reserve(100)  # two batches of 8 episodes, 2 episodes a game
        8
        >>> buffer.ready(), buffer.draw(8, version=0)
        (False, None)
    """

    kind = "episode"
    default_samples_per_game = 2.0

    def __init__(self, settings: BufferSettings) -> None:
        super().__init__(settings)
        self._complete: VersionQueue[_Group] = VersionQueue(_version_of_group, self._random)
        self._complete_size = 0
        self._open: dict[str, _Group] = {}
        self._open_size = 0
        #: Groups dropped before they were complete, and the version at that time.
        self._given_up: dict[str, int] = {}
        #: Episodes left out for the batch that is being filled, and for the last one drawn.
        self._replacing = 0
        self.replaced = 0

    def size(self) -> int:
        return self._complete_size + self._open_size

    def drawable(self) -> int:
        return self._complete_size

    def clear(self) -> None:
        self._complete.clear()
        self._complete_size = 0
        for group_id in list(self._open):
            self._give_up(group_id)

    def pass_over(self, group_id: str, group_size: int) -> None:
        """A game of the group ended without an episode: the group is complete without it."""
        if group_id in self._given_up:
            return
        group = self._open.setdefault(group_id, _Group(group_id, group_size, []))
        group.games -= 1
        self._close_if_complete(group_id)

    def _samples_in(self, episode: Episode) -> int:
        return 1

    def _store(self, game: Sequence[Episode]) -> None:
        group_id, version = game[0].group_id, self._version_of(game)
        if group_id in self._given_up:
            return
        known = self._open.get(group_id) if group_id is not None else None
        if known is not None and known.version is not None:
            version = self._version_that_counts((known.version, version))
        if version < self._oldest_allowed():
            self._dropped_stale_steps += sum(len(episode.steps) for episode in game)
            if group_id is not None:
                self._dropped_stale_steps += self._give_up_stale(group_id)
            return
        if group_id is None:
            for episode in game:
                self._add_complete(_Group(None, 1, [episode], version))
            return
        group = self._open.setdefault(group_id, _Group(group_id, game[0].group_size, []))
        group.episodes += game
        group.version = version
        self._open_size += len(game)
        self._close_if_complete(group_id)

    def _close_if_complete(self, group_id: str) -> None:
        group = self._open[group_id]
        if group.complete:
            del self._open[group_id]
            self._open_size -= len(group.episodes)
            replacing = self._replacing + len(group.episodes)
            if replacing <= self._settings.max_replaced and not group.has_advantage:
                self._replacing = replacing  # none of its episodes teaches anything
            elif group.episodes:
                self._add_complete(group)

    def _add_complete(self, group: _Group) -> None:
        self._complete.add([group])
        self._complete_size += len(group.episodes)

    def _evict_one(self) -> None:
        # Open groups belong to games in progress: a short list.
        stored = [group_id for group_id, group in self._open.items() if group.episodes]
        place = self._random.randrange(len(self._complete) + len(stored))
        if place < len(self._complete):
            self._complete_size -= len(self._complete.evict().episodes)
        else:
            self._give_up(stored[place - len(self._complete)])

    def _give_up(self, group_id: str) -> None:
        """Drop an open group and refuse its later episodes."""
        if (group := self._open.pop(group_id, None)) is not None:
            self._open_size -= len(group.episodes)
        self._given_up[group_id] = self.version

    def _take(self, n: int) -> tuple[list[Step], int]:
        episodes: list[Episode] = []
        while len(episodes) < n:
            episodes += self._complete.take().episodes
        self._complete_size -= len(episodes)
        self.replaced, self._replacing = self._replacing, 0
        return [step for episode in episodes for step in episode.steps], len(episodes)

    def _drop_stale(self, oldest: int) -> int:
        gone = self._complete.drop_older(oldest)
        self._complete_size -= sum(len(group.episodes) for group in gone)
        dropped = sum(group.steps for group in gone)
        for group_id, group in list(self._open.items()):
            if group.version is not None and group.version < oldest:
                dropped += self._give_up_stale(group_id)
        # A game that ends even later reopens its group, which then goes stale.
        self._given_up = {g: since for g, since in self._given_up.items() if since >= oldest}
        return dropped

    def _give_up_stale(self, group_id: str) -> int:
        steps = self._open[group_id].steps if group_id in self._open else 0
        self._give_up(group_id)
        return steps

    def _contents(self) -> dict[str, Any]:
        groups = [*self._complete, *self._open.values()]
        return {
            "groups": [
                {
                    "group_id": group.group_id,
                    "games": group.games,
                    "version": group.version,
                    "episodes": [_EPISODES.encode(episode) for episode in group.episodes],
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
                list(map(_EPISODES.decode, group["episodes"])),
                group["version"],
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
