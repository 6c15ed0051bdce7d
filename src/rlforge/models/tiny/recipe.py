"""Everything that decides what the tiny model is."""

from __future__ import annotations

import dataclasses
import hashlib
import json

from rlforge.types import EnvSpec, value


@value
class WarmupGame:
    """A game of the warm-up: how many games are played, and its states in each training batch."""

    env: EnvSpec
    games: int
    batch_size: int


@value
class TinyRecipe:
    """A small Llama (Touvron et al. 2023) and its supervised warm-up.

    hidden, layers, heads, ffn: its sizes. initializer_range: standard deviation of its first
    weights; 0.1 reaches the same loss in half the steps of the usual 0.02. positions: longest
    text. steps, learning_rate, betas, weight_decay, grad_clip: AdamW, with ``lr_warmup`` steps of
    linear warm-up, constant for the share ``lr_flat`` of the steps, then a cosine down to
    ``lr_floor`` of it. discount: of outcomes, per own turn still to be played.
    value_weight, board_weight: of the outcome loss and of the questions about the board.
    revision: raised when the code that follows the recipe changes what comes out.
    """

    games: tuple[WarmupGame, ...] = (
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
        """Ten hex digits that name what this recipe makes."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]


#: The recipe behind ``model=tiny``.
TINY = TinyRecipe()
