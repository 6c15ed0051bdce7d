"""Requests that wait until their policy version is resident and there is room for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Generic, Protocol, TypeVar

from rlforge.engines.policies import PolicyKey
from rlforge.engines.requests import Answer
from rlforge.errors import EngineError


class Waiting(Protocol):
    """A request: ids grow in order of arrival, ``prompt`` holds token ids."""

    @property
    def id(self) -> int: ...

    @property
    def prompt(self) -> Sequence[int]: ...


class Residents(Protocol):
    """The policy versions that an engine holds, of which there is room for a few."""

    @property
    def resident(self) -> Sequence[PolicyKey]:
        """What is held beside the base model, least recently used first."""
        ...

    def is_resident(self, key: PolicyKey) -> bool:
        """Whether ``key`` can answer now."""
        ...

    def load(self, key: PolicyKey, busy: Collection[PolicyKey]) -> bool:
        """Make ``key`` resident in place of one that is not busy; False when all are busy.

        Raises EngineError when the policy cannot load.
        """
        ...

    def use(self, key: PolicyKey) -> object:
        """Makes a resident policy the most recently used one."""
        ...


R = TypeVar("R", bound=Waiting)


class WaitingRoom(Generic[R]):
    """Waiting requests and loads, by policy version; first come, first served.

    One thread calls its methods; ``len`` (the requests that wait) may be asked from any. While it
    is closed requests come in, but none is let through.
    """

    def __init__(self, policies: Residents) -> None:
        self._policies = policies
        self._requests: dict[PolicyKey, deque[R]] = {}
        self._loads: dict[PolicyKey, list[int]] = {}
        self._leaving: set[PolicyKey] = set()
        self._closed = False

    def __len__(self) -> int:
        return sum(len(queue) for queue in list(self._requests.values()))

    @property
    def has_work(self) -> bool:
        """Whether a request or a load waits that may be let through."""
        return not self._closed and bool(self._requests or self._loads)

    def close(self) -> None:
        """Lets nobody through until ``open``."""
        self._closed = True

    def open(self) -> None:
        """Lets requests through again."""
        self._closed = False

    def add(self, key: PolicyKey, request: R) -> None:
        """``request`` waits for ``key``."""
        self._requests.setdefault(key, deque()).append(request)

    def add_load(self, key: PolicyKey, ticket: int) -> None:
        """``ticket`` is answered once ``key`` is resident."""
        self._loads.setdefault(key, []).append(ticket)

    def cancel(self, gone: Collection[int]) -> None:
        """Forgets requests and loads by id."""
        queues = {k: deque(r for r in q if r.id not in gone) for k, q in self._requests.items()}
        self._requests = {key: queue for key, queue in queues.items() if queue}
        loads = {k: [i for i in ids if i not in gone] for k, ids in self._loads.items()}
        self._loads = {key: ids for key, ids in loads.items() if ids}

    def clear(self) -> list[int]:
        """Forgets everything; returns the ids of what waited."""
        ids = [request.id for queue in self._requests.values() for request in queue]
        ids += [ticket for tickets in self._loads.values() for ticket in tickets]
        self._requests, self._loads = {}, {}
        return ids

    def place_policies(self, running: Sequence[PolicyKey]) -> list[Answer]:
        """Makes the policies that somebody waits for resident, in order of arrival.

        Where every place is in use, the least recently used version takes no new requests until
        its ``running`` ones are done; then it leaves. So no policy waits for ever. Returns the
        loads that are done, and what ends because its policy does not load.
        """
        if self._closed:
            return []
        asked = {key: tickets[0] for key, tickets in self._loads.items()}
        for key, queue in self._requests.items():
            asked[key] = min(queue[0].id, asked.get(key, queue[0].id))
        busy = set(running)
        leaving: list[PolicyKey] = []
        answers: list[Answer] = []
        for key in sorted(asked, key=lambda k: asked[k]):
            try:
                if not self._policies.load(key, busy):
                    in_use = [k for k in self._policies.resident if k in running]
                    leaving += [k for k in in_use if k not in leaving][:1]
                    continue
            except EngineError as error:
                failed = [r.id for r in self._requests.pop(key, ())] + self._loads.pop(key, [])
                answers += [Answer(id=i, error=error) for i in failed]
                continue
            busy.add(key)
            if tickets := self._loads.pop(key, []):
                self._policies.use(key)  # the next one to load does not send it away again
                answers += [Answer(id=ticket) for ticket in tickets]
        self._leaving = set(leaving)
        return answers

    def admit(self, room: int, prompt_tokens: int) -> list[tuple[PolicyKey, R]]:
        """Takes requests of resident policies, oldest first.

        At most ``room`` of them, and none after the one that brings the tokens of all their
        prompts to ``prompt_tokens``.
        """
        if self._closed:
            return []
        ready = {
            key: queue
            for key, queue in self._requests.items()
            if key not in self._leaving and self._policies.is_resident(key)
        }
        admitted: list[tuple[PolicyKey, R]] = []
        while ready and room > 0 and prompt_tokens > 0:
            key = min(ready, key=lambda k: ready[k][0].id)
            request = ready[key].popleft()
            admitted.append((key, request))
            room -= 1
            prompt_tokens -= len(request.prompt)
            if not ready[key]:
                del ready[key], self._requests[key]
        return admitted
