"""Which former versions of the learner stay in the pool as opponents.

``pool.max_active_lora`` versions are active at once, the current one included. A version that comes
on top makes another one leave, for good; a rule, ``pool.history``, says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlforge.config.pool import PoolConfig
from rlforge.league.payoff import Floats
from rlforge.types import value

#: Distances that agree to this many decimals are equal: rounding errors must not decide.
_DECIMALS = 9


@value
class Members:
    """The active versions as a rule sees them, one of them too many.

    Attributes:
        uids: Oldest first; the last one is current and stays.
        versions: Their updates, in the same order.
        mu: Mean rating of a uid.
        payoffs: From uids to their payoff vectors, one row each, see
            ``ResultTable.payoff_vectors``.
    """

    uids: tuple[str, ...]
    versions: tuple[int, ...]
    mu: Callable[[str], float]
    payoffs: Callable[[Sequence[str]], Floats]


Rule = Callable[[Members], int]
"""From at least two members to the position, except the last, of the one that leaves."""


def newest(members: Members) -> int:
    """The oldest leaves."""
    return 0


def spaced(members: Members) -> int:
    """The first stays, and the one leaves whose neighbours are nearest to each other.

    No gap is larger than twice that of evenly spaced versions, T / (k - 1) where k versions stay
    and the run has made T updates: of k + 1 versions the k - 1 inner ones have neighbours at most
    2 T / (k - 1) apart on average, so that the least of those gaps, which comes into being, is no
    larger. Only gaps between versions that were registered one after the other may be.

    Example:
        >>> spaced(Members(
        ...     uids=("a", "b", "c", "d"), versions=(0, 8, 10, 16),
        ...     mu=lambda uid: 0.0, payoffs=lambda uids: np.zeros((len(uids), 0)),
        ... ))
        2
    """
    versions = members.versions
    inner = range(1, len(versions) - 1)
    return min(inner, key=lambda index: versions[index + 1] - versions[index - 1], default=0)


def strongest(members: Members) -> int:
    """The one of the lowest mean rating leaves, of equal ones the oldest."""
    return min(range(len(members.uids) - 1), key=lambda index: members.mu(members.uids[index]))


def diverse(members: Members) -> int:
    """The one leaves whose payoff vector is the nearest to that of another (Euclidean distance).

    Two of a pair are equally near to each other: of them, the one whose second neighbour is nearer
    leaves, and where that is equal, too, the oldest.
    """
    vectors = members.payoffs(members.uids)
    apart = np.linalg.norm(vectors[:, None] - vectors[None], axis=-1).round(_DECIMALS)
    np.fill_diagonal(apart, np.inf)
    neighbours = np.sort(apart, axis=1).tolist()
    return min(range(len(members.uids) - 1), key=neighbours.__getitem__)


RULES: dict[str, Rule] = {
    "newest": newest,
    "spaced": spaced,
    "strongest": strongest,
    "diverse": diverse,
}


class History:
    """The active versions of the learner: the current one, and former ones as opponents.

    Example:
        >>> history = History(
        ...     PoolConfig(history="spaced", max_active_lora=3),
        ...     mu=lambda uid: 25.0, payoffs=lambda uids: np.zeros((len(uids), 0)),
        ... )
        >>> [history.add(f"step-{version}", version) for version in range(5)]
        [[], [], [], ['step-1'], ['step-3']]
        >>> history.uids
        ['step-4', 'step-2', 'step-0']
    """

    def __init__(
        self,
        config: PoolConfig,
        mu: Callable[[str], float],
        payoffs: Callable[[Sequence[str]], Floats],
    ) -> None:
        """mu, payoffs: see ``Members``."""
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
        """Make ``uid``, made by ``version`` updates, the current one; the uids that leave.

        The one before it leaves unless it is at least ``pool.keep_every`` updates newer than the
        last one that stayed; then, while there are too many, those that the rule says.
        """
        retired = []
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
        """The active versions, as plain data."""
        return {"versions": dict(self._versions), "kept": self._kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`; where fewer are active now, the rule says which."""
        self._versions, self._kept = dict(state["versions"]), state["kept"]
        self._thin()
