"""Reinforcement learning of language models in text games.

``train`` starts a run, ``load_run`` reads one, ``play_game`` plays. The other names are what
extensions are written with: https://github.com/rlforge/rlforge/blob/main/docs/extending.md.
``__all__`` lists them; all other names are private and may change in any release.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlforge.algorithms.base import LossInputs as LossInputs
    from rlforge.algorithms.base import LossOutput as LossOutput
    from rlforge.algorithms.base import Targets as Targets
    from rlforge.algorithms.losses import TokenLoss as TokenLoss
    from rlforge.algorithms.policy_gradient import A2c as A2c
    from rlforge.algorithms.policy_gradient import Grpo as Grpo
    from rlforge.algorithms.policy_gradient import PolicyGradient as PolicyGradient
    from rlforge.algorithms.policy_gradient import Ppo as Ppo
    from rlforge.algorithms.policy_gradient import Reinforce as Reinforce
    from rlforge.api import GRPOConfig as GRPOConfig
    from rlforge.api import Run as Run
    from rlforge.api import compose as compose
    from rlforge.api import load_run as load_run
    from rlforge.api import resume as resume
    from rlforge.api import sft as sft
    from rlforge.api import train as train
    from rlforge.config.rules import Count as Count
    from rlforge.config.rules import NotNegative as NotNegative
    from rlforge.config.rules import Positive as Positive
    from rlforge.config.rules import Probability as Probability
    from rlforge.config.rules import Range as Range
    from rlforge.config.rules import Share as Share
    from rlforge.config.training import AlgorithmConfig as AlgorithmConfig
    from rlforge.continuous.session import Answer as Answer
    from rlforge.continuous.session import Session as Session
    from rlforge.errors import CheckpointError as CheckpointError
    from rlforge.errors import ConfigError as ConfigError
    from rlforge.errors import DeploymentError as DeploymentError
    from rlforge.errors import EngineError as EngineError
    from rlforge.errors import ExtensionError as ExtensionError
    from rlforge.errors import GameError as GameError
    from rlforge.errors import RlforgeError as RlforgeError
    from rlforge.errors import RunError as RunError
    from rlforge.errors import StoreError as StoreError
    from rlforge.games.actions import Extractor as Extractor
    from rlforge.games.base import Game as Game
    from rlforge.games.base import GameResult as GameResult
    from rlforge.games.base import View as View
    from rlforge.games.markup import Markup as Markup
    from rlforge.games.players import Player as Player
    from rlforge.games.prompts import Template as Template
    from rlforge.league.modes import PoolView as PoolView
    from rlforge.league.modes import softmax as softmax
    from rlforge.local.match import Policy as Policy
    from rlforge.local.match import play_game as play_game
    from rlforge.local.match import transcript as transcript
    from rlforge.models.made import MadeModel as MadeModel
    from rlforge.ruler.base import DecisionScorer as DecisionScorer
    from rlforge.ruler.base import DecisionScores as DecisionScores
    from rlforge.ruler.scorer import RULERScorer as RULERScorer
    from rlforge.tracking.files import RunPaths as RunPaths
    from rlforge.tracking.scalars import log_scalar as log_scalar
    from rlforge.tracking.sinks import Sink as Sink
    from rlforge.trajectories.records import Decision as Decision
    from rlforge.trajectories.records import TrainingWindow as TrainingWindow
    from rlforge.types import Completion as Completion
    from rlforge.types import EnvSpec as EnvSpec
    from rlforge.types import GameRecord as GameRecord
    from rlforge.types import PolicyRef as PolicyRef
    from rlforge.types import Step as Step
    from rlforge.types import Trajectory as Trajectory
    from rlforge.types import Turn as Turn

__version__ = "0.1.0"

_HOMES = {
    "algorithms.base": ("LossInputs", "LossOutput", "Targets"),
    "algorithms.losses": ("TokenLoss",),
    "algorithms.policy_gradient": ("A2c", "Grpo", "PolicyGradient", "Ppo", "Reinforce"),
    "api": ("GRPOConfig", "Run", "compose", "load_run", "resume", "sft", "train"),
    "config.rules": ("Count", "NotNegative", "Positive", "Probability", "Range", "Share"),
    "config.training": ("AlgorithmConfig",),
    "continuous.session": ("Answer", "Session"),
    "errors": (
        "CheckpointError",
        "ConfigError",
        "DeploymentError",
        "EngineError",
        "ExtensionError",
        "GameError",
        "RlforgeError",
        "RunError",
        "StoreError",
    ),
    "games.actions": ("Extractor",),
    "games.base": ("Game", "GameResult", "View"),
    "games.players": ("Player",),
    "games.markup": ("Markup",),
    "games.prompts": ("Template",),
    "league.modes": ("PoolView", "softmax"),
    "local.match": ("Policy", "play_game", "transcript"),
    "models.made": ("MadeModel",),
    "ruler.base": ("DecisionScorer", "DecisionScores"),
    "ruler.scorer": ("RULERScorer",),
    "tracking.files": ("RunPaths",),
    "tracking.scalars": ("log_scalar",),
    "tracking.sinks": ("Sink",),
    "trajectories.records": ("Decision", "TrainingWindow"),
    "types": ("Completion", "EnvSpec", "GameRecord", "PolicyRef", "Step", "Trajectory", "Turn"),
}
"""Module -> public names in it. Imported on first use: torch and Ray take seconds."""

_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "A2c",
    "AlgorithmConfig",
    "Answer",
    "CheckpointError",
    "Completion",
    "ConfigError",
    "Count",
    "Decision",
    "DecisionScorer",
    "DecisionScores",
    "DeploymentError",
    "EngineError",
    "EnvSpec",
    "ExtensionError",
    "Extractor",
    "GRPOConfig",
    "Game",
    "GameError",
    "GameRecord",
    "GameResult",
    "Grpo",
    "LossInputs",
    "LossOutput",
    "MadeModel",
    "Markup",
    "NotNegative",
    "Player",
    "Policy",
    "PolicyGradient",
    "PolicyRef",
    "PoolView",
    "Positive",
    "Ppo",
    "Probability",
    "RULERScorer",
    "Range",
    "Reinforce",
    "RlforgeError",
    "Run",
    "RunError",
    "RunPaths",
    "Session",
    "Share",
    "Sink",
    "Step",
    "StoreError",
    "Targets",
    "Template",
    "TokenLoss",
    "TrainingWindow",
    "Trajectory",
    "Turn",
    "View",
    "compose",
    "load_run",
    "log_scalar",
    "play_game",
    "resume",
    "sft",
    "softmax",
    "train",
    "transcript",
]


if not TYPE_CHECKING:  # a type checker would take every name for one of the package

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"rlforge.{_HOME[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
