"""Prompt templates of the configuration are judged before anything starts."""

from pathlib import Path

import pytest

from rlforge.config.compose import compose
from rlforge.config.overrides import as_hydra_takes
from rlforge.config.prompts import PromptConfig
from rlforge.preflight.games import validate


def experiment(folder: Path, prompts: str) -> list[str]:
    path = folder / "experiment" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(f"# @package _global_\nprompts:\n  {prompts}\n")
    return ["+experiment=mine", "env=tictactoe"]


def test_a_template_is_chosen_by_its_name_for_the_model_or_a_game(tmp_path):
    own = experiment(tmp_path, 'mine: {user: "{observation}\\n{{x}} \\\\boxed{}"}')
    for choice in ("model.prompt_template=mine", "env.train.0.prompt_template=mine"):
        composed = compose([*own, "model=smollm2_135m", choice], tmp_path)
        validate(composed, keys=False)
        assert composed.config.prompts == {
            "mine": PromptConfig(user="{observation}\n{{x}} \\boxed{}")
        }


TERSE = PromptConfig(system="Be brief: win.", user="{board}\n\n{request}", roles={"begin": "<s>"})


@pytest.mark.parametrize("plus", ["", "+", "++"])
@pytest.mark.parametrize(
    "overrides",
    [
        [
            "prompts.terse.system='Be brief: win.'",
            'prompts.terse.user="{board}\n\n{request}"',
            "prompts.terse.roles.begin='<s>'",
        ],
        [
            "prompts.terse={system: 'Be brief: win.', roles: {begin: '<s>'}}",
            "prompts.terse.user='{board}\n\n{request}'",
        ],
        [
            "prompts={terse: {system: 'Be brief: win.', user: '{board}\n\n{request}'}}",
            "prompts.terse.roles={begin: '<s>'}",
        ],
    ],
)
def test_a_template_may_be_given_on_the_command_line(overrides, plus):
    composed = compose([f"{plus}{override}" for override in overrides])
    assert composed.config.prompts == {"terse": TERSE}
    assert "command line" in composed.origin("prompts.terse.user")


def test_parts_of_a_template_change_on_the_command_line(tmp_path):
    own = experiment(tmp_path, 'mine: {system: Play., user: "{board}"}')
    config = compose([*own, "prompts.mine.system=Win.", "prompts.a-2.user='{grid}'"], tmp_path)
    assert config.config.prompts == {
        "mine": PromptConfig(system="Win.", user="{board}"),
        "a-2": PromptConfig(user="{grid}"),
    }
    assert config.origin("prompts.mine.system") == "command line, prompts.mine.system=Win."
    assert "mine.yaml" in config.origin("prompts.mine.user")


def test_keys_of_templates_are_swept_over():
    assert as_hydra_takes(["seed=1,2", "prompts.mine.system=a,'b c'", "env=kuhn,tictactoe"]) == [
        "++seed=1,2",
        "++prompts.mine.system=a,'b c'",
        "env=kuhn,tictactoe",
    ]
