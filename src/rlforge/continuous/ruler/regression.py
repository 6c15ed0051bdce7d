"""The regression scorer: it predicts the reward of a decision from its features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rlforge.continuous.ruler.agreement import Floats
from rlforge.continuous.ruler.base import DecisionScores
from rlforge.continuous.ruler.learned import LearnedScorer

#: Fewest known rewards to fit a model to.
_FEWEST = 4
_FOLDS = 5
#: Weight of the L2 penalty: of ridge's weights, or of the trees' leaves.
L2 = 1.0
#: Trees of ``gradient_boosting``.
TREES = 100


class RegressionScorer(LearnedScorer):
    """The predicted reward r, as sigmoid((r - mean) / (deviation × ``ruler.temperature``)).

    Before the first window, each decision is predicted by a model fitted to the other decisions of
    its own window (cross-validation).
    """

    file_name = "regression.npz"
    _model: Any = None
    _rewards: Floats | None = None

    def _fit(self) -> None:
        self._model = self._rewards = None
        windows = self.memory.windows
        if sum(len(window.rewards) for window in windows) >= _FEWEST:
            self._rewards = np.concatenate([window.rewards for window in windows])
            features = np.concatenate([window.features for window in windows])
            self._model = self._make_model().fit(features, self._rewards)

    def _judge(self, features: Floats, rewards: Sequence[float | None]) -> DecisionScores | None:
        if self._model is not None:
            assert self._rewards is not None
            predicted, seen = self._model.predict(features), self._rewards
        else:
            known = np.array([i for i, r in enumerate(rewards) if r is not None], dtype=np.intp)
            if len(known) < _FEWEST:
                return None
            seen = np.array([rewards[i] for i in known], dtype=np.float64)
            predicted = np.asarray(self._make_model().fit(features[known], seen).predict(features))
            # A model that saw a reward would repeat it.
            folds = KFold(min(_FOLDS, len(known)), shuffle=True, random_state=self.seed % 2**32)
            one = self._make_model()
            predicted[known] = cross_val_predict(one, features[known], seen, cv=folds)
        # Scaled by the rewards learned from, so that scores of windows are comparable.
        deviation = float(seen.std())
        spread = self.config.temperature * deviation if deviation > 1e-9 else 1.0
        return DecisionScores(
            values=tuple(expit((predicted - seen.mean()) / spread).tolist()),
            explanations=tuple(f"predicted reward {reward:+.3f}" for reward in predicted),
            metrics={
                "cold_start": float(self._model is None),
                "mean_predicted_reward": float(predicted.mean()),
            },
        )

    def _make_model(self) -> Any:
        if self.config.regression.model == "gradient_boosting":
            return HistGradientBoostingRegressor(
                max_iter=TREES,
                l2_regularization=L2,
                # Early stopping would hold back a tenth of few decisions.
                early_stopping=False,
                random_state=self.seed % 2**32,
            )
        return make_pipeline(StandardScaler(), Ridge(alpha=L2))
