"""Names that users bring from other trainers are answered with what is in their place."""

import re

import pytest

from rlforge.config.compose import compose
from rlforge.config.docs import keys
from rlforge.config.keys import alike, all_keys, all_roots
from rlforge.config.other_trainers import KEYS, LEFT_OUT, OPTIONS, counterparts
from rlforge.errors import ConfigError


def test_every_place_is_a_key_and_every_name_is_answered():
    known = {key for root in all_roots() for key in all_keys(root)}
    assert set(KEYS) <= known
    for here, names in KEYS.items():
        for name in names.split():
            assert here in counterparts(name)
            # Names of UnstableBaselines share some words.
            said = alike(name, all_keys())
            assert any(place in said for place in counterparts(name)), said
            assert name not in known, "it would never be asked for"


@pytest.mark.slow
def test_every_reason_and_option_is_of_what_is_not_there():
    known = {key for root in all_roots() for key in all_keys(root)}
    names = [name for each in LEFT_OUT for name in each.split()]
    assert not {*names} & {*known, *(name for each in KEYS.values() for name in each.split())}
    for group, options in OPTIONS.items():
        for here in options.values():
            if re.match(r"[a-z]+=", here):
                compose(here.partition(",")[0].split())
        for option in " ".join(options).split():
            with pytest.raises(ConfigError, match="no such option"):
                compose([f"{group}='{option}'"])


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("lr=1", "learner.learning_rate"),
        ("learner.lr=1", "learner.learning_rate"),
        ("+lr=1", "learner.learning_rate"),
        ("algorithm.beta=1", "algorithm.kl.coef"),
        ("model.lora.lora_r=1", "model.lora.rank"),
        ("trainer.total_epochs=1", "learner.total_updates"),
        ("algorithm.kl_ctrl.kl_coef=1", "algorithm.kl.coef"),
        ("{a: {rollout: {n: 8}}}", "algorithm.group_size"),
    ],
)
def test_the_answer_comes_wherever_the_name_was_written(line, key):
    line = line if "=" in line else f"actor_rollout_ref={line}"
    with pytest.raises(ConfigError, match=rf"no such key.*; did you mean {key}[,?]"):
        compose(["tictactoe_mirror", line])


def test_a_file_of_ones_own_is_answered_key_by_key(tmp_path):
    file = tmp_path / "experiment" / "q.yaml"
    file.parent.mkdir()
    file.write_text("# @package _global_\ntrainer: {lr: 1, total_epochs: 3}\nbeta: 0.1\n")
    with pytest.raises(ConfigError) as refused:
        compose(["+experiment=q"], tmp_path)
    assert sorted(str(refused.value).splitlines()) == [
        f"beta ({file}): no such key; did you mean algorithm.kl.coef, pool.rating_beta?",
        f"trainer.lr ({file}): no such key; did you mean learner.learning_rate?",
        f"trainer.total_epochs ({file}): no such key; did you mean learner.total_updates?",
    ]


def test_a_name_that_is_looked_up_is_answered_too():
    with pytest.raises(ConfigError, match=r"begins with 'kl_coef'; did you mean algorithm.kl.coef"):
        keys("kl_coef")
