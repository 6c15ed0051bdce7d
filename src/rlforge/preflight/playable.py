"""Which models can play which environments; no model is made or loaded."""

from __future__ import annotations

from rlforge.config.catalog import catalog
from rlforge.config.compose import compose
from rlforge.config.plugins import PROMPTS
from rlforge.config.schema import EnvEntry, ModelConfig
from rlforge.games.base import View
from rlforge.games.registry import make_game
from rlforge.models.made import made_model
from rlforge.rollout.lineup import env_spec


def models_of_envs() -> dict[str, str]:
    """For each option of the group ``env`` the options of ``model`` that play it, in words."""
    names = [choice.name for choice in catalog("model").choices]
    models = {name: compose([f"model={name}"]).config.model for name in names}
    played: dict[str, str] = {}
    for choice in catalog("env").choices:
        config = compose([f"env={choice.name}"]).config
        games = [
            (entry, make_game(env_spec(entry, config), seed=0).view()) for entry in config.env.train
        ]
        able = [name for name in names if all(_plays(models[name], *game) for game in games)]
        others = [name for name in names if name not in able]
        but = f" but {', '.join(others)}" if others else ""
        played[choice.name] = f"all{but}" if len(others) < len(able) else ", ".join(able)
    return played


def _plays(model: ModelConfig, entry: EnvEntry, view: View) -> bool:
    """Whether the model knows the words of the game, and its template finds what it shows."""
    made = made_model(model.kind)
    subject = "market" if entry.source == "market" else "games"
    template = PROMPTS.find(entry.prompt_template or model.prompt_template)
    return (made is None or made.knows(subject)) and template.lacks(view) is None
