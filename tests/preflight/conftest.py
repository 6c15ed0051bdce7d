"""Machines with other cards than this one."""

import pytest

from rlforge.preflight import doctor, engine, fit
from rlforge.preflight import machine as planned_machine
from rlforge.system.hardware import Gpu, Machine


@pytest.fixture
def machine(monkeypatch):
    """Lets the examined machine have other cards than this one."""

    def has(*cards: Gpu) -> None:
        for module in (doctor, engine, fit):
            monkeypatch.setattr(module, "gpus", lambda: cards)
        for module in (doctor, engine, fit, planned_machine):
            monkeypatch.setattr(module, "detect", lambda: Machine(cpus=8, gpus=len(cards)))

    return has
