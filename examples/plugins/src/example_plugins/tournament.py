"""A kind of run: ``rlforge train kind=tournament`` lets two players meet, and trains nothing."""

import asyncio
from dataclasses import dataclass, field

import rlforge
from rlforge.config.rules import Count, Group
from rlforge.config.schema import GamesConfig
from rlforge.errors import raise_all
from rlforge.kinds import RunKind
from rlforge.preflight.games import opponent_problems
from rlforge.rollout.lineup import train_envs
from rlforge.specs import tracker_node
from rlforge.statistics import wilson_interval
from rlforge.types import EvalResult


@dataclass
class TournamentSettings(Group):
    """Who meets whom, and how often (group ``tournament``)."""

    #: The player that is measured.
    player: str = "minimax"
    #: The one that it meets, from both seats in turn.
    opponent: str = "random_legal"
    #: Games in each environment.
    games: Count = 20


@dataclass
class TournamentConfig(GamesConfig):
    """The games of ``env.train``, without a learner."""

    kind = "example_plugins.tournament:TOURNAMENT"
    primary, command, about = "config", "train", "a tournament"

    tournament: TournamentSettings = field(default_factory=TournamentSettings)


class Tournament(RunKind[TournamentConfig]):
    root = TournamentConfig
    generates = learns = False

    def check(self, composed, *, keys=True):
        settings, envs = composed.config.tournament, train_envs(composed.config)
        named = {key: [getattr(settings, key)] for key in ("player", "opponent")}
        raise_all(
            problem
            for key, names in named.items()
            for problem in opponent_problems(composed, f"tournament.{key}", names, envs, keys=keys)
        )

    def nodes(self, config, hardware):
        return (tracker_node(),)

    def controller(self, config):
        return TournamentRun


class TournamentRun:
    """The controller: plays in this process, and hands results to the tracker."""

    def __init__(self, context):
        self._config, self._tracker = context.config, context.actors.tracker
        self._wanted, self._wins = True, []

    async def begin(self, *, resume):
        """There is nothing to restore: results are written at the end."""

    async def run(self):
        settings = self._config.tournament
        for env in train_envs(self._config):
            rewards = []
            for number in range(settings.games):
                if not self._wanted:
                    return False
                seats = [settings.player, settings.opponent]
                own = number % 2
                record = await asyncio.to_thread(
                    rlforge.play_game, env, *(reversed(seats) if own else seats), seed=number
                )
                rewards.append(record.rewards[own])
            self._tracker.add_eval.remote(_result(env.id, settings, rewards))
            self._wins.append(sum(reward > 0 for reward in rewards) / len(rewards))
        return True

    def stop(self):
        self._wanted = False

    async def close(self):
        """Nothing is open."""

    def summary(self):
        return {"objective": sum(self._wins) / max(1, len(self._wins))}


def _result(env_id, settings, rewards):
    games, wins, losses = len(rewards), sum(r > 0 for r in rewards), sum(r < 0 for r in rewards)
    return EvalResult(
        step=0,
        env_id=env_id,
        opponent=settings.opponent,
        policy_uid=settings.player,
        games=games,
        wins=wins,
        draws=games - wins - losses,
        losses=losses,
        win_rate=wins / games,
        ci95=wilson_interval(wins, games),
        mean_reward=sum(rewards) / games,
        invalid_rate=0.0,
    )


TOURNAMENT = Tournament()
