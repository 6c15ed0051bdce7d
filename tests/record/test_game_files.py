"""Games on disk: written in chunks, read back equal, listed by index."""

import shutil
from pathlib import Path

import pytest
from tests.factories import equal_turns
from tests.harness.records import write_games

from rlforge.errors import RlforgeError
from rlforge.record import game_files
from rlforge.record.game_files import GameWriter, index_games, read_games


def test_games_come_back_equal_and_in_order(tmp_path):
    games = [equal_turns(f"g{index}", turns=index) for index in range(7)]
    games.append(equal_turns("bad", error="GameError: broke \ud800"))
    writer = GameWriter(tmp_path, chunk_games=3)
    writer.add(games)
    writer.close()
    back = list(read_games(tmp_path))
    assert back[:7] == games[:7]
    assert back[7].error == "GameError: broke ?"
    assert len(list((tmp_path / "games").glob("*.parquet"))) == 3


def test_a_full_chunk_is_on_disk_before_close_and_the_rest_is_not(tmp_path):
    writer = GameWriter(tmp_path, chunk_games=2, chunk_seconds=1000)
    writer.add([equal_turns("a"), equal_turns("b"), equal_turns("c")])
    assert [game.spec.game_id for game in read_games(tmp_path)] == ["a", "b"]
    writer.close()
    assert [game.spec.game_id for game in read_games(tmp_path)] == ["a", "b", "c"]


def test_an_old_chunk_is_written_though_it_is_not_full(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(game_files.time, "monotonic", clock)
    writer = GameWriter(tmp_path, chunk_seconds=20)
    writer.add([equal_turns("a")])
    clock.now += 19
    writer.tick()
    assert not list(read_games(tmp_path))
    clock.now += 1
    writer.tick()
    assert len(list(read_games(tmp_path))) == 1


def test_writers_do_not_collide_and_numbering_continues(tmp_path):
    for name, game_id in (("collector-0", "a"), ("collector-1", "b"), ("collector-0", "c")):
        writer = GameWriter(tmp_path, name)
        writer.add([equal_turns(game_id)])
        writer.close()
    names = sorted(path.name for path in (tmp_path / "games").iterdir())
    parts = ("0-000001", "0-000002", "1-000001")
    assert names == [f"collector-{part}.parquet" for part in parts]
    assert [game.spec.game_id for game in read_games(tmp_path)] == ["a", "b", "c"]


def test_copies_that_a_person_has_put_there_are_left_out_and_kept(tmp_path):
    writer = GameWriter(tmp_path)
    writer.add([equal_turns("a")])
    writer.flush()
    copy = shutil.copy(
        tmp_path / "games/games-000001.parquet", tmp_path / "games/games-1 (copy).parquet"
    )
    assert [game.spec.game_id for game in read_games(tmp_path)] == ["a"]
    GameWriter(tmp_path).rewind(0)
    assert list((tmp_path / "games").iterdir()) == [Path(copy)]


def test_games_are_found_by_id_and_by_purpose(tmp_path):
    writer = GameWriter(tmp_path, chunk_games=2)
    writer.add([equal_turns(f"g{index}") for index in range(5)])
    writer.add([equal_turns("e", purpose="eval", focus=1)])
    writer.close()
    assert [game.spec.game_id for game in read_games(tmp_path, ["g3", "g1"])] == ["g1", "g3"]
    assert [game.spec.game_id for game in read_games(tmp_path, purpose="eval")] == ["e"]
    assert list(read_games(tmp_path, [])) == []
    assert list(read_games(tmp_path, ["e"], purpose="train")) == []


def test_the_index_holds_everything_but_the_turns(tmp_path):
    record = equal_turns("e", purpose="eval", focus=1, turns=4, invalid_by=0)
    write_games(tmp_path, record)
    (entry,) = index_games(tmp_path)
    assert (entry.spec, entry.rewards, entry.invalid_by) == (record.spec, record.rewards, 0)
    assert (entry.num_turns, entry.end_reason, entry.error) == (4, "invalid_move", None)
    assert entry.written_at > 0


def test_a_run_without_games_has_none(tmp_path):
    assert list(read_games(tmp_path)) == []
    assert index_games(tmp_path) == []
    GameWriter(tmp_path).close()
    assert list((tmp_path / "games").iterdir()) == []


def test_a_damaged_file_is_named(tmp_path):
    write_games(tmp_path, equal_turns())
    (chunk,) = (tmp_path / "games").iterdir()
    chunk.write_bytes(chunk.read_bytes()[:100])
    with pytest.raises(RlforgeError, match=r"games-000001\.parquet is damaged"):
        list(read_games(tmp_path))
    with pytest.raises(RlforgeError, match=r"games-000001\.parquet is damaged"):
        index_games(tmp_path)


def test_a_chunk_that_cannot_be_written_leaves_no_half_file(tmp_path):
    writer = GameWriter(tmp_path)
    (tmp_path / "games" / "games-000001.parquet").mkdir()  # os.replace onto a folder fails
    writer.add([equal_turns()])
    with pytest.raises(IsADirectoryError):
        writer.flush()
    assert [path.name for path in (tmp_path / "games").iterdir()] == ["games-000001.parquet"]
