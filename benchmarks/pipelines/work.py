"""What every pipeline is asked to do, as one JSON file."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Work:
    """A model, the game it plays against itself, and how much is played and learned.

    model: a directory. prompts: templates of the configuration. layers: numbers of those with an
    adapter. turns: in one update, of finished games. updates: until the run is over.
    games: under way at a time. max_tokens: of one answer. threads: of torch. turns_at_a_time: in
    one forward and backward pass; gradients add up over the update, which has one optimizer step.
    The loss is -sum(advantage * log-prob) / (turns * max_tokens); the advantage is the game's own
    reward of the seat less the mean over the update's turns.
    """

    model: str
    env_id: str
    max_turns: int
    prompt_template: str
    prompts: dict[str, Any]
    action_extraction: str
    stop_token_ids: tuple[int, ...]
    pad_token_id: int
    max_tokens: int
    rank: int
    alpha: int
    target_modules: tuple[str, ...]
    layers: tuple[int, ...]
    learning_rate: float
    grad_clip: float
    seed: int
    turns: int
    updates: int
    games: int
    threads: int
    turns_at_a_time: int

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(dataclasses.asdict(self)))


def read(file: Path) -> Work:
    """What ``Work.write`` wrote."""
    values = json.loads(file.read_text())
    return Work(**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})
