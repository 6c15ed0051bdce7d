"""Agent decisions a second in the market, scripted, on one core.

    python benchmarks/market.py [--ticks N] [--repeats N]

A decision is all of it: the agent's state as JSON, the trader's choice, checks and trade; the
market's own work (prices, news, resolutions, settling) is in the time, too. 100 traders are the
preset ``market-crowd``; the other sizes have the same shares of each kind. The repeats of all
sizes are interleaved.
"""

from __future__ import annotations

import argparse
import dataclasses
import os

from common import record, seconds, shown, spread

from rlforge.config.market import load_market
from rlforge.market.crowd import Crowd
from rlforge.market.world import World

AGENTS = (10, 100, 500)


def decisions_per_s(agents: int, ticks: int, seed: int) -> tuple[float, int]:
    """Decisions a second, and how many decisions settled."""
    preset = load_market("market-crowd")
    traders = {kind: count * agents // 100 for kind, count in preset.traders.items()}
    # What rounding left over is noise.
    traders["noise"] += agents - sum(traders.values())
    world = World(dataclasses.replace(preset, traders=traders), seed)
    crowd = Crowd(world, seed)
    made = settled = 0

    def work() -> None:
        nonlocal made, settled
        for _ in range(ticks):
            for choice in crowd.act():
                made += choice.receipt.accepted
            settled += len(world.tick())

    took = seconds(work)
    assert made == agents * ticks
    assert sum(world.accounts().values()) == 0
    return made / took, settled


def main() -> None:
    parser = argparse.ArgumentParser(description="Agent decisions a second in the market.")
    parser.add_argument("--ticks", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    figures: dict[int, list[float]] = {}
    settled: dict[int, int] = {}
    for repeat in range(arguments.repeats + 1):
        for agents in AGENTS:
            speed, settled[agents] = decisions_per_s(agents, arguments.ticks, repeat)
            if repeat:  # the first round warms up
                figures.setdefault(agents, []).append(speed)
    print(f"{'agents':>8}{'decisions/s':>30}")
    rows = []
    for agents, speeds in figures.items():
        speed = spread(speeds, "per_s")
        print(f"{agents:>8}{shown(speed, 'per_s', digits=0):>30}")
        rows.append({"agents": agents, "settled_last_repeat": settled[agents], "decisions": speed})
    record("market", {"ticks": arguments.ticks, "cores_used": 1, "markets": rows})


if __name__ == "__main__":
    main()
