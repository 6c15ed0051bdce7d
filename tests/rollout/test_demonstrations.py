"""Samples of supervised fine-tuning: prompts as in play, answers as the model has to give them."""

import dataclasses
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.factories import CHATML, model_files
from tests.harness.chat_server import ChatHandler, completion, serving

from rlforge.config.compose import to_yaml
from rlforge.config.engine import EngineConfig
from rlforge.config.games import EnvConfig, EnvEntry
from rlforge.config.model import ModelConfig
from rlforge.config.pool import HfConfig, PoolConfig
from rlforge.config.rules import changed
from rlforge.config.schema import RunConfig
from rlforge.config.sft import DataConfig, SftConfig
from rlforge.errors import RunError
from rlforge.games.actions import extract
from rlforge.games.prompts import Prompter
from rlforge.games.registry import make_game
from rlforge.learner.batching import Row, join_turns
from rlforge.models.load import load_tokenizer, stop_token_ids
from rlforge.record.game_files import GameWriter, read_games
from rlforge.rollout.demonstrations import demonstration_games, load_samples, make_samples
from rlforge.samples import Sample
from rlforge.types import GameRecord

TICTACTOE = EnvConfig(train=[EnvEntry(id="TicTacToe-v0-train", max_turns=20)])


@pytest.fixture(scope="module")
def chat_model(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    """The tokenizer of a model that answers in chat markup."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(small_model)
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks, "eos_token": marks[0]})
    tokenizer.chat_template = CHATML
    folder = model_files(tokenizer, tmp_path_factory.mktemp("models") / "chat")
    return ModelConfig(kind="hf", name=str(folder), prompt_template="chat")


@pytest.fixture
def tiny(small_model: Path) -> ModelConfig:
    return ModelConfig(name=str(small_model), prompt_template="board", action_extraction="bracket")


def config(model: ModelConfig, *, context: str = "turn", **data: Any) -> SftConfig:
    given: dict[str, Any] = {"players": ["random_legal"], "games": 12, "validation": 0.0, **data}
    env = dataclasses.replace(TICTACTOE, context=context)
    engine = EngineConfig(max_model_len=4096)
    return SftConfig(env=env, model=model, data=DataConfig(**given), engine=engine)


def played_by_a_run(folder: Path, model: ModelConfig, records: Iterable[GameRecord]) -> str:
    """The directory of a run with these games."""
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(RunConfig(model=model)))
    writer = GameWriter(folder)
    writer.add(list(records))
    writer.close()
    return str(folder)


def samples(config: SftConfig, run_dir: Path) -> tuple[Sample, ...]:
    said: list[str] = []
    made = make_samples(config, run_dir, said.append)
    assert said[-1].startswith(f"{len(made.train):,} samples to learn from")
    assert load_samples(run_dir) == made
    return made.train


def test_prompts_are_those_of_play_and_answers_are_legal(tiny, tmp_path):
    made = samples(config(tiny), tmp_path)
    tokenizer = load_tokenizer(tiny)
    prompter, stops = Prompter(tokenizer), stop_token_ids(tiny, tokenizer)
    records = list(read_games(tmp_path))
    assert len(records) == 12
    asked = {(sample.origin, sample.player_id, sample.turn_index): sample for sample in made}
    assert len(asked) == len(made) == sum(len(record.turns) for record in records)
    for record in records:
        game, turns = make_game(record.spec.env, record.spec.seed), {0: 0, 1: 0}
        for turn in record.turns:
            view = game.view()
            sample = asked[record.spec.game_id, view.player_id, turns[view.player_id]]
            turns[view.player_id] += 1
            assert sample.prompt_token_ids == prompter.encode(record.spec.env.form, view)[1]
            # A tiny model's answer is one token, which ends it.
            assert len(sample.token_ids) == 1
            assert sample.token_ids[0] in stops
            text = tokenizer.decode(sample.token_ids)
            assert text == f" {turn.action}"
            assert extract("bracket", text, view.legal_actions).action in view.legal_actions
            game.step(turn.action)


@pytest.mark.parametrize(
    ("answer", "text"), [("{action}", r"\boxed{[4]}"), ("I play {action}.", r"I play \boxed{[4]}.")]
)
def test_answers_have_the_form_and_the_end_of_the_models_turn(chat_model, tmp_path, answer, text):
    made = samples(config(chat_model, answer=answer), tmp_path)
    tokenizer = load_tokenizer(chat_model)
    sample = next(sample for sample in made if sample.action == "[4]")
    assert tokenizer.decode(sample.token_ids) == f"{text}<|im_end|>"
    assert tokenizer.decode(sample.prompt_token_ids).endswith("<|im_start|>assistant\n")
    assert sample.logprobs == (0.0,) * len(sample.token_ids)


def test_with_canonical_boards_and_answers_are_turned_together(tiny, tmp_path):
    plain = config(tiny, games=4)
    turned = dataclasses.replace(plain, env=dataclasses.replace(plain.env, canonical=True))
    tokenizer = load_tokenizer(tiny)
    boards = {}
    for name, one in (("plain", plain), ("turned", turned)):
        made = samples(one, tmp_path / name)
        asked = [tokenizer.decode(each.prompt_token_ids).split() for each in made]
        boards[name] = [" ".join(words) for words in asked]
        for words, each in zip(asked, made, strict=True):
            [cell] = re.findall(r"\d", tokenizer.decode(each.token_ids))
            rows = "".join(word[1:] for word in words[1:4])
            assert rows[int(cell)] == "_"
            assert name == "turned" or f"[{cell}]" == each.action
    assert len(boards["plain"]) == len(boards["turned"])
    assert len({*boards["plain"]}) > len({*boards["turned"]})


def test_in_conversations_a_players_turns_continue_each_other_as_in_play(chat_model, tmp_path):
    made = samples(config(chat_model, context="conversation"), tmp_path)
    tokenizer = load_tokenizer(chat_model)
    players: dict[tuple[str, int], list[Sample]] = {}
    for sample in made:
        players.setdefault(sample.episode, []).append(sample)
    assert len(players) == 2 * 12
    for own in players.values():
        assert [sample.turn_index for sample in own] == list(range(len(own)))
        for before, after in itertools.pairwise(own):
            known = (*before.prompt_token_ids, *before.token_ids)
            assert after.prompt_token_ids[: len(known)] == known
            news = tokenizer.decode(after.prompt_token_ids[len(known) :])
            assert news.startswith("\n<|im_start|>user\n")
            assert "Available Moves" in news
            assert "Your goal" not in news  # the rules are said once
    rows = [
        Row(sample=index, prompt=sample.prompt_token_ids, answer=sample.token_ids)
        for index, sample in enumerate(made)
    ]
    assert len(join_turns(rows, made)) == len(players)


def test_answers_that_the_model_cannot_give_are_left_out(chat_model, tiny, tmp_path):
    short = changed(config(chat_model), ["engine.max_tokens=3"])
    with pytest.raises(RunError, match="too long"):
        make_samples(short, tmp_path / "short", lambda text: None)
    # The tiny model's answer ends with its first closing bracket.
    early = config(tiny, answer="As [x] says, {action}")
    with pytest.raises(RunError, match="not read as their action"):
        make_samples(early, tmp_path / "early", lambda text: None)
    # A conversation ends with it.
    early = config(tiny, context="conversation", answer="As [x] says, {action}")
    with pytest.raises(RunError, match=r"24 not read as their action"):
        make_samples(early, tmp_path / "talk", lambda text: None)


def test_only_the_asked_for_outcomes_and_players_are_learned_from(tiny, tmp_path):
    players = ["minimax", "random_legal"]
    made = samples(config(tiny, players=players, games=30, keep="wins"), tmp_path / "wins")
    assert {sample.raw_reward for sample in made} == {1.0}
    imitated = config(tiny, players=players, imitate=["minimax"], keep="wins_and_draws")
    made = samples(imitated, tmp_path / "imitated")
    assert {sample.policy_uid for sample in made} == {"minimax"}
    assert {sample.player_id for sample in made} == {0, 1}
    assert min(sample.raw_reward for sample in made) >= 0.0
    none = config(tiny, min_reward=1.5)
    with pytest.raises(RunError, match="by outcome"):
        make_samples(none, tmp_path / "none", lambda text: None)


def test_only_the_last_turns_are_learned_from_where_so_asked(chat_model, tmp_path):
    def longest(samples: Iterable[Sample]) -> dict[tuple[str, int], list[int]]:
        turns: dict[tuple[str, int], list[int]] = {}
        for sample in samples:
            turns.setdefault(sample.episode, []).append(sample.turn_index)
        return turns

    for context in ("turn", "conversation"):
        every = samples(config(chat_model, context=context), tmp_path / f"all-{context}")
        ends = config(chat_model, context=context, last_turns=2)
        last = samples(ends, tmp_path / f"last-{context}")
        assert longest(last) == {key: turns[-2:] for key, turns in longest(every).items()}
        prompts = {(s.origin, s.player_id, s.turn_index): s.prompt_token_ids for s in every}
        assert all(prompts[s.origin, s.player_id, s.turn_index] == s.prompt_token_ids for s in last)


def test_line_ups_are_equally_frequent_and_follow_from_the_seed(tiny):
    three = config(tiny, players=["minimax", "random_legal", "win_block"], games=12)
    met = [tuple(seat.policy.uid for seat in game.seats) for game in demonstration_games(three)]
    assert {met.count(pair) for pair in met} == {2}
    assert len(set(met)) == 6
    assert demonstration_games(three) == demonstration_games(three)
    other = dataclasses.replace(three, seed=1)
    assert {game.seed for game in demonstration_games(three)}.isdisjoint(
        game.seed for game in demonstration_games(other)
    )


def test_equal_samples_once_and_at_most_as_many_as_asked_for(tiny, tmp_path):
    twice = samples(config(tiny, games=30), tmp_path / "twice")
    once = samples(config(tiny, games=30, unique=True), tmp_path / "once")
    pairs = [(sample.prompt_token_ids, sample.token_ids) for sample in once]
    assert len(set(pairs)) == len(pairs) < len(twice)
    assert set(pairs) == {(sample.prompt_token_ids, sample.token_ids) for sample in twice}
    few = samples(config(tiny, games=30, max_samples=17), tmp_path / "few")
    assert len(few) == 17


def test_whole_games_are_held_out(tiny, tmp_path):
    made = make_samples(config(tiny, games=60, validation=0.2), tmp_path, lambda text: None)
    held, learned = ({sample.origin for sample in part} for part in (made.validation, made.train))
    assert held.isdisjoint(learned)
    share = len(made.validation) / (len(made.validation) + len(made.train))
    assert share == pytest.approx(0.2, abs=0.02)


def test_a_runs_own_answers_are_taken_token_by_token(tiny, tmp_path):
    make_samples(config(tiny, games=4), tmp_path / "scripted", lambda text: None)
    records = []
    for record in read_games(tmp_path / "scripted"):
        # As an engine answers seat 0; one answer reached the limit of tokens.
        turns = tuple(
            dataclasses.replace(
                turn,
                completion=dataclasses.replace(
                    turn.completion,
                    prompt_token_ids=(7, place),
                    token_ids=(8, place, 9),
                    logprobs=(-0.5, -1.0, -0.1),
                    finish_reason="length" if place == 2 else "stop",
                ),
            )
            if turn.player_id == 0
            else turn
            for place, turn in enumerate(record.turns)
        )
        records.append(dataclasses.replace(record, turns=turns))
    run = played_by_a_run(tmp_path / "run", tiny, records)
    made = samples(config(tiny, players=[], run=run), tmp_path / "own")
    expected = {
        (record.spec.game_id, (7, place), (8, place, 9))
        for record in records
        for place, turn in enumerate(record.turns)
        if turn.player_id == 0 and place != 2
    }
    assert {(s.origin, s.prompt_token_ids, s.token_ids) for s in made} == expected
    ends = config(tiny, players=[], run=run, last_turns=1)
    lengths = {r.spec.game_id: sum(turn.player_id == 0 for turn in r.turns) for r in records}
    last = {s.origin: s.turn_index for s in samples(ends, tmp_path / "ends")}
    assert last.items() <= {game: number - 1 for game, number in lengths.items()}.items()
    assert len(last) >= len(records) - 1
    won = config(tiny, players=[], run=run, keep="wins")
    if any(record.rewards[0] > 0 for record in records):
        assert {s.raw_reward for s in samples(won, tmp_path / "won")} == {1.0}


def test_another_model_teaches_by_its_words_and_not_by_its_tokens(
    tiny, chat_model, small_model, tmp_path
):
    """It is the small model, which answers boards; what learns has another tokenizer."""
    teacher, hf = f"hf:{small_model}", HfConfig(prompt_template="board", temperature=1.0)
    hf = dataclasses.replace(hf, action_extraction="bracket", max_tokens=4, max_model_len=128)
    asked = config(chat_model, players=[teacher, "random_legal"], imitate=[teacher], games=6)
    asked = dataclasses.replace(asked, pool=PoolConfig(hf=hf))
    made = samples(dataclasses.replace(asked, seed=3), tmp_path / "data")
    tokenizer = load_tokenizer(chat_model)
    assert {sample.policy_uid for sample in made} == {teacher}
    for sample in made:
        said = tokenizer.decode(sample.token_ids, skip_special_tokens=True)
        assert extract("boxed", said, None).action == sample.action
    # In the records of such games are its tokens, which mean other texts to the run's model.
    run = played_by_a_run(tmp_path / "run", chat_model, read_games(tmp_path / "data"))
    with pytest.raises(RunError, match="no sample is left"):
        samples(config(chat_model, players=[], run=run), tmp_path / "own")


class Reasoner(ChatHandler):
    """Thinks aloud and takes the first legal move that the prompt names."""

    def respond(self, asked: dict[str, Any], tries: int) -> None:
        seen = asked["messages"][-1]["content"]
        move = re.findall(r"\[\d\]", seen)[-1]  # legal moves come last
        text = rf"The board is open. \boxed{{{move}}}"
        self.send(200, completion(text))


@pytest.mark.parametrize("form", ["boxed", "last_line"])
def test_an_api_models_words_are_learned_in_the_models_form(chat_model, form, tmp_path):
    asked = dataclasses.replace(chat_model, action_extraction=form)
    asked = config(asked, players=["openai:teacher"], games=2)
    with serving(Reasoner) as server:
        made = samples(changed(asked, [f"pool.api.openai_base_url={server.url}"]), tmp_path)
    tokenizer = load_tokenizer(chat_model)
    words = {"boxed": r"The board is open. \boxed{{{}}}", "last_line": "{}"}[form]
    for sample in made:
        said = tokenizer.decode(sample.token_ids)
        assert said == f"{words.format(sample.action)}<|im_end|>"
