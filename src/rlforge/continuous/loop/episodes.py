"""Episodes of a user's function, whose answers become decisions with the rewards that it gives."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rlforge.config.plugins import EPISODES
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.decisions.records import CONTROL, Decision, WindowGrid
from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.continuous.loop.answers import Ask, answer_decision, state_after
from rlforge.continuous.loop.session import Session, SessionModel
from rlforge.continuous.loop.simulation import Driver
from rlforge.errors import EngineDeadError, RlforgeError, RunError
from rlforge.rollout.episode import seed_of
from rlforge.types import value

log = logging.getLogger(__name__)


class EpisodesDriver(Driver):
    """Plays the episodes of a window when its time comes; time stands still otherwise.

    begin: where nothing is played yet. record: called with the decisions of each episode.
    """

    def __init__(
        self,
        config: ContinuousConfig,
        store: TrajectoryStore,
        tokenizer: Any,
        ask: Ask,
        begin: float,
        stop: asyncio.Event,
        record: Callable[[Sequence[Decision]], Awaitable[None]],
    ) -> None:
        super().__init__(stop)
        self._config, self._store = config, store
        self._now, self._record = begin, record
        self._model = SessionModel(config, tokenizer, ask)
        self._grid = WindowGrid(config.window.minutes)
        self._first = self._grid.span(config.continuous.start)[0]
        assert config.episodes.function is not None, "checked before the run"
        self._name, self._each = config.episodes.function, config.episodes.per_agent
        self._function = EPISODES.find(self._name)
        self._provider = config.model.label
        settings = config.continuous
        self._agents = [
            *(f"agent-{number}" for number in range(1, settings.agents + 1)),
            *(f"{CONTROL}-{number}" for number in range(1, settings.control_agents + 1)),
        ]

    def now(self) -> float:
        return self._now

    async def advance_to(self, moment: float) -> None:
        while self._now < moment:
            window_id = self._grid.id_of(self._now)
            self.check_stop()
            await self.unless_stopped(self._play_window(window_id))
            self._now = self._grid.span(window_id)[1]

    async def _play_window(self, window_id: str) -> None:
        """Play the episodes that are not on record: agents at once, each one's in turn."""
        rows = await asyncio.to_thread(self._store.decisions, window_id=window_id)
        # An episode is recorded whole or not at all, so one decision shows that it is done.
        done = {decision.id.rpartition("-")[0] for decision in rows}
        failures: list[str] = []

        async def play(place: int, agent: str) -> None:
            for turn in range(self._each):
                episode = self._episode(window_id, place, agent, turn)
                if episode.name in done:
                    continue
                try:
                    decisions = await self._decisions(episode)
                # Without the engine every later episode would fail, too.
                except EngineDeadError as error:
                    raise RunError(f"the engine is gone: {error}") from error
                except RlforgeError as error:
                    failures.append(str(error))
                    log.warning("%s ends without a result: %s", episode.name, error)
                else:
                    await self._record(decisions)

        async with asyncio.TaskGroup() as group:
            for place, agent in enumerate(self._agents):
                group.create_task(play(place, agent))
        if failures and window_id not in await asyncio.to_thread(self._store.window_ids):
            raise RunError(f"no episode of {window_id} came to its end: {failures[0]}")

    def _episode(self, window_id: str, place: int, agent: str, turn: int) -> _Episode:
        begin, end = self._grid.span(window_id)
        # Counted from the first window, so that a resumed run goes on with the same numbers.
        passed = round((begin - self._first) / (end - begin)) * self._each + turn
        length = (end - begin) / self._each
        return _Episode(
            name=f"{self._config.name}-{self._config.seed}-{window_id}-{agent}-{turn:04d}",
            agent=agent,
            window_id=window_id,
            begin=begin + turn * length,
            length=length,
            number=passed * len(self._agents) + place,
        )

    async def _decisions(self, episode: _Episode) -> list[Decision]:
        """Play an episode; RlforgeError where it ends without a result."""
        seed = seed_of(f"{self._config.seed}/{episode.number}")
        session = Session(episode.agent, episode.number, seed, self._model)
        with EPISODES.trial(self._name, RlforgeError):
            rewarded = session.rewarded(await self._function(session))
        control = episode.agent.startswith(f"{CONTROL}-")
        decisions = []
        for place, (conversation, text, completion, reward) in enumerate(rewarded):
            decision = answer_decision(
                f"{episode.name}-{place:04d}",
                session.agent,
                episode.window_id,
                # Answers have no time of their own, so they are spread over the episode's.
                episode.begin + episode.length * place / len(rewarded),
                CONTROL if control else self._provider,
                conversation,
                text,
                completion,
                self._model.tokenizer,
            )
            after = state_after(decision)
            decisions.append(dataclasses.replace(decision, reward=reward, next_state=after))
        return decisions


@value
class _Episode:
    """An episode and its time, in seconds."""

    name: str
    agent: str
    window_id: str
    begin: float
    length: float
    number: int
