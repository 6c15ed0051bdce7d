"""The contenders of benchmarks/learner.py do the same work; those without packages are left out."""

from __future__ import annotations

import importlib
import sys

import pytest

from rlforge.config.model import LoraConfig, ModelConfig
from rlforge.models.load import load_tokenizer


@pytest.fixture
def model(small_model):
    return ModelConfig(
        kind="hf",
        name=str(small_model),
        prompt_template="board",
        action_extraction="bracket",
        lora=LoraConfig(rank=4, alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]),
    )


@pytest.fixture
def turns(on_path):
    return importlib.import_module("turns")


@pytest.fixture
def learner(on_path):
    return importlib.import_module("learner")


@pytest.fixture
def work(model, turns, tmp_path):
    return importlib.import_module("contenders.work").Work(
        name="small",
        model=model.name,
        adapter=str(turns.make_adapter(model, tmp_path / "adapter")),
        rank=model.lora.rank,
        alpha=model.lora.alpha,
        target_modules=tuple(model.lora.target_modules),
        pad_token_id=0,
        learning_rate=1e-4,
        grad_clip=1.0,
        learner={"train": "lora"},
        turns=turns.make_turns(load_tokenizer(model), model, 24),
    )


def test_turns_are_whole_games_whose_text_has_the_ids_that_are_trained_on(model, turns):
    tokenizer = load_tokenizer(model)
    made = turns.make_turns(tokenizer, model, 40)
    assert len(made) == 40
    first = [turn.index for turn in made if turn.game == 0 and turn.player == 0]
    assert first == list(range(len(first)))
    assert all(len(turn.answer_ids) == 1 for turn in made)  # a move is a word of the tiny model
    for turn in made:
        ids = tokenizer.encode(turn.prompt + turn.answer, add_special_tokens=False)
        assert tuple(ids) == turn.prompt_ids + turn.answer_ids


def test_work_survives_its_file(work, tmp_path):
    work.write(tmp_path / "work.json")
    assert importlib.import_module("contenders.work").read(tmp_path / "work.json") == work


@pytest.mark.slow
def test_contenders_have_the_same_gradient_and_need_neither_ray_nor_hydra_nor_games(
    work, learner, tmp_path, monkeypatch, bare_environment
):
    monkeypatch.setitem(learner.BATCHES, "small", (24, (24,)))
    rows = learner.compare(work, sys.executable, 2, tmp_path)
    assert list(rows) == ["rlforge_learner", "plain_peft"]  # the peers' packages are absent
    assert rows["rlforge_learner"]["gradient_cosine"] >= 0.9999
    assert rows["rlforge_learner"]["gradient_relative_error"] <= 1e-3
    assert rows["rlforge_learner"]["tokens"]["repeats"] == 2
    assert set(rows["plain_peft"]["tokens_per_s_by_turns_at_a_time"]) == {24}


def row(cosine: float) -> dict[str, object]:
    tokens = {"median_per_s": 9.0, "q1_per_s": 8.0, "q3_per_s": 10.0}
    return {"tokens": tokens, "tokens_on_the_cpu": tokens, "gradient_cosine": cosine}


def test_other_work_ends_the_comparison(work, learner):
    rows = {"rlforge_learner": row(1.0), "plain_peft": row(0.9998)}
    with pytest.raises(SystemExit, match="plain PEFT: gradient cosine"):
        learner.show(work, rows)


def test_absent_peers_are_named_with_the_way_to_install_them(work, learner, capsys):
    learner.show(work, {"rlforge_learner": row(1.0)})
    assert capsys.readouterr().out.splitlines()[-1] == (
        "absent: plain PEFT, TRL GRPO, unstable-rl; to install: benchmarks/requirements-peers.txt"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "cuda"], "--device cuda needs --shape"),
        (["--compile"], "--compile needs --shape"),
        (["--peers", "no-such-python"], "--peers no-such-python: no such interpreter"),
        (["--turns", "1000"], "--turns 1000: tiny needs a multiple of 768"),
        (["--repeats", "1"], "--repeats: a spread needs at least 2"),
    ],
)
def test_wrong_options_end_in_one_line(options, message, learner, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["learner.py", *options])
    with pytest.raises(SystemExit) as ended:
        learner.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip().endswith(message)


@pytest.mark.slow
def test_work_of_the_options_takes_their_adapter_and_learner(turns, tmp_path):
    work = turns.make_work("tiny", 4, tmp_path)
    assert work.rank == 32
    assert work.target_modules == tuple(turns.KNOWN[0].linears)
    assert work.learner["betas"] == [0.9, 0.99]
