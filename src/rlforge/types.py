"""The values that cross the walls between rlforge's rooms.

Every class is frozen: a value is made once, by the room that knows it, and only read afterwards.
Token ids and log-probabilities are born in an engine and are never derived again from text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, TypeVar, cast, dataclass_transform

PolicyKind = Literal["checkpoint", "scripted", "api"]
Purpose = Literal["train", "eval"]
FinishReason = Literal["stop", "length", "scripted", "error"]
EndReason = Literal["finished", "invalid_move", "turn_limit", "timeout", "error"]


_T = TypeVar("_T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def value(cls: type[_T]) -> type[_T]:
    """A frozen, keyword-only dataclass with slots: the form of everything in this module.

    Values cross the walls between processes, thousands a second: they are pickled as dataclasses
    with slots are, as their fields' contents in order, without looking the fields up each time.
    """
    made: Any = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)
    names = tuple(field.name for field in dataclasses.fields(made))
    read = attrgetter(*names)
    fill = tuple(getattr(made, name).__set__ for name in names)

    def contents(self: Any) -> tuple[Any, ...]:
        return read(self) if len(names) > 1 else (read(self),)

    def refill(self: Any, state: Sequence[Any]) -> None:
        for fill_one, content in zip(fill, state, strict=True):
            fill_one(self, content)

    made.__getstate__, made.__setstate__ = contents, refill
    return cast(type[_T], made)


@value
class PolicyRef:
    """Who answers at a seat.

    kind: ``checkpoint`` (an adapter or full weights of our own model; ``path_or_name`` None is
    the model as it was before training), ``scripted`` (a player of ``rlforge.games.players``) or
    ``api`` (``openai:MODEL`` or ``openrouter:MODEL``).
    version: number of learner updates behind a checkpoint; 0 for everything else.
    """

    uid: str
    kind: PolicyKind
    path_or_name: str | None = None
    version: int = 0


@value
class EnvSpec:
    """One game as it is to be played: the id and the limits that make it end."""

    id: str
    source: Literal["textarena", "openspiel", "market"] = "textarena"
    num_players: int = 2
    max_turns: int = 200
    timeout_s: float = 600.0
    error_allowance: int = 1
    weight: float = 1.0
    prompt_template: str = "default"
    action_extraction: str = "boxed"


@value
class Seat:
    """One player's place in a game."""

    player_id: int
    policy: PolicyRef
    trained: bool
    prompt_template: str
    action_extraction: str


@value
class GameSpec:
    """Everything that is decided before a game starts; with its completions it replays.

    group_id: games of one group share env, seed and line-up (GRPO's groups); None outside groups.
    group_size: how many games the group has.
    seats: one per player, in order of ``player_id``.
    focus: player id of the evaluated policy in an evaluation game; None in training games.
    """

    game_id: str
    env: EnvSpec
    seed: int
    purpose: Purpose
    seats: tuple[Seat, ...]
    group_id: str | None = None
    group_size: int = 1
    focus: int | None = None

    @property
    def env_id(self) -> str:
        return self.env.id


@value
class SamplingParams:
    """How an engine draws tokens. Log-probs are of the distribution these settings describe.

    stop_token_ids end a completion and stay in it (the end-of-turn token is trained on).
    seed: makes the draw of this request repeatable, whatever else is in its batch.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 4096
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


@value
class Completion:
    """An answer: what was asked in tokens, what came back in tokens, and by whom.

    logprobs: one per token of ``token_ids``, natural log, of the sampling distribution; empty
    (as are both id tuples) for policies whose tokens we do not see.
    """

    text: str
    prompt_token_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: FinishReason = "stop"
    policy_uid: str = ""
    policy_version: int = 0


@value
class Turn:
    """One decision of one player.

    action: what was handed to the game. well_formed: the answer had the asked-for format.
    legal: the game accepted the action; False where it counted as invalid.
    """

    player_id: int
    observation: str
    completion: Completion
    action: str
    well_formed: bool
    legal: bool
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@value
class GameRecord:
    """A game that ended, one way or the other. ``error`` is set when it failed: no rewards then.

    rewards: raw reward per player id. invalid_by: the player whose invalid move ended the game.
    """

    spec: GameSpec
    turns: tuple[Turn, ...]
    rewards: Mapping[int, float]
    end_reason: EndReason
    invalid_by: int | None = None
    error: str | None = None
    duration_s: float = 0.0


@value
class Step:
    """One turn of a trained seat, ready to learn from.

    turn_index: 0 for the seat's first turn. raw_reward: the game's own final reward for this
    player; reward: after the transforms.
    outcome_reward: the part of ``reward`` that the game's outcome gave; the rest is feedback on
    this turn alone. It is repeated on every step, so a critic counts it once, at the last turn.
    info: format and legality feedback of the turn, free for user code.
    """

    game_id: str
    env_id: str
    player_id: int
    group_id: str | None
    turn_index: int
    last_turn: bool
    observation: str
    action: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    raw_reward: float
    reward: float
    outcome_reward: float = 0.0
    policy_uid: str
    policy_version: int
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@value
class Trajectory:
    """One trained seat's view of one game: its own turns in order, and what came of them.

    final_reward: the raw reward of the game for this player.
    """

    game_id: str
    env_id: str
    player_id: int
    group_id: str | None
    group_size: int
    turns: tuple[Turn, ...]
    final_reward: float
    policy_uid: str
    policy_version: int


@value
class Episode:
    """A trajectory after the final and step transforms: the unit of the episode buffer."""

    game_id: str
    env_id: str
    player_id: int
    group_id: str | None
    group_size: int
    steps: tuple[Step, ...]

    @property
    def oldest_version(self) -> int:
        """The policy version of its oldest turn."""
        return min(step.policy_version for step in self.steps)

    @property
    def newest_version(self) -> int:
        """The policy version of its newest turn."""
        return max(step.policy_version for step in self.steps)


@value
class TrainBatch:
    """What one update learns from.

    whole_episodes: steps of one (game, player) are all there, adjacent and in order.
    dropped_stale: steps thrown away as too old since the previous batch.
    """

    steps: tuple[Step, ...]
    whole_episodes: bool
    min_version: int
    max_version: int
    dropped_stale: int = 0


@value
class Checkpoint:
    """A learner version on disk: ``version`` updates after the start. path None: untrained."""

    uid: str
    version: int
    path: str | None
    parent_uid: str | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def policy(self) -> PolicyRef:
        """The reference under which games ask an engine for this version."""
        return PolicyRef(
            uid=self.uid, kind="checkpoint", path_or_name=self.path, version=self.version
        )


@value
class UpdateResult:
    """What one learner update did; ``metrics`` holds loss, grad_norm, lr, log-prob gaps …"""

    version: int
    samples: int
    tokens: int
    metrics: Mapping[str, float]


@value
class EvalResult:
    """Seat-swapped games of one policy version against one opponent in one environment."""

    step: int
    env_id: str
    opponent: str
    policy_uid: str
    games: int
    wins: int
    draws: int
    losses: int
    win_rate: float
    ci95: tuple[float, float]
    mean_reward: float
    invalid_rate: float
    failed: int = 0
