"""Turns finished games into episodes with shaped rewards, and shapes the rewards of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlforge.config.plugins import FINAL_REWARDS, SAMPLING_REWARDS, STEP_REWARDS
from rlforge.config.schema import RewardsConfig
from rlforge.config.stacks import build_stack
from rlforge.errors import CheckpointError
from rlforge.rewards.final import FinalTransform, Stateful
from rlforge.rewards.sampling import SamplingTransform
from rlforge.rewards.step import StepTransform
from rlforge.types import Episode, GameRecord, Seat, Step, Trajectory


class RewardPipeline:
    """The three stacks of ``RewardsConfig``, in order: final, step, sampling.

    Raises ConfigError for an entry that names no transform or has wrong parameters.
    """

    def __init__(self, config: RewardsConfig) -> None:
        final, step, sampling = FINAL_REWARDS, STEP_REWARDS, SAMPLING_REWARDS
        self._final: list[FinalTransform] = build_stack(config.final, final, "rewards.final")
        self._step: list[StepTransform] = build_stack(config.step, step, "rewards.step")
        self._sampling: list[SamplingTransform] = build_stack(
            config.sampling, sampling, "rewards.sampling"
        )

    def shape(self, record: GameRecord) -> list[Episode]:
        """One episode per trained seat that had a turn; none for a game that failed.

        The final stack sees the rewards of all players, once per game; the step stack then starts
        every step of a seat from that seat's final reward. Raw rewards are kept.
        """
        if record.error is not None:
            return []
        final: Mapping[int, float] = record.rewards
        for transform in self._final:
            final = transform(final, record.spec.env_id)
        trajectories = (trajectory_of(record, seat) for seat in record.spec.seats if seat.trained)
        return [
            self._episode(trajectory, final[trajectory.player_id])
            for trajectory in trajectories
            if trajectory.turns
        ]

    def on_draw(self, steps: Sequence[Step]) -> list[Step]:
        """The steps of one batch, in order, with their rewards after the sampling stack."""
        drawn = list(steps)
        for transform in self._sampling:
            drawn = transform(drawn)
        return drawn

    def state_dict(self) -> dict[str, Any]:
        """State of the final transforms as plain data, by their place in the stack."""
        return {
            str(place): transform.state_dict()
            for place, transform in enumerate(self._final)
            if isinstance(transform, Stateful)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``. Raises CheckpointError for that of another final stack."""
        stateful = {
            str(place): transform
            for place, transform in enumerate(self._final)
            if isinstance(transform, Stateful)
        }
        if stateful.keys() != state.keys():
            raise CheckpointError(
                f"reward baselines: the checkpoint has them for places {sorted(state)} of "
                f"rewards.final, the configuration for {sorted(stateful)}; resume with the "
                "rewards.final of the saved run"
            )
        for place, transform in stateful.items():
            transform.load_state_dict(state[place])

    def _episode(self, trajectory: Trajectory, final_reward: float) -> Episode:
        return Episode(
            game_id=trajectory.game_id,
            env_id=trajectory.env_id,
            player_id=trajectory.player_id,
            group_id=trajectory.group_id,
            group_size=trajectory.group_size,
            steps=tuple(
                self._make_step(trajectory, index, final_reward)
                for index in range(len(trajectory.turns))
            ),
        )

    def _make_step(self, trajectory: Trajectory, index: int, final_reward: float) -> Step:
        reward = outcome_reward = final_reward
        for transform in self._step:
            reward = transform(trajectory, index, reward)
            if not transform.adds_feedback:
                outcome_reward = transform(trajectory, index, outcome_reward)
        turn = trajectory.turns[index]
        return Step(
            game_id=trajectory.game_id,
            env_id=trajectory.env_id,
            player_id=trajectory.player_id,
            group_id=trajectory.group_id,
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
            policy_uid=turn.completion.policy_uid,
            policy_version=turn.completion.policy_version,
            info={**turn.info, "well_formed": turn.well_formed, "legal": turn.legal},
        )


def trajectory_of(record: GameRecord, seat: Seat) -> Trajectory:
    """The turns of ``seat`` in a finished game, in order, with its raw reward."""
    return Trajectory(
        game_id=record.spec.game_id,
        env_id=record.spec.env_id,
        player_id=seat.player_id,
        group_id=record.spec.group_id,
        group_size=record.spec.group_size,
        turns=tuple(turn for turn in record.turns if turn.player_id == seat.player_id),
        final_reward=record.rewards[seat.player_id],
        policy_uid=seat.policy.uid,
        policy_version=seat.policy.version,
    )
