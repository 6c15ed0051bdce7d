"""Ladders of real games: scripted players, and the untrained model of a run."""

import asyncio
import dataclasses

import pytest
from rich.console import Console
from tests.harness.in_process import rlforge_here

from rlforge.config.compose import compose, to_yaml
from rlforge.errors import ConfigError, RlforgeError
from rlforge.lab.ladder.entrants import plan_ladder
from rlforge.lab.ladder.play import play_ladder, verify_ladder
from rlforge.lab.ladder.record import CARD, PAGE, write_card
from rlforge.lab.ladder.view import show_ladder
from rlforge.record.game_files import index_games


@pytest.fixture(scope="module")
def config(small_model):
    overrides = ["env=tictactoe", "model=hf", f"model.name={small_model}", "model.lora.rank=4"]
    return to_yaml(compose([*overrides, "engine.max_tokens=4", "hardware.device=cpu"]).config)


@pytest.fixture
def run(config, tmp_path):
    """A run of TicTacToe that has saved no version."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(config)
    return folder


@pytest.fixture
def other(config, tmp_path):
    """The same run with answers of another temperature, which need an engine of their own."""
    folder = tmp_path / "other"
    folder.mkdir()
    assert "temperature: 1.0" in config
    (folder / "config.yaml").write_text(config.replace("temperature: 1.0", "temperature: 0.7"))
    return folder


def test_two_ladders_that_begin_in_the_same_second_have_a_folder_each(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "now")
    for _ in range(2):
        words = ("ladder", f"{run}:step-0", "--against", "random_legal", "--games", "2")
        assert rlforge_here(*words) == 0
    assert {card.parent.name for card in tmp_path.glob(f"ladders/*/{CARD}")} == {"now", "now.1"}


def test_a_ladder_writes_a_card_that_its_games_confirm(run, tmp_path):
    folder = tmp_path / "ladder"
    against = ["random_legal", "minimax", "base"]
    plan = plan_ladder([(run, "step-0")], against=against, games=8)
    asyncio.run(play_ladder(plan, folder, lambda text: None))

    card, unknown = verify_ladder(folder / CARD)

    assert unknown == []
    assert [one.uid for one in card.members] == ["step-0", "random_legal", "minimax"]
    assert card.ratings[0].uid == "minimax"
    specs = {game.spec.game_id: game.spec for game in index_games(folder)}
    one, mirror = (specs[f"ladder-0002-00003-{side}"] for side in (0, 1))
    assert one.seed == mirror.seed
    assert [seat.policy.uid for seat in one.seats] == ["random_legal", "minimax"]
    assert [seat.policy.uid for seat in mirror.seats] == ["minimax", "random_legal"]
    assert specs["ladder-0001-00003-0"].seed != one.seed
    for width in (80, 120):
        console = Console(width=width, record=True)
        show_ladder(card, console)
        text = console.export_text()
        assert "minimax" in text
        assert max(map(len, text.splitlines())) <= width
    page = (folder / PAGE).read_text()
    assert page.count('"strengths"') == 1
    assert card.members[2].files[0].sha256 in page

    # What was changed is named.
    first, *others = card.ratings
    write_card(
        folder, dataclasses.replace(card, ratings=(dataclasses.replace(first, nash=0.5), *others))
    )
    with pytest.raises(RlforgeError, match=r"ratings\.0\.nash: 0\.5 on the page"):
        verify_ladder(folder / CARD)
    player = card.members[1]
    hashes = tuple(dataclasses.replace(one, sha256="0" * 64) for one in player.files)
    members = (card.members[0], dataclasses.replace(player, files=hashes), card.members[2])
    write_card(folder, dataclasses.replace(card, members=members))
    with pytest.raises(RlforgeError, match=r"players\.py of random_legal has changed since"):
        verify_ladder(folder / CARD)


def test_an_interrupted_ladder_of_several_runs_keeps_what_was_played(run, other, tmp_path):
    folder = tmp_path / "ladder"
    runs = [(path, "step-0") for path in (run, other)]
    plan = plan_ladder(runs, games=2000, precision=0.001)
    assert [one.policy.uid for one in plan.entrants] == ["run:step-0", "other:step-0"]
    with pytest.raises(ConfigError, match=r"several models; name RUN:step-0"):
        plan_ladder(runs, against=["base"])
    with pytest.raises(ConfigError, match=r"of which run\? Name it as RUN:step-3"):
        plan_ladder(runs, against=["step-3"])

    async def until_the_second_round():
        def say(text):
            if text.startswith("20 games"):
                raise asyncio.CancelledError

        await play_ladder(plan, folder, say)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(until_the_second_round())

    card, _ = verify_ladder(folder / CARD)
    assert card.games == 20


def test_runs_without_a_common_game_of_two_are_refused(run, other):
    config = (run / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("TicTacToe-v0-train", "SimpleTak-v0-train"))
    both = [(path, "step-0") for path in (run, other)]

    with pytest.raises(ConfigError, match="the runs share no game"):
        plan_ladder(both)

    (other / "config.yaml").write_text(config.replace("num_players: 2", "num_players: 1"))
    with pytest.raises(ConfigError, match="a ladder plays games of two"):
        plan_ladder(both[1:])
    (other / "config.yaml").write_text(config.replace("max_turns: 20", "max_turns: 7"))
    with pytest.raises(ConfigError, match="name runs with the same rules"):
        plan_ladder(both)
