"""The settings of the tiny models: one for board and card games, one for markets."""

from __future__ import annotations

import dataclasses
import hashlib
import json

from rlforge.types import EnvSpec, value


@value
class WarmupGame:
    """A game of the warm-up: how often it is played, and its states in each training batch."""

    env: EnvSpec
    games: int
    batch_size: int

    @property
    def name(self) -> str:
        """As the report of a model names it."""
        return self.env.id


@value
class WarmupMarket:
    """Markets of the warm-up with ``accounts`` news accounts; ``games`` of them are made.

    players: agents that pick legal actions at random; half as many noise traders join them.
    """

    accounts: int
    games: int
    batch_size: int
    players: int = 12

    @property
    def name(self) -> str:
        """As the report of a model names it."""
        return f"market-{self.accounts}"


#: Fields of ``EnvSpec`` that enter a digest. Those added later change no model, and its name stays.
_OF_GAMES = (
    *("id", "source", "num_players", "max_turns", "timeout_s", "error_allowance", "weight"),
    *("prompt_template", "action_extraction"),
)


@value
class TinyRecipe:
    """A small Llama (Touvron et al. 2023) and its supervised warm-up.

    hidden, layers, heads, ffn: its sizes. initializer_range: standard deviation of its first
    weights; 0.1 reaches the same loss in half the steps of the usual 0.02. positions: longest
    text. steps, learning_rate, betas, weight_decay, grad_clip: AdamW, with ``lr_warmup`` steps of
    linear warm-up, constant for the share ``lr_flat`` of the steps, then a cosine down to
    ``lr_floor`` of it. discount: of outcomes, per own turn still to be played.
    value_weight, board_weight: of the outcome loss and of the losses about the view.
    revision: raised when a change of the code changes the model.
    """

    games: tuple[WarmupGame | WarmupMarket, ...] = (
        WarmupGame(env=EnvSpec(id="SimpleTak-v0-train"), games=5000, batch_size=128),
        WarmupGame(env=EnvSpec(id="TicTacToe-v0-train"), games=3000, batch_size=48),
        WarmupGame(env=EnvSpec(id="kuhn_poker", source="openspiel"), games=4000, batch_size=16),
    )
    hidden: int = 96
    layers: int = 2
    heads: int = 3
    ffn: int = 384
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
        for game in described["games"]:
            if "env" in game:
                game["env"] = {name: game["env"][name] for name in _OF_GAMES}
        text = json.dumps(described, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]


#: The recipe behind ``model=tiny``.
TINY = TinyRecipe()

#: The recipe behind ``model=tiny_market``. Markets with three news accounts are the usual ones.
TINY_MARKET = TinyRecipe(
    games=(
        WarmupMarket(accounts=3, games=32, batch_size=96),
        WarmupMarket(accounts=1, games=6, batch_size=12),
        WarmupMarket(accounts=2, games=6, batch_size=12),
        WarmupMarket(accounts=4, games=6, batch_size=12),
        WarmupMarket(accounts=5, games=6, batch_size=12),
    ),
    steps=400,
    discount=0.99,
    revision=3,
)
