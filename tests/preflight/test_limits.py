"""Notes about values that another limit keeps from being reached."""

import pytest
from tests.harness.composed import composed

from rlforge.config.catalog import catalog
from rlforge.preflight.limits import limit_notes

QUICK_START = "+experiment=qwen3_1p7b_simpletak"


def notes(*lines):
    return [*limit_notes(composed(*lines))]


def test_a_profile_that_cuts_the_context_below_the_answers_is_noted_with_both_keys():
    answers, divisor = notes(QUICK_START, "hardware=gpu_16gb")
    assert answers == (
        "engine.max_tokens=4096 (conf/experiment/qwen3_1p7b_simpletak.yaml) is never reached: "
        "prompt and answer share engine.max_model_len=2048 (conf/hardware/gpu_16gb.yaml), so that "
        "a prompt of n tokens leaves 2048 - n for the answer"
    )
    assert "divides by algorithm.max_generation_len=4096" in divisor
    assert "more than 2,047 tokens" in divisor


def test_training_lengths_below_the_answers_are_noted():
    kept, divisor = notes(QUICK_START, "hardware=gpu_80gb", "learner.max_train_len=2500")
    assert kept.startswith("learner.max_train_len=2500 (command line, learner.max_train_len=2500)")
    assert "2500 - n of the answer are learned from, and not engine.max_tokens=4096" in kept
    assert "more than 2,499 tokens" in divisor


@pytest.mark.one_in(5)
@pytest.mark.parametrize("preset", [choice.name for choice in catalog("experiment").choices])
def test_presets_reach_their_values(preset):
    assert notes(f"+experiment={preset}") == []


def test_a_context_beyond_the_positions_of_the_model_is_noted(small_model):
    model = ["model=hf", f"model.name={small_model}", "env=tictactoe"]
    assert notes(*model) == []  # nothing is chosen
    context, answers = notes(*model, "engine.max_model_len=4096")
    assert context.startswith("engine.max_model_len=4096 (command line")
    assert "positions of " in context
    assert "positions of " in answers
    sizes = ["engine.max_model_len=128", "engine.max_tokens=16"]
    assert notes(*model, *sizes) == []
    (divisor,) = notes(
        *model, *sizes, "algorithm.loss_aggregation=constant", "algorithm.max_generation_len=64"
    )
    assert "divides by algorithm.max_generation_len=64 (command line" in divisor
    assert "more than 16 tokens" in divisor


def test_other_models_have_limits_of_their_own():
    over = ["pool.hf.max_model_len=512", "pool.fixed_opponents=['hf:org/model']"]
    (note,) = notes("+experiment=simpletak_mirror", *over)
    assert note.startswith("pool.hf.max_tokens=1024 (default) is never reached")
    assert notes("+experiment=simpletak_mirror", over[0]) == []


def test_supervised_training_draws_no_answer():
    assert notes("kind=sft", "data=random_legal", "env=tictactoe", "engine.max_model_len=128") == []


def test_games_that_are_too_old_before_the_next_version_are_noted():
    lines = ["+experiment=simpletak_mirror", "learner.save_every=3"]
    (note,) = notes(*lines)
    assert note.startswith("buffer.max_staleness=2 (default) is no more than learner.save_every=3")
    assert note.endswith("4 is enough")
    assert notes(*lines, "buffer.max_staleness=4") == []
    assert notes(*lines[:1], "buffer.max_staleness=1") == []
