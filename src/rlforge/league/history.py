"""Former versions of the learner that stay in the pool as opponents, by ``pool.history``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlforge.config.pool import PoolConfig
from rlforge.league.payoff import Floats
from rlforge.types import value

#: Decimals of a distance that count: rounding errors must not decide.
_DECIMALS = 9


@value
class Members:
    """The active versions as a rule sees them, one of them too many."""

    uids: tuple[str, ...]  #: oldest first; the last one is current and stays
    versions: tuple[int, ...]  #: their updates, in the same order
    mu: Callable[[str], float]  #: the mean rating of a uid
    payoffs: Callable[[Sequence[str]], Floats]  #: ``ResultTable.payoff_vectors``


Rule = Callable[[Members], int]
"""Takes at least two members; returns the position of the one that leaves, never the last."""


def newest(members: Members) -> int:
    # Members are in order: the oldest leaves.
    return 0


def spaced(members: Members) -> int:
    """Keep the first, and let the one leave whose neighbours are nearest to each other.

    No gap between versions that were registered apart is larger than twice that of evenly spaced
    ones.
    """
    # After T updates, of k + 1 versions, the k - 1 inner ones have neighbours at most 2 T / (k - 1)
    # apart on average, so that the least of those gaps, which becomes the new one, is no larger.
    versions = members.versions
    inner = range(1, len(versions) - 1)
    return min(inner, key=lambda index: versions[index + 1] - versions[index - 1], default=0)


def strongest(members: Members) -> int:
    # ``min`` returns the first of equal ratings, which is the oldest.
    return min(range(len(members.uids) - 1), key=lambda index: members.mu(members.uids[index]))


def diverse(members: Members) -> int:
    """Let the one leave whose payoff vector is the nearest to another's (Euclidean distance)."""
    vectors = members.payoffs(members.uids)
    apart = np.linalg.norm(vectors[:, None] - vectors[None], axis=-1).round(_DECIMALS)
    np.fill_diagonal(apart, np.inf)
    # The two nearest versions are equally near to each other, so the distance to the second
    # neighbour decides, then age.
    neighbours = np.sort(apart, axis=1).tolist()
    return min(range(len(members.uids) - 1), key=neighbours.__getitem__)


RULES: dict[str, Rule] = {rule.__name__: rule for rule in (newest, spaced, strongest, diverse)}


class History:
    """The active versions of the learner: the current one, and former ones as opponents."""

    def __init__(
        self,
        config: PoolConfig,
        mu: Callable[[str], float],
        payoffs: Callable[[Sequence[str]], Floats],
    ) -> None:
        self._rule = RULES[config.history]
        self._size, self._keep_every = config.max_active_lora, config.keep_every
        self._mu, self._payoffs = mu, payoffs
        self._versions: dict[str, int] = {}
        #: The newest version that stays when another one becomes current.
        self._kept: int | None = None

    @property
    def uids(self) -> list[str]:
        """The active versions, the current one first."""
        return list(reversed(self._versions))

    def add(self, uid: str, version: int) -> list[str]:
        """Make ``uid``, made by ``version`` updates, current; returns the uids that leave."""
        retired = []
        # The version before leaves, unless it is pool.keep_every updates newer than the last kept.
        if self._versions and next(reversed(self._versions.values())) != self._kept:
            retired.append(self._versions.popitem()[0])
        if self._kept is None or version - self._kept >= self._keep_every:
            self._kept = version
        self._versions[uid] = version
        return retired + self._thin()

    def _thin(self) -> list[str]:
        retired = []
        while len(self._versions) > self._size:
            members = Members(
                uids=tuple(self._versions),
                versions=tuple(self._versions.values()),
                mu=self._mu,
                payoffs=self._payoffs,
            )
            retired.append(members.uids[self._rule(members)])
            del self._versions[retired[-1]]
        return retired

    def state_dict(self) -> dict[str, Any]:
        return {"versions": dict(self._versions), "kept": self._kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._versions, self._kept = dict(state["versions"]), state["kept"]
        # A resumed run may allow fewer versions than before.
        self._thin()
