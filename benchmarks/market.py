"""Agent decisions a second in the market, scripted, on one core.

    python benchmarks/market.py [--ticks N] [--repeats N]

A decision is all of it: the agent's state as JSON, the trader's choice, checks and trade; the
market's own work (prices, news, resolutions, settling) is in the time, too. 100 traders are the
preset ``market-crowd``; the other sizes have the same shares of each kind. The repeats of all
sizes are interleaved. CPU time is reported too: it hardly depends on other load of the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time

from common import record, seconds, shown, spread

from rlforge.continuous.market.game import load_market
from rlforge.continuous.market.traders import Crowd
from rlforge.continuous.market.world import World

AGENTS = (10, 100, 500)


def decisions_per_s(agents: int, ticks: int, seed: int) -> tuple[float, float]:
    """Decisions a second by the clock, and by the processor's time."""
    preset = load_market("market-crowd")
    traders = {kind: count * agents // 100 for kind, count in preset.traders.items()}
    # What rounding left over is noise.
    traders["noise"] += agents - sum(traders.values())
    world = World(dataclasses.replace(preset, traders=traders), seed)
    crowd = Crowd(world, seed)
    made = settled = 0
    before = time.process_time()

    def work() -> None:
        nonlocal made, settled
        for _ in range(ticks):
            for choice in crowd.act():
                made += choice.receipt.accepted
            settled += len(world.tick())

    took = seconds(work)
    worked = time.process_time() - before
    # All were accepted, and all have settled: the last tick ends an episode.
    assert made == settled == agents * ticks
    assert sum(world.books.accounts().values()) == 0
    return made / took, made / worked


def main() -> None:
    parser = argparse.ArgumentParser(description="Agent decisions a second in the market.")
    parser.add_argument("--ticks", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    figures: dict[int, list[tuple[float, float]]] = {}
    for repeat in range(arguments.repeats + 1):
        for agents in AGENTS:
            speed = decisions_per_s(agents, arguments.ticks, repeat)
            if repeat:  # the first round warms up
                figures.setdefault(agents, []).append(speed)
    print(f"{'agents':>8}{'decisions/s':>30}{'per CPU second':>30}")
    rows = []
    for agents, speeds in figures.items():
        clock, cpu = (spread([s[i] for s in speeds], "per_s") for i in (0, 1))
        cells = f"{shown(clock, 'per_s', digits=0):>30}{shown(cpu, 'per_s', digits=0):>30}"
        print(f"{agents:>8}{cells}")
        rows.append({"agents": agents, "decisions": clock, "decisions_by_cpu_time": cpu})
    record("market", {"ticks": arguments.ticks, "cores_used": 1, "markets": rows})


if __name__ == "__main__":
    main()
