"""Finished games to episodes with shaped rewards, and the rewards of batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rlforge.config.games import RewardsConfig
from rlforge.config.plugins import FINAL_REWARDS, SAMPLING_REWARDS, STEP_REWARDS
from rlforge.config.stacks import build_stack
from rlforge.errors import CheckpointError, ExtensionError
from rlforge.rewards.final import FinalTransform, GameTransform, Stateful
from rlforge.rewards.sampling import SamplingTransform
from rlforge.rewards.step import Noting, StepTransform
from rlforge.samples import Episode, Sample, Trajectory
from rlforge.system.values import json_ready
from rlforge.types import GameRecord


class RewardPipeline:
    """The stacks of ``RewardsConfig``: final, step, sampling.

    Raises ConfigError for an entry that names no transform or has wrong parameters.
    """

    def __init__(self, config: RewardsConfig) -> None:
        final, step, sampling = FINAL_REWARDS, STEP_REWARDS, SAMPLING_REWARDS
        self._final: list[FinalTransform | GameTransform] = build_stack(
            config.final, final, "rewards.final"
        )
        self._stateful = {
            str(place): one for place, one in enumerate(self._final) if isinstance(one, Stateful)
        }
        baselines = [getattr(one, "is_baseline", False) for one in self._final]
        self._baseline = baselines.index(True) if True in baselines else None
        self._step: list[StepTransform] = build_stack(config.step, step, "rewards.step")
        self._sampling: list[SamplingTransform] = build_stack(
            config.sampling, sampling, "rewards.sampling"
        )
        entries = (*config.final, *config.step, *config.sampling)
        names = [str(entry["name"]).rpartition(":")[2] for entry in entries]
        #: Names of all transforms in order; a repeated one has a number.
        self._names = [
            f"{name}_{earlier + 1}" if (earlier := names[:place].count(name)) else name
            for place, name in enumerate(names)
        ]

    def shape(self, record: GameRecord, learned: Collection[int] | None = None) -> list[Episode]:
        """One episode per player of ``learned`` (None: all trained seats) that had a turn.

        No episodes for a game that failed.
        """
        if learned is None:
            learned = record.spec.trained
        if record.error is not None or not learned:
            return []
        # Opponents' rewards count too: transforms such as win_draw_loss compare players.
        final = self._finals(record, learned)
        episodes = list[Episode]()
        for player in (seat.player_id for seat in record.spec.seats if seat.player_id in learned):
            trajectory, own = self._noted(record, player), [after[player] for after in final]
            places = range(len(trajectory.turns))
            episodes.append(tuple(self._sample(trajectory, index, own) for index in places))
        return [episode for episode in episodes if episode]

    def final(self, record: GameRecord, learned: Collection[int]) -> Mapping[int, float]:
        """Rewards of all players after the final stack."""
        return self._finals(record, learned)[-1]

    def _finals(
        self, record: GameRecord, learned: Collection[int]
    ) -> Sequence[Mapping[int, float]]:
        """Rewards of the game, then after each final transform."""
        rewards = [record.rewards]
        for transform in self._final:
            # A plug-in that needs only the rewards may be a plain function.
            if isinstance(transform, GameTransform):
                rewards.append(transform.of_game(rewards[-1], record, learned))
            else:
                rewards.append(transform(rewards[-1], record.spec.env_id))
        return rewards

    @property
    def moves(self) -> bool:
        """Whether final transforms have state, so that equal games may differ in reward."""
        return bool(self._stateful)

    def on_draw(self, samples: Sequence[Sample]) -> list[Sample]:
        """Samples of one batch after the sampling stack."""
        drawn, before = list(samples), len(self._final) + len(self._step)
        for name, transform in zip(self._names[before:], self._sampling, strict=True):
            drawn = [
                dataclasses.replace(one, rewards={**one.rewards, name: float(one.reward)})
                for one in transform(drawn)
            ]
        return drawn

    def state_dict(self) -> dict[str, Any]:
        """States of the final transforms as plain data, by place in the stack."""
        return {place: transform.state_dict() for place, transform in self._stateful.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``. Raises CheckpointError for that of another final stack."""
        if self._stateful.keys() != state.keys():
            raise CheckpointError(
                f"reward baselines: the checkpoint has them for places {sorted(state)} of "
                f"rewards.final, the configuration for {sorted(self._stateful)}; resume with the "
                "rewards.final of the saved run"
            )
        for place, transform in self._stateful.items():
            transform.load_state_dict(state[place])

    def _noted(self, record: GameRecord, player_id: int) -> Trajectory:
        """Turns of a player with the notes of step transforms in their ``info``."""
        own = tuple(turn for turn in record.turns if turn.player_id == player_id)
        trajectory = Trajectory(record=record, player_id=player_id, turns=own)
        for transform in self._step:
            if isinstance(transform, Noting):
                turns = []
                for index, turn in enumerate(trajectory.turns):
                    noted = transform.notes(trajectory, index)
                    try:
                        stored: dict[str, Any] = json_ready(noted)
                    except TypeError as error:
                        raise ExtensionError(
                            f"{type(transform).__name__}.notes: {error}; a note is a number, a "
                            "text, or a list or mapping of them"
                        ) from error
                    turns.append(dataclasses.replace(turn, info={**turn.info, **stored}))
                trajectory = dataclasses.replace(trajectory, turns=tuple(turns))
        return trajectory

    def _sample(self, trajectory: Trajectory, index: int, final: Sequence[float]) -> Sample:
        """Sample of a turn; ``final``: rewards of the game, then after each final transform."""
        reward = outcome_reward = final[-1]
        rewards = dict(zip(self._names, map(float, final[1:]), strict=False))
        for name, transform in zip(self._names[len(rewards) :], self._step, strict=False):
            before, reward = reward, transform(trajectory, index, reward)
            rewards[name] = float(reward)
            if transform.adds_feedback:
                continue
            # One call serves both where no earlier transform paid feedback on this turn, because a
            # user's transform may have a state or a cost.
            same = outcome_reward == before
            outcome_reward = reward if same else transform(trajectory, index, outcome_reward)
        spec, turn = trajectory.record.spec, trajectory.turns[index]
        return Sample(
            origin=spec.game_id,
            env_id=spec.env_id,
            player_id=trajectory.player_id,
            group_id=spec.group_id,
            turn_index=index,
            last_turn=index == len(trajectory.turns) - 1,
            observation=turn.observation,
            action=turn.action,
            prompt_token_ids=turn.completion.prompt_token_ids,
            token_ids=turn.completion.token_ids,
            logprobs=turn.completion.logprobs,
            raw_reward=trajectory.final_reward,
            reward=reward,
            outcome_reward=outcome_reward,
            before_baseline=None if self._baseline is None else final[self._baseline],
            rewards=rewards,
            policy_uid=turn.completion.policy_uid,
            policy_version=turn.completion.policy_version,
            legal_tokens=turn.legal_tokens,
            info={**turn.info, "well_formed": turn.well_formed, "legal": turn.legal},
        )
