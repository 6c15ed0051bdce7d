"""Games to fill buffers with."""

from collections.abc import Sequence

from tests import factories

from rlforge.buffer import Shaped


def make_game(
    origin: str,
    versions: Sequence[int] = (0,),
    players: Sequence[int] = (0,),
    group_id: str | None = None,
    group_size: int = 1,
    reward: float = 0.1 + 0.2,
) -> Shaped:
    """A game in which each of ``players`` had one turn per policy version."""
    numbers = {"reward": reward, "outcome_reward": 0.3, "logprobs": (-0.1 / 3, -2.0)}
    same = {"group_id": group_id, "info": {"well_formed": True, "legal": False}, **numbers}
    episodes = [factories.episode(origin, versions, player_id=p, **same) for p in players]
    return Shaped(episodes, group_id, group_size)


def joined(*games: Shaped) -> Shaped:
    """The episodes of one game, given by player."""
    return games[0]._replace(episodes=[one for game in games for one in game.episodes])
