"""A sampling mode: how the pool draws the next opponent."""

from rlforge import PoolView, softmax


def strongest(view: PoolView) -> dict[str, float]:
    """Softmax of the mean rating: strong opponents are drawn most."""
    ratings = [view.mu(uid) for uid in view.opponents]
    return dict(zip(view.opponents, softmax(ratings, view.temperature), strict=True))
