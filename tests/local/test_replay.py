"""Games shown again: written as a run writes them, read back and printed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from rlforge.errors import ConfigError
from rlforge.games.base import View
from rlforge.games.players import make_player
from rlforge.league.names import parse_opponent
from rlforge.local.replay import find_game, game_list, turns
from rlforge.rollout.episode import play_game
from rlforge.rollout.schedule import line_up
from rlforge.tracking.game_files import GameWriter
from rlforge.types import Completion, EnvSpec, GameRecord, GameSpec, Seat

ENV = EnvSpec(id="TicTacToe-v0-train")
MINIMAX = parse_opponent("minimax")


def played(game_id: str, seed: int) -> GameRecord:
    async def answer(seat: Seat, view: View, draw: int) -> Completion:
        text = make_player("minimax", ENV, draw).act(view)
        return Completion(text=text, finish_reason="scripted", policy_uid="minimax")

    seats = line_up(ENV, [MINIMAX, MINIMAX], None)
    spec = GameSpec(game_id=game_id, env=ENV, seed=seed, purpose="train", seats=seats)
    return asyncio.run(play_game(spec, answer))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    writer = GameWriter(tmp_path)
    writer.add(played(f"train-{number}", number) for number in range(3))
    writer.close()
    return tmp_path


def shown(*pieces: RenderableType) -> str:
    console = Console(width=80, no_color=True)
    with console.capture() as capture:
        for piece in pieces:
            console.print(piece)
    return capture.get()


def test_the_newest_games_are_listed(run_dir: Path) -> None:
    text = shown(game_list(run_dir, most=2))
    assert "3 finished games; the newest 2" in text
    assert "train-1" in text
    assert "train-0" not in text
    assert "minimax v minimax" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_run_without_games_says_so(tmp_path: Path) -> None:
    assert "no game is finished yet" in shown(game_list(tmp_path))


def test_a_game_is_shown_turn_by_turn_to_its_end(run_dir: Path) -> None:
    record = find_game(run_dir, "train-1")
    text = shown(*turns(record))
    for place, turn in enumerate(record.turns, start=1):
        assert f"{place}. player {turn.player_id} (minimax)" in text
        assert f"plays {turn.action}" in text
    assert text.rstrip().endswith("finished: +0 +0")


def test_a_game_that_is_not_there_is_named_with_the_nearest(run_dir: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean train-"):
        find_game(run_dir, "train-9")
