"""Prompt templates of the configuration are judged before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlforge.config.compose import compose
from rlforge.config.docs import keys
from rlforge.config.prompts import PromptConfig
from rlforge.errors import ConfigError
from rlforge.preflight.games import validate


def experiment(folder: Path, prompts: str) -> list[str]:
    path = folder / "experiment" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(f"# @package _global_\nprompts:\n  {prompts}\n")
    return ["+experiment=mine", "env=tictactoe"]


@pytest.mark.parametrize(
    ("prompts", "overrides", "message"),
    [
        (
            'mine: {user: "{observation} {legal_action}"}',
            [],
            r"prompts\.mine\.user=.*\(.*mine\.yaml\): no placeholder \{legal_action\}; did you "
            r"mean legal_actions.*write \{\{legal_action\}\} for the text itself",
        ),
        (
            'mine: {user: "{request}"}',
            [],
            r"prompts\.mine\.user=.*add \{observation\}, \{board\} or \{grid\}",
        ),
        ('mine: {later: "go on"}', [], r"prompts\.mine\.later=.*shows nothing of the game"),
        ("mine: {markup: qwen}", [], r"prompts\.mine\.markup=qwen .*there are chat, chatml, gemma"),
        ("mine: {usr: a}", [], r"prompts\.mine\.usr .*no such key"),
        ('mine: {roles: {user: "{content}"}}', [], r"prompts\.mine\.roles=.*has no assistant"),
        (
            'mine: {roles: {user: a, assistant: "{content}"}}',
            [],
            r"prompts\.mine\.roles\.user=a .*must have \{content\} once",
        ),
        (
            'mine: {roles: {usr: "", user: "{content}", assistant: "{content}"}}',
            [],
            r"prompts\.mine\.roles\.usr=.*no such role; did you mean user",
        ),
        ("chat: {}", [], r"prompts\.chat.*rlforge has a template chat; choose another name"),
        ('"a b": {}', [], r"prompts\.a b.*must consist of letters"),
        (
            "mine: {}",
            ["model.prompt_template=mien"],
            r"model\.prompt_template=mien .*no such choice.*mine",
        ),
        (
            'mine: {user: "{board}"}',
            ["env.train=[{id: Nim-v0-train}]", "model.prompt_template=mine"],
            r"env\.train\.0\.id=Nim.*no compact board for prompt_template=mine",
        ),
        (
            'mine: {user: "{grid}"}',
            ["env=kuhn", "model.prompt_template=mine"],
            r"env\.train\.0\.id=KuhnPoker.*no grid of squares for prompt_template=mine",
        ),
        ("mine: {}", ["pool.api.prompt_template=caht"], r"pool\.api\.prompt_template=caht .*chat"),
        ("mine: {}", ["pool.api.action_extraction=x"], r"pool\.api\.action_extraction=x .*boxed"),
    ],
)
def test_a_wrong_template_is_refused_with_key_and_mend(
    tmp_path: Path, prompts: str, overrides: list[str], message: str
) -> None:
    own = experiment(tmp_path, prompts)
    with pytest.raises(ConfigError, match=message):
        validate(compose([*own, *overrides], tmp_path), keys=False)


def test_a_template_is_chosen_by_its_name_for_the_model_or_a_game(tmp_path: Path) -> None:
    own = experiment(tmp_path, 'mine: {user: "{observation}\\n{{x}} \\\\boxed{}"}')
    for choice in ("model.prompt_template=mine", "env.train.0.prompt_template=mine"):
        composed = compose([*own, choice], tmp_path)
        validate(composed, keys=False)
        assert composed.config.prompts == {
            "mine": PromptConfig(user="{observation}\n{{x}} \\boxed{}")
        }


def test_the_keys_of_a_template_are_documented() -> None:
    assert {"prompts[].user", "prompts[].roles"} <= {key.name for key in keys("prompts")}
