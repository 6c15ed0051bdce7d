"""The preference scorer: it learns from pairs within windows which decision is better."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from rlforge.continuous.ruler.agreement import MAX_PAIRS, Floats, Pairs, generate_pairs
from rlforge.continuous.ruler.base import DecisionScores
from rlforge.continuous.ruler.learned import LearnedScorer

#: Weight of the L2 penalty on the weights of standardised features.
L2 = 1.0
#: Weight of the learned model against the pairs of the scored window; 1: as much as all pairs of an
#: average decision.
MODEL_WEIGHT = 2.0
# At this distance from the mean, log-strengths win or lose with certainty in double precision.
_WIDEST = 30.0
_NO_PAIRS = Pairs(better=np.zeros(0, dtype=np.intp), worse=np.zeros(0, dtype=np.intp))


class PreferenceScorer(LearnedScorer):
    """Bradley-Terry strengths (Bradley and Terry 1952) of decisions.

    The learned part is linear, s(x) = w·x: logistic regression on feature differences of the pairs
    of past windows. The pairs of the scored window's own outcomes change it (``fit_strengths``).
    A score is the chance to beat a random other decision of the window at ``ruler.temperature``.
    """

    file_name = "preference.npz"
    _weights: Floats | None = None
    _learned_pairs = 0

    @property
    def weights(self) -> Floats | None:
        """Weights of the standardised features; None without enough pairs."""
        self._fit_once()
        return self._weights

    def _fit(self) -> None:
        self._weights, self._learned_pairs = None, 0
        windows = self.memory.windows
        if not windows:
            return
        features = np.concatenate([window.features for window in windows])
        self._mean, self._deviation = features.mean(axis=0), features.std(axis=0)
        # Constant features have no deviation to divide by.
        self._deviation[self._deviation <= 1e-9] = 1.0
        differences = []
        for window in windows:
            pairs = self._pairs(window.rewards.tolist(), window.id)
            rows = self._standardised(window.features)
            differences.append(rows[pairs.better] - rows[pairs.worse])
        rows = np.concatenate(differences)
        self._learned_pairs = len(rows)
        if self._learned_pairs < 2:
            return
        # The solver needs two classes; without an intercept a mirrored pair means the same.
        mirrored = np.arange(len(rows)) % 2 == 1
        rows[mirrored] *= -1
        # Newton's method suits few features and many pairs, and converges where lbfgs does not.
        model = LogisticRegression(C=1.0 / L2, fit_intercept=False, solver="newton-cholesky")
        model.fit(rows, ~mirrored)
        self._weights = model.coef_[0]

    def _judge(self, features: Floats, rewards: Sequence[float | None]) -> DecisionScores | None:
        own = self.config.preference.window_pairs
        pairs = self._pairs(rewards, "") if own else _NO_PAIRS
        if self._weights is None and not len(pairs):
            return None
        # [n, features]: the parts of the strengths, for their explanations.
        contributions: Floats = np.zeros_like(features)
        if self._weights is not None:
            contributions = self._standardised(features) * self._weights
        learned = contributions.sum(axis=1)
        # The games of an average decision, so that the learned model keeps its weight.
        games = 2 * len(pairs) / len(learned)
        strengths = fit_strengths(pairs, learned, prior_games=games * MODEL_WEIGHT)
        won, lost = (
            np.bincount(side, minlength=len(learned)) for side in (pairs.better, pairs.worse)
        )
        return DecisionScores(
            values=tuple(expected_wins(strengths, self.config.temperature).tolist()),
            explanations=tuple(
                self._explain(*one) for one in zip(strengths, contributions, won, lost, strict=True)
            ),
            metrics={"pairs": float(len(pairs)), "learned_pairs": float(self._learned_pairs)},
        )

    def _standardised(self, features: Floats) -> Floats:
        scaled: Floats = (features - self._mean) / self._deviation
        return scaled

    def _pairs(self, rewards: Sequence[float | None], salt: str) -> Pairs:
        return generate_pairs(
            rewards,
            margin=self.config.preference.margin,
            max_pairs=MAX_PAIRS,
            seed=self.seed ^ zlib.crc32(salt.encode()),
        )

    def _explain(self, strength: float, added: Floats, won: int, lost: int) -> str:
        most = np.argsort(-np.abs(added))[:3]
        parts = [f"{self.memory.names[i]} {added[i]:+.2f}" for i in most if abs(added[i]) > 0.005]
        if won or lost:
            parts.append(f"won {won} and lost {lost} comparisons")
        return f"strength {strength:+.2f}: {', '.join(parts) or 'nothing stands out'}"


def fit_strengths(
    pairs: Pairs,
    prior: Floats,
    *,
    prior_games: float,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> Floats:
    """Log-strengths of items, most likely under P(i beats j) = γ_i / (γ_i + γ_j).

    Every item also draws games against an opponent of its own.

    Args:
        pairs: Won and lost games.
        prior: Log-strengths of the opponents, shape [items].
        prior_games: Number of these games, above 0.
        tolerance: Largest change of a log-strength in the last step.
        max_iterations: Most steps.
    """
    # Without the drawn games an item that never lost would be infinitely strong, and unconnected
    # parts of the comparison graph could not be compared.
    n = len(prior)
    if len(pairs) == 0:
        return prior.copy()
    wins = np.bincount(pairs.better, minlength=n) + prior_games / 2
    # Strengths are powers of e, which the shift keeps near 1.
    shift = float(np.mean(prior))
    anchors = np.exp(np.clip(prior - shift, -_WIDEST, _WIDEST))
    strengths = anchors.copy()
    # Steps of Hunter (2004, "MM algorithms for generalized Bradley-Terry models", eq. 3), each of
    # which raises the likelihood.
    for _ in range(max_iterations):
        per_game = 1.0 / (strengths[pairs.better] + strengths[pairs.worse])
        games = np.bincount(pairs.better, per_game, n) + np.bincount(pairs.worse, per_game, n)
        updated = wins / (games + prior_games / (strengths + anchors))
        change = float(np.max(np.abs(np.log(updated / strengths))))
        strengths = updated
        if change < tolerance:
            break
    fitted: Floats = np.log(strengths) + shift
    return fitted


def expected_wins(strengths: Floats, temperature: float) -> Floats:
    """The chance of each item to beat another: the mean of sigmoid((s_i - s_j) / temperature)."""
    if len(strengths) < 2:
        return np.full(len(strengths), 0.5)
    # Item by item: a matrix of all of them may not fit into memory.
    total = np.array([expit((own - strengths) / temperature).sum() for own in strengths])
    # The item itself, with a sigmoid of 0.5, is no opponent.
    scores: Floats = (total - 0.5) / (len(strengths) - 1)
    return scores
