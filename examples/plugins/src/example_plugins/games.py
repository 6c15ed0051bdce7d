"""A source of games, and its game: Nim with one heap."""

import random

from rlforge import ConfigError, EnvSpec, GameResult, View

HEAPS = {"nim-short": (8, 12), "nim-long": (15, 25)}
"""Fewest and most stones at the start, by id; drawn from the game's seed."""


class NimGame:
    """Players take 1 to 3 stones in turn; the player who takes the last one wins."""

    accepted = True  # an illegal action ends the game: none is ever taken back

    def __init__(self, stones: int) -> None:
        self.stones, self.turn, self.ending = stones, 0, None

    @property
    def done(self) -> bool:
        return self.ending is not None

    def view(self) -> View:
        legal = tuple(f"[{n}]" for n in range(1, min(3, self.stones) + 1))
        text = f"{self.stones} stones are left. You may take: {', '.join(legal)}"
        return View(player_id=self.turn % 2, observation=text, legal_actions=legal)

    def step(self, action: str) -> None:
        view = self.view()
        me = view.player_id
        self.accepted = action in view.legal_actions
        if not self.accepted:
            lost = {me: -1.0, 1 - me: 1.0}
            self.ending = GameResult(rewards=lost, end_reason="invalid_move", invalid_by=me)
            return
        self.stones, self.turn = self.stones - int(action.strip("[]")), self.turn + 1
        if self.stones == 0:
            self.ending = GameResult(rewards={me: 1.0, 1 - me: -1.0}, end_reason="finished")

    def result(self) -> GameResult:
        return self.ending


class Nim:
    """The source: games by id, for ``env: {train: [{id: nim-short, source: nim}]}``."""

    def make(self, env: EnvSpec, seed: int) -> NimGame:
        return NimGame(random.Random(seed).randint(*HEAPS[env.id]))

    def check(self, env: EnvSpec) -> None:
        if env.id not in HEAPS or env.num_players != 2:
            raise ConfigError(f"nim has {', '.join(self.env_ids())}, each for two players")

    def env_ids(self) -> list[str]:
        return sorted(HEAPS)
