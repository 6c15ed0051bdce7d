"""The batch that every contender learns from, as one JSON file."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn of one seat, as text and as token ids; ``prompt + answer`` tokenises to the ids.

    logprobs: one per answer token, as an engine would have reported them.
    """

    game: int
    player: int
    index: int
    last: bool
    prompt: str
    answer: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """Turns, the model, and the adapter that all contenders start from.

    model, adapter: directories. learner: the options of rlforge's learner for this model, as in
    conf/learner. The loss is -sum(advantage * log-prob) / (turns * longest answer), the gradient
    clipped to ``grad_clip``.
    """

    name: str
    model: str
    adapter: str
    rank: int
    alpha: int
    target_modules: tuple[str, ...]
    pad_token_id: int
    learning_rate: float
    grad_clip: float
    learner: dict[str, object]
    turns: tuple[Turn, ...]

    @property
    def tokens(self) -> int:
        """Prompt and answer tokens of all turns: what tokens a second are counted in."""
        return sum(len(turn.prompt_ids) + len(turn.answer_ids) for turn in self.turns)

    @property
    def longest_answer(self) -> int:
        return max(len(turn.answer_ids) for turn in self.turns)

    def part(self, turns: int) -> Work:
        """The same with only the first ``turns`` turns."""
        return dataclasses.replace(self, turns=self.turns[:turns])

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(dataclasses.asdict(self)))


def read(file: Path) -> Work:
    """What ``Work.write`` wrote."""
    values = json.loads(file.read_text())
    turns = tuple(
        Turn(**{name: tuple(v) if isinstance(v, list) else v for name, v in turn.items()})
        for turn in values.pop("turns")
    )
    values["target_modules"] = tuple(values["target_modules"])
    return Work(**values, turns=turns)
