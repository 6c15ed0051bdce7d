"""A player: an opponent or baseline without a model."""

import random

from rlforge import EnvSpec, GameError, View


class Greedy:
    """The last action of those listed; in Nim it takes the most stones."""

    def __init__(self, env: EnvSpec, rng: random.Random) -> None:
        self.rng = rng  # for players that draw: seeded, so that a game can be repeated

    def act(self, view: View) -> str:
        """The action in ``view``."""
        if not view.legal_actions:
            raise GameError("greedy needs a game that lists its legal actions")
        return view.legal_actions[-1]
