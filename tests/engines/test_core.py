"""Waiting requests are admitted first come, first served, within the limits of the engine."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from rlforge.engines.core import EngineRequest, WaitingRoom
from rlforge.engines.versions import PolicyKey, Versions
from rlforge.errors import EngineError
from rlforge.types import PolicyRef, SamplingParams

A, B, C = (PolicyKey(uid, f"/{uid}") for uid in "abc")


def _request(number: int) -> EngineRequest:
    return EngineRequest(
        id=number,
        prompt=(1, 2),
        params=SamplingParams(),
        policy=PolicyRef(uid="any", kind="checkpoint"),
        seed=0,
        limit=1,
    )


class Places(Versions[str]):
    """Room for some versions; loading ``broken`` fails."""

    def __init__(self, capacity: int, broken: Collection[PolicyKey] = ()) -> None:
        super().__init__(capacity)
        self._broken = broken

    def _replace(self, victim: PolicyKey | None, key: PolicyKey, path: str) -> None:
        if key in self._broken:
            raise EngineError(f"{key.uid} is broken")
        if victim is not None:
            del self._held[victim]
        self._held[key] = path


def _room(capacity: int, *asked: tuple[PolicyKey, int]) -> WaitingRoom[EngineRequest]:
    room: WaitingRoom[EngineRequest] = WaitingRoom(Places(capacity))
    for key, number in asked:
        room.add(key, _request(number))
    return room


def _ids(admitted: list[tuple[PolicyKey, EngineRequest]]) -> list[int]:
    return [request.id for _, request in admitted]


def test_requests_of_all_versions_are_admitted_in_order_of_arrival():
    room = _room(2, (A, 1), (B, 2), (A, 3), (B, 4))
    assert room.place_policies([]) == []
    assert _ids(room.admit(3, 1000)) == [1, 2, 3]
    assert len(room) == 1
    assert _ids(room.admit(3, 1000)) == [4]
    assert not room.has_work


def test_prompt_tokens_bound_the_requests_admitted_at_once():
    room = _room(1, *((A, number) for number in range(5)))
    room.place_policies([])
    assert _ids(room.admit(10, 3)) == [0, 1]


def test_a_version_without_a_place_waits_until_the_oldest_running_one_is_done():
    room = _room(2, (A, 1), (B, 2), (C, 3))
    room.place_policies([])
    assert _ids(room.admit(10, 1000)) == [1, 2]
    room.add(A, _request(4))
    room.add(B, _request(5))
    room.place_policies([A, B])
    # A is to be replaced by C, so it admits no new request; B goes on.
    assert _ids(room.admit(10, 1000)) == [5]
    room.place_policies([B])
    assert _ids(room.admit(10, 1000)) == [3]
    room.place_policies([])
    assert _ids(room.admit(10, 1000)) == [4]


def test_a_load_is_answered_once_its_version_is_resident():
    room = _room(1, (A, 1))
    room.add_load(B, 2)
    assert room.place_policies([]) == []
    room.admit(1, 1000)
    assert [(a.id, a.completion, a.error) for a in room.place_policies([])] == [(2, None, None)]
    assert not room.has_work


def test_the_next_load_does_not_replace_a_version_just_loaded_ahead():
    places = Places(2)
    room = WaitingRoom(places)
    for ticket, key in enumerate((A, B, A, C)):
        room.add_load(key, ticket)
        assert [answer.id for answer in room.place_policies([])] == [ticket]
    assert places.resident == (A, C)


def test_a_version_that_does_not_load_ends_only_the_requests_for_it():
    room = WaitingRoom(Places(2, broken=[A]))
    for key, number in ((A, 1), (B, 2), (A, 3)):
        room.add(key, _request(number))
    room.add_load(A, 4)
    ended = room.place_policies([])
    assert [answer.id for answer in ended] == [1, 3, 4]
    for answer in ended:
        with pytest.raises(EngineError, match="a is broken"):
            raise answer.error or AssertionError
    assert _ids(room.admit(10, 1000)) == [2]


def test_cancelled_requests_and_loads_are_forgotten():
    room = _room(2, (A, 1), (A, 2), (B, 3))
    room.add_load(C, 4)
    room.cancel({1, 3, 4})
    assert room.place_policies([]) == []
    assert _ids(room.admit(10, 1000)) == [2]
    assert not room.has_work
    room.add(A, _request(5))
    room.add_load(B, 6)
    assert room.has_work
    room.cancel({5, 6})
    assert not room.has_work


def test_a_closed_room_takes_and_forgets_requests_and_admits_none():
    room = _room(1, (A, 1), (A, 4))
    room.closed = True
    room.add(A, _request(2))
    room.add_load(B, 3)
    room.cancel({4})
    assert not room.has_work
    assert room.place_policies([]) == []
    assert room.admit(9, 1000) == []
    assert len(room) == 2
    room.closed = False
    assert room.has_work
    room.place_policies([])
    assert _ids(room.admit(9, 1000)) == [1, 2]
