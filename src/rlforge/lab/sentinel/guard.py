"""Actions of a run on the alarms of its sentinel."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlforge.config.per_policy import policy_names
from rlforge.config.schema import RunConfig
from rlforge.lab.sentinel.signals import Sentinel
from rlforge.record.results import Alarm, ExactResult
from rlforge.run.lifecycle import RunContext
from rlforge.run.observers import Observer, Updated
from rlforge.system.checkpoint import checkpoint_version, list_checkpoints, policy_in, step_name
from rlforge.system.values import from_json, to_json
from rlforge.types import EvalResult

#: The mode of the pool with the action ``opponents``.
PAST = "fictitious"


class Guard(Observer):
    """Gives a run's updates to its sentinel and acts on alarms."""

    def __init__(self, context: RunContext[RunConfig]) -> None:
        self._config, self._settings = context.config, context.config.sentinel
        self._actors, self._note = context.actors, context.note
        self._checkpoints = context.run_dir / "checkpoints"
        # The sentinel watches and changes the first policy only.
        self._policy = policy_names(context.config)[0]
        self.sentinel = Sentinel(self._settings)
        self._alarms: list[Alarm] = []

    def evaluated(self, result: EvalResult | ExactResult) -> None:
        if isinstance(result, ExactResult):
            self._alarms += self.sentinel.measured(result)
        else:
            self._alarms += self.sentinel.evaluated(result)

    def state_dict(self) -> dict[str, Any]:
        return {"sentinel": self.sentinel.state_dict(), "alarms": to_json(self._alarms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sentinel.load_state_dict(state["sentinel"])
        self._alarms = from_json(list[Alarm], state["alarms"])

    async def updated(self, update: Updated) -> None:
        """Judge an update, and do what ``sentinel.actions`` says about all new alarms."""
        if not update.first:
            return
        result = update.result
        self._alarms += self.sentinel.learned(result.version, result.metrics)
        if "past" in self._settings.watch:
            games, points = await self._actors.pool.games_with_past.remote()
            self._alarms += self.sentinel.met_past(result.version, games, points)
        back_to, done = None, list[str]()
        if self._alarms and result.version < self._config.learner.total_updates:
            back_to, done = await self._act(min(alarm.good for alarm in self._alarms))
        self._report(done)
        update.policy.parent = back_to or update.policy.parent

    def ended(self) -> None:
        self._report()

    def _report(self, done: list[str] | None = None) -> None:
        """Record and print the alarms. done: what was done about them."""
        for alarm in self._alarms:
            alarm = dataclasses.replace(alarm, actions=tuple(done or ()))
            self._actors.tracker.add_alarm.remote(alarm)
            self._note(f"sentinel, update {alarm.step}: {alarm.text}")
        self._alarms = []

    def needed(self) -> set[str]:
        if "rollback" not in self._settings.actions:
            return set()
        # Otherwise these versions would be deleted as old, and a rollback would go back further.
        return {step_name(self._saved_until(good), self._policy) for good in self.sentinel.good()}

    async def _act(self, good: int) -> tuple[str | None, list[str]]:
        """Act on alarms; returns where the learner went back to, and what was done."""
        actions, learner, back_to, done = self._settings.actions, self._actors.learner, None, []
        if "opponents" in actions:
            await self._actors.pool.use_mode.remote(PAST)
            done.append("opponents from the past")
        if "rollback" in actions:
            version = self._saved_until(good)
            back_to = step_name(version, self._policy)
            await learner.go_back(version, self._policy)
            done.append(f"rollback to {back_to}")
        if "magnet" in actions:
            await learner.refresh_reference(self._policy)
            done.append("new snapshot as reference")
        if "smaller_steps" in actions:
            await learner.take_smaller_steps(self._settings.step_factor, self._policy)
            done.append(f"learning rate × {self._settings.step_factor:g}")
        if done:
            # Training was changed on purpose, so the course of signals is learned anew.
            self.sentinel.restart()
        return back_to, done

    def _saved_until(self, version: int) -> int:
        saved = [
            checkpoint_version(path)
            for path in list_checkpoints(self._checkpoints)
            if policy_in(path.name) == self._policy
        ]
        return max((each for each in saved if each <= version), default=0)
