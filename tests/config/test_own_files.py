"""Own YAML files: values of another shape, and values that are missing."""

import pytest

from rlforge.config.compose import compose
from rlforge.errors import ConfigError


@pytest.fixture
def own(tmp_path):
    """Writes an own option, and composes with it."""

    def composed(option, text, *lines):
        file = tmp_path / f"{option}.yaml"
        file.parent.mkdir(exist_ok=True)
        head = "# @package _global_\n" if option.startswith("experiment") else ""
        file.write_text(head + text, encoding="utf-8")
        group, name = option.split("/")
        plus = "+" if group == "experiment" else ""
        return compose([f"{plus}{group}={name}", *lines], tmp_path)

    return composed


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("experiment/q", "learner: [1, 2]", "learner=[1, 2] ({}): must be a mapping"),
        ("experiment/q", "env: {train: {id: a}}", "env.train={{'id': 'a'}} ({}): must be a list"),
        ("experiment/q", "model: {lora: [1]}", "model.lora=[1] ({}): must be a mapping"),
        ("experiment/q", "policies: [a]", "policies=['a'] ({}): must be a mapping"),
        ("learner/q", "betas: {a: 1}", "learner.betas={{'a': 1}} ({}): must be a list"),
        ("learner/q", "- 1", "{}: not a mapping of configuration keys"),
        ("experiment/q", "name: ???", "name=??? ({}): is the mark of a value that is missing"),
        ("learner/q", "batch_size: ???", "batch_size=??? ({}): is the mark of a value that is"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_key_and_file(own, tmp_path, option, text, said):
    with pytest.raises(ConfigError) as refused:
        own(option, text)
    file = tmp_path / f"{option}.yaml"
    assert said.format(file) in str(refused.value).replace("command line, learner=q", str(file))


def test_a_missing_value_that_something_else_gives_is_no_mistake(own):
    assert own("experiment/q", "seed: ???", "seed=3").config.seed == 3


@pytest.mark.parametrize("line", ["name=???", "env.train=[{id: ???}]", "model.lora=???"])
def test_the_mark_of_a_missing_value_is_none(line):
    with pytest.raises(ConfigError, match=r"=\?\?\? .*: is the mark of a value that is missing"):
        compose([line])
