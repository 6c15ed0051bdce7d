"""A person at one seat of a game, scripted players at the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlforge.errors import ConfigError, RunError
from rlforge.games.actions import extract
from rlforge.games.base import GameResult, make_game
from rlforge.games.players import check_player, make_player
from rlforge.types import EnvSpec


def play_at_terminal(
    env: EnvSpec,
    opponents: Sequence[str],
    seat: int,
    seed: int,
    ask: Callable[[str], str],
    tell: Callable[[str], object],
) -> GameResult:
    """Play one game: ``tell`` shows what is seen, ``ask`` returns the line that is answered.

    opponents: scripted players, in turn at the seats that are left. Actions may be written
    without their brackets. Raises ``ConfigError`` for a seat or an opponent that the game does not
    have, ``RunError`` when there is nobody to answer (the input ended).
    """
    if seat >= env.num_players:
        raise ConfigError(f"{env.id} has seats 0 to {env.num_players - 1}, no seat {seat}")
    others = [number for number in range(env.num_players) if number != seat]
    names = {number: opponents[i % len(opponents)] for i, number in enumerate(others)}
    for name in dict.fromkeys(names.values()):
        check_player(name, env)
    players = {number: make_player(name, env, seed + number) for number, name in names.items()}
    game = make_game(env, seed)
    while not game.done:
        view = game.view()
        if view.player_id != seat:
            game.step(players[view.player_id].act(view))
            continue
        tell(f"\n{view.observation}\n")
        try:
            answer = ask("your action> ")
        except EOFError:
            raise RunError("the input ended before the game did") from None
        game.step(extract("last_line", answer, view.legal_actions).action)
    result = game.result()
    by = "" if result.invalid_by is None else f" by player {result.invalid_by}"
    tell(f"\nThe game is over: {result.end_reason.replace('_', ' ')}{by}.")
    for number, reward in sorted(result.rewards.items()):
        tell(f"{'you' if number == seat else names[number]} (player {number}): {reward:+.2f}")
    return result
