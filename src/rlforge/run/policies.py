"""The policies that a run trains, whose turn it is, and when one begins anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from rlforge.config.per_policy import entry_of, evaluated_at, policy_names, turns
from rlforge.config.policies import START
from rlforge.config.schema import RunConfig
from rlforge.league.pool import RECENT_GAMES
from rlforge.rollout.lineup import eval_envs, train_envs
from rlforge.run.actors.cluster import RunActors
from rlforge.system.checkpoint import step_name
from rlforge.system.values import from_json, to_json
from rlforge.types import Checkpoint


@dataclasses.dataclass
class Trained:
    """One of the policies in training; the only one of a run has no name.

    Attributes:
        newest: Newest saved version.
        parent: Parent of the next version; None: ``newest``.
        updated: Number of the newest update that changed it; one without signal does not.
        begun: Number of the update at which it began, or began anew.
        updates: Updates of this policy since then.
    """

    name: str
    newest: Checkpoint
    parent: str | None = None
    updated: int = 0
    begun: int = 0
    updates: int = 0

    def state_dict(self) -> dict[str, Any]:
        return {"newest": to_json(self.newest), "begun": self.begun, "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.newest = from_json(Checkpoint, state["newest"])
        self.updated = self.newest.version
        self.begun, self.updates = state["begun"], state["updates"]


class Policies:
    """All policies in training. They take turns: update N is of one of them."""

    def __init__(self, config: RunConfig) -> None:
        self._config, self._turns = config, turns(config)
        start = config.learner.initial_adapter
        self._all = {
            name: Trained(
                name=name,
                newest=Checkpoint(uid=step_name(0, name), version=0, path=start, name=name),
            )
            for name in policy_names(config)
        }

    @property
    def every(self) -> tuple[Trained, ...]:
        """All policies; the first is watched."""
        return tuple(self._all.values())

    @property
    def newest(self) -> Trained:
        return max(self._all.values(), key=lambda policy: policy.updated)

    def at_turn(self, updates: int) -> Trained:
        """The policy whose update comes after ``updates`` of all."""
        return self._all[self._turns[updates % len(self._turns)]]

    def seated(self) -> list[Checkpoint]:
        """The newest version of the policy to evaluate at each seat."""
        envs = [*train_envs(self._config), *eval_envs(self._config)]
        return [
            self._all[evaluated_at(self._config, seat)].newest
            for seat in range(max(env.num_players for env in envs))
        ]

    async def begins_anew(self, policy: Trained, number: int, actors: RunActors) -> bool:
        """Whether ``reset`` asks the policy to begin anew in place of update ``number``."""
        reset = entry_of(self._config, policy.name).reset
        # The last version is evaluated at the end: it is one that was trained, not a fresh start.
        if not policy.updates or number == self._config.learner.total_updates:
            return False
        if reset.every is not None and policy.updates >= reset.every:
            return True
        if reset.score is None:
            return False
        games, score = await actors.pool.score.remote(policy.name, policy.begun)
        return bool(games >= RECENT_GAMES and score > reset.score)

    async def begin_anew(
        self, policy: Trained, number: int, actors: RunActors, note: Callable[[str], None]
    ) -> dict[str, Any]:
        """Give the policy other weights as its version ``number``; returns their digests."""
        to = entry_of(self._config, policy.name).reset.to
        like = None if to == START else self._all[to]
        digests: dict[str, Any] = await actors.learner.begin_anew(
            policy.name, number, None if like is None else to
        )
        await actors.buffer.begin_anew.remote(number, policy.name)
        policy.updated = policy.begun = number
        policy.updates = 0
        policy.parent = step_name(0, policy.name) if like is None else like.newest.uid
        source = "its start" if like is None else like.newest.uid
        note(f"{policy.name} begins anew as {step_name(number, policy.name)}, from {source}")
        return digests

    def state_dict(self) -> dict[str, Any]:
        return {name: policy.state_dict() for name, policy in self._all.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, policy in self._all.items():
            policy.load_state_dict(state[name])
