"""Machines with other cards than this one."""

import pytest

from rlforge.preflight import plan
from rlforge.preflight.fit import check_fit
from rlforge.system.hardware import Gpu, Machine


@pytest.fixture
def machine(monkeypatch):
    """Lets the examined machine have other cards than this one."""

    def has(*cards: Gpu) -> None:
        machine = Machine(cpus=8, gpus=len(cards), cards=cards)
        monkeypatch.setattr(plan, "detect", lambda: machine)

    return has


@pytest.fixture
def check_memory():
    """Raises ConfigError where a configuration does not fit the examined machine."""

    def check(config):
        machine = plan.detect()
        planned = plan.make_plan(config, machine)
        check_fit(plan.with_engines_that_start(config, machine), planned.hardware, machine.cards)

    return check
