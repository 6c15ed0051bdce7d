"""Games that are played again, and games of extensions."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from tests.factories import spiel

from rlforge.config.plugins import SOURCES
from rlforge.errors import ExtensionError
from rlforge.games.base import Game, View, guarded, reseed
from rlforge.games.registry import make_game
from rlforge.types import EnvSpec

PLAYED = [
    *(EnvSpec(id=f"{name}-v0-train") for name in ("TicTacToe", "SimpleTak", "ConnectFour")),
    *(EnvSpec(id=f"{name}-v0") for name in ("KuhnPoker", "Nim", "LiarsDice", "Othello", "PigDice")),
    *(EnvSpec(id=f"{name}-v0") for name in ("SimpleNegotiation", "TruthAndDeception")),
    *(EnvSpec(id=f"{name}-v0-raw") for name in ("Breakthrough", "WildTicTacToe")),
    EnvSpec(id="IteratedPrisonersDilemma-v0-raw"),
    EnvSpec(id="Battleship-v0"),
    EnvSpec(id="Blackjack-v0", num_players=1),
    EnvSpec(id="ThreePlayerTicTacToe-v0", num_players=3),
    *map(spiel, ("leduc_poker", "liars_dice", "dark_hex(num_rows=2,num_cols=2)", "goofspiel")),
    spiel("kuhn_poker(players=3)", 3),
    EnvSpec(id="market-small", source="market"),
]


def played(game: Game, seed: int, turns: int) -> list[Any]:
    """What is seen while ``turns`` turns are played at random."""
    rng, seen = random.Random(seed), list[Any]()
    while not game.done and len(seen) < turns:
        view = game.view()
        seen.append(view)
        game.step(rng.choice(view.legal_actions or ("[accept]", "no", "[1 2]", "[a]", "I pass.")))
        seen.append(game.accepted)
    return [*seen, game.result() if game.done else game.view()]


@pytest.mark.parametrize("env", PLAYED, ids=lambda env: env.id)
@pytest.mark.parametrize("turns", [0, 2])
def test_a_game_that_is_played_again_to_a_turn_goes_on_the_same(env, turns):
    courses = []
    for _ in range(2):
        game = make_game(env, seed=5)
        before = played(game, 1, turns)
        reseed(game, 7)
        courses.append((before, played(game, 2, 60)))
    assert courses[0] == courses[1]


class Heads:
    """A game of an extension."""

    done, accepted = False, True

    def view(self) -> View:
        return View(player_id=0, observation="Heads or tails?")

    def step(self, action: str) -> None:
        while action == "wait":
            time.sleep(0.01)


def test_a_game_of_an_extension_that_does_not_return_is_stopped_and_named():
    game = guarded(SOURCES, "mine:Heads", 0.2, Heads)
    game.step("heads")
    never_made = partial(guarded, SOURCES, "mine:Heads", 0.2, lambda: Heads().step("wait"))
    for call in (lambda: game.step("wait"), never_made):
        said = r"^game source 'mine:Heads' did not return within 0\.2 s"
        with pytest.raises(ExtensionError, match=said):
            call()


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt(), BaseException("no")])
def test_a_game_of_an_extension_does_not_end_the_process(ending: BaseException):
    class Ends(Heads):
        def step(self, action: str) -> None:
            raise ending

    game = guarded(SOURCES, "mine:Ends", None, Ends)
    said = rf"^game source 'mine:Ends' fails: {type(ending).__name__}: .*test_base.py, line"
    with ThreadPoolExecutor(1) as other, pytest.raises(ExtensionError, match=said):
        other.submit(game.step, "heads").result()  # in the main thread it would be Ctrl-C
