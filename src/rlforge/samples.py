"""Samples, their batches, and the result of an update."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlforge.types import OTHER_RUN, GameRecord, Turn, value


@value
class Trajectory:
    """A seat's turns of a finished game, for step transforms, which may note in their ``info``.

    Example:
        >>> from rlforge.types import EnvSpec, GameSpec
        >>> env = EnvSpec(id="TicTacToe-v0-train")
        >>> spec = GameSpec(game_id="g1", env=env, seed=1, purpose="train", seats=())
        >>> record = GameRecord(spec=spec, turns=(), rewards={0: 1.0}, end_reason="finished")
        >>> Trajectory(record=record, player_id=0, turns=()).final_reward
        1.0
    """

    record: GameRecord
    player_id: int
    turns: tuple[Turn, ...]

    @property
    def final_reward(self) -> float:
        return self.record.rewards[self.player_id]


@value
class Sample:
    """An answer with its reward: a turn of a game, a decision in a window, a row of a dataset.

    Attributes:
        origin: The game, the window and agent, or the row of a file that it is from.
        env_id: The environment, or the source of decisions or rows.
        group_id: Id of episodes that are compared, a player's with each other.
        turn_index: Place in its ``episode``, from 0.
        last_turn: Whether it ends the episode.
        raw_reward: Reward of the game or the market, before transforms.
        reward: After the transforms.
        rewards: After each transform by its name, in order.
        before_baseline: After the transforms before the first that ``is_baseline``; else None.
        outcome_reward: The part of ``reward`` from the game's outcome, which all samples of an
            episode repeat; the rest is feedback on this turn alone.
        legal_tokens: Legal alternatives at each token, as ``Turn.legal_tokens``.
        info: Free for user code.

    Example:
        >>> sample = Sample(
        ...     origin="g1", turn_index=0, last_turn=True, prompt_token_ids=(5, 6),
        ...     token_ids=(17,), logprobs=(-0.7,), policy_uid="step-3", policy_version=3,
        ... )
        >>> sample.episode
        ('g1', 0)
    """

    origin: str
    env_id: str = ""
    player_id: int = 0
    group_id: str | None = None
    turn_index: int
    last_turn: bool
    observation: str = ""
    action: str = ""
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    raw_reward: float = 0.0
    reward: float = 0.0
    outcome_reward: float = 0.0
    before_baseline: float | None = None
    rewards: Mapping[str, float] = dataclasses.field(default_factory=dict)
    policy_uid: str
    policy_version: int
    legal_tokens: tuple[tuple[int, ...], ...] = ()
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def episode(self) -> tuple[str, int]:
        return self.origin, self.player_id


Episode = tuple[Sample, ...]
"""All samples of a player of a game, in order."""


@value
class TrainBatch:
    """The batch of an update.

    whole_episodes: episodes are complete, adjacent and in order. dropped_stale: samples since the
    previous batch.
    """

    samples: tuple[Sample, ...]
    whole_episodes: bool
    dropped_stale: int = 0

    @property
    def facts(self) -> dict[str, int]:
        """Facts for files and digests, beside the samples."""
        # An empty batch has no least version.
        versions = [sample.policy_version for sample in self.samples] or [OTHER_RUN]
        return {
            "whole_episodes": self.whole_episodes,
            "min_version": min(versions),
            "max_version": max(versions),
            "dropped_stale": self.dropped_stale,
        }


@value
class UpdateResult:
    """The result of a learner update.

    advantages: of the batch's samples, in order. digests: of the weights before and after it, and
    of the optimizer. new_policy: False where the policy made no step, as the batch had no signal:
    ``version`` then counts the update, and the weights are those of an earlier one.
    """

    version: int
    samples: int
    tokens: int
    metrics: Mapping[str, float]
    advantages: tuple[float, ...] = ()
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    new_policy: bool = True
