"""The settings of a tiny model, and the random play on which it is trained."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from rlforge.errors import RlforgeError
from rlforge.games.base import View
from rlforge.games.registry import make_game
from rlforge.system.values import to_json
from rlforge.types import EnvSpec, value


@value
class State:
    """A turn of random play, with the player's discounted outcome of that game.

    facts: answers to yes-no questions about the view, if the game has some.
    """

    view: View
    outcome: float
    facts: tuple[bool, ...] = ()


@value
class Warmup(ABC):
    """A part of the warm-up: games to play, and how many of their states are in a batch.

    words: get a token even if no state shows them.
    """

    games: int
    batch_size: int
    words: ClassVar[Sequence[str]] = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the recipe's subject in the report of a model."""

    @abstractmethod
    def states(self, discount: float, seed: int) -> list[State]:
        """The states of all games.

        outcome: the reward, times ``discount`` for each decision that the player still had to make.
        """

    def play(self, discount: float, seed: int) -> list[State]:
        """The ``states``, with outcomes divided by the largest of all (by size)."""
        states = self.states(discount, seed)
        # If all games are drawn, the largest outcome is 0, by which nothing can be divided.
        largest = max(abs(state.outcome) for state in states) or 1.0
        return [dataclasses.replace(state, outcome=state.outcome / largest) for state in states]


@value
class WarmupGame(Warmup):
    """A game whose players pick legal actions at random."""

    env: EnvSpec

    @property
    def name(self) -> str:
        return self.env.id

    def states(self, discount: float, seed: int) -> list[State]:
        rng = random.Random(seed)
        states: list[State] = []
        for index in range(self.games):
            match = make_game(self.env, seed + index)
            views: list[View] = []
            while not match.done:
                view = match.view()
                if not view.legal_actions or view.board is None:
                    raise RlforgeError(f"{self.name} has no compact board to warm a model on")
                views.append(view)
                match.step(rng.choice(view.legal_actions))
            rewards = match.result().rewards
            ahead = Counter(view.player_id for view in views)
            for view in views:
                ahead[view.player_id] -= 1
                outcome = rewards[view.player_id] * discount ** ahead[view.player_id]
                states.append(State(view=view, outcome=outcome))
        return states


#: Fields of a stored ``EnvSpec`` that enter a digest; others, added later, change no model.
_OF_GAMES = (
    *("id", "source", "num_players", "max_turns", "timeout_s", "error_allowance", "weight"),
    *("prompt_template", "action_extraction"),
)


@value
class TinyRecipe:
    """A small Llama (Touvron et al. 2023) and its supervised warm-up by AdamW.

    Attributes:
        initializer_range: Standard deviation of the first weights.
        positions: Longest text, in tokens.
        lr_warmup, lr_flat, lr_floor: Steps of a linear rise, share of the steps until which the
            rate is constant, and share of it to which a cosine then falls.
        discount: Discount of outcomes, per own turn still to be played.
        value_weight, board_weight: Weights of the outcome loss and of the losses about the view.
        revision: Raised when a change of the code changes the model.
    """

    games: tuple[Warmup, ...] = (
        WarmupGame(env=EnvSpec(id="SimpleTak-v0-train"), games=5000, batch_size=128),
        WarmupGame(env=EnvSpec(id="TicTacToe-v0-train"), games=3000, batch_size=48),
        WarmupGame(env=EnvSpec(id="kuhn_poker", source="openspiel"), games=4000, batch_size=16),
    )
    hidden: int = 96
    layers: int = 2
    heads: int = 3
    ffn: int = 384
    # With 0.1 training reaches the same loss in half the steps of the usual 0.02.
    initializer_range: float = 0.1
    positions: int = 2048
    steps: int = 900
    learning_rate: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    lr_warmup: int = 30
    lr_flat: float = 0.3
    lr_floor: float = 0.02
    discount: float = 0.9
    value_weight: float = 0.5
    board_weight: float = 8.0
    seed: int = 0
    revision: int = 1

    def digest(self) -> str:
        """Ten hex digits that identify this recipe."""
        described = dataclasses.asdict(self)
        for game, own in zip(self.games, described["games"], strict=True):
            if isinstance(game, WarmupGame):
                env = to_json(game.env)
                own["env"] = {name: env[name] for name in _OF_GAMES}
        text = json.dumps(described, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]


#: The recipe behind ``model=tiny``.
TINY = TinyRecipe()
