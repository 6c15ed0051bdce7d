"""Other models (``hf:``) as opponents outside of a run: evaluation, play, ladder, Python."""

import asyncio

import pytest
from tests.factories import causal_folder

import rlforge
from rlforge.config.compose import compose, to_yaml
from rlforge.errors import ConfigError, RlforgeError
from rlforge.lab.ladder.entrants import plan_ladder
from rlforge.lab.ladder.play import play_ladder, verify_ladder
from rlforge.lab.ladder.record import CARD
from rlforge.local.evaluate import evaluate_run
from rlforge.show.play import Person, find_env, play, prepare, seats_of

SHORT = ("pool.hf.max_tokens=12", "pool.hf.max_model_len=1024", "env.train.0.error_allowance=0")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A random GPT-2 with a tokenizer of bytes; it answers with no legal action."""
    return causal_folder(tmp_path_factory.mktemp("models") / "gpt2", "gpt2")


@pytest.fixture(scope="module")
def run(small_model, tmp_path_factory):
    """A run of TicTacToe that has saved no version."""
    overrides = ["env=tictactoe", "model=hf", f"model.name={small_model}", "model.lora.rank=4"]
    board = ["model.prompt_template=board", "model.action_extraction=bracket"]
    given = [*overrides, *board, *SHORT, "engine.max_tokens=4", "hardware.device=cpu"]
    folder = tmp_path_factory.mktemp("runs") / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(compose(given).config))
    return folder


async def test_a_version_is_evaluated_against_it(run, other):
    measured = await evaluate_run(run, "step-0", [f"hf:{other}"], 4)
    [result] = measured.results
    assert (result.opponent, result.games, result.failed) == (f"hf:{other}", 4, 0)
    assert result.wins > 0


async def test_a_model_that_cannot_play_is_refused_before_any_game(run, tmp_path):
    with pytest.raises(ConfigError, match=r"^hf:no/such/place: there is no such directory$"):
        await evaluate_run(run, "step-0", ["hf:no/such/place"], 4)
    recurrent = causal_folder(tmp_path / "mamba", "mamba")
    with pytest.raises(ConfigError, match=f"^hf:{recurrent}: MambaForCausalLM has a recurrent"):
        await evaluate_run(run, "step-0", [f"hf:{recurrent}"], 4)


async def test_a_person_plays_against_it_without_the_model_of_the_configuration(other):
    absent = ["model=hf", "model.name=/no/such/model", "hardware.device=cpu"]
    given = ["env=tictactoe", *absent, *SHORT]
    config, [opponent] = prepare(given, None, None, "latest", [f"hf:{other}"])
    env = find_env(config, None)
    said = []
    person = Person(lambda prompt: "4", lambda text: None)
    record = await play(config, env, seats_of(env, 0, [opponent]), 0, person, said.append)
    assert record.error is None
    answer = record.turns[1].completion
    assert answer.policy_uid == f"hf:{other}"
    assert len(answer.token_ids) == len(answer.logprobs) > 0
    assert said[0].startswith(f"player 1 (hf:{other}): ")


def test_it_has_a_place_on_a_ladder_with_the_hashes_of_its_files(run, other, tmp_path):
    folder = tmp_path / "ladder"
    against = ["random_legal", f"hf:{other}"]
    plan = plan_ladder([(run, "step-0")], against=against, games=4)
    asyncio.run(play_ladder(plan, folder, lambda text: None))
    card, unknown = verify_ladder(folder / CARD)
    assert unknown == []
    [member] = (one for one in card.members if one.kind == "hf")
    assert member.uid == f"hf:{other}"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        one.name for one in member.files
    }
    assert card.ratings[-1].uid == member.uid
    (other / "config.json").rename(other / "elsewhere")
    try:
        assert verify_ladder(folder / CARD)[1] == [f"{member.uid}: {other} is not on this machine"]
    finally:
        (other / "elsewhere").rename(other / "config.json")
    changed = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(f"{changed}\n")
    try:
        with pytest.raises(RlforgeError, match=r"tokenizer\.json of hf:.* has changed since"):
            verify_ladder(folder / CARD)
    finally:
        (other / "tokenizer.json").write_text(changed)


def test_play_game_takes_it_by_its_name(other):
    players = ("random_legal", f"hf:{other}")
    first, again = (rlforge.play_game("tictactoe", *players, seed=1) for _ in range(2))
    assert first.error is None
    assert first.rewards == {0: 1.0, 1: -1.0}
    answers = [record.turns[1].completion.text for record in (first, again)]
    assert answers[0] == answers[1]
