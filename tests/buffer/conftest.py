"""Episodes to fill buffers with."""

from collections.abc import Callable

import pytest

from rlforge.types import Episode, Step


def make_episode(
    game_id: str,
    versions: tuple[int, ...] = (0,),
    player_id: int = 0,
    group_id: str | None = None,
    group_size: int = 1,
    reward: float = 0.1 + 0.2,
) -> Episode:
    """An episode with one step per policy version."""
    steps = tuple(
        Step(
            game_id=game_id,
            env_id="env",
            player_id=player_id,
            group_id=group_id,
            turn_index=index,
            last_turn=index == len(versions) - 1,
            observation=f"{game_id} at {index}",
            action="[1]",
            prompt_token_ids=(1, 2),
            token_ids=(3,),
            logprobs=(-0.1 / 3,),
            raw_reward=1.0,
            reward=reward,
            outcome_reward=0.3,
            policy_uid="p",
            policy_version=version,
            info={"well_formed": True, "legal": False},
        )
        for index, version in enumerate(versions)
    )
    return Episode(
        game_id=game_id,
        env_id="env",
        player_id=player_id,
        group_id=group_id,
        group_size=group_size,
        steps=steps,
    )


@pytest.fixture(name="make_episode", scope="session")
def make_episode_fixture() -> Callable[..., Episode]:
    return make_episode
