"""Episodes to fill buffers with."""

from collections.abc import Sequence

from tests import factories

from rlforge.types import Episode


def make_episode(
    game_id: str,
    versions: Sequence[int] = (0,),
    player_id: int = 0,
    group_id: str | None = None,
    group_size: int = 1,
    reward: float = 0.1 + 0.2,
) -> Episode:
    """An episode with one step per policy version."""
    seat = {"player_id": player_id, "group_id": group_id}
    numbers = {"reward": reward, "outcome_reward": 0.3, "logprobs": (-0.1 / 3, -2.0)}
    info = {"well_formed": True, "legal": False}
    return factories.episode(game_id, versions, group_size, **seat, **numbers, info=info)
