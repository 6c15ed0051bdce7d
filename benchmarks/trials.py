"""How often a trial of versions decides wrongly, and how often it finds a true gain.

    python benchmarks/trials.py [--trials 1000] [--processes 2]

Agents of a market decide once a tick; a share of them, which grows as in `deployment=ab_test`,
gets the new version. A reward is the sum of a level that drifts from episode to episode, of what
an agent has in common with itself (within an episode, or for ever), and of luck; its standard
deviation without drift is 0.35, that of rewards in the market. ``gain``: what the new version
adds. A trial ends as `deployment.ab` says.
"""

from __future__ import annotations

import argparse
import statistics
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from common import record

from rlforge.continuous.config.serving import AbTestConfig
from rlforge.continuous.serving.records import Arm, Deployment
from rlforge.continuous.serving.trials import Trial

AGENTS, TICKS, SPREAD = 24, 24, 0.35

#: Name -> correlation within an agent, whether it lasts beyond an episode, sd of levels, gain.
SETTINGS: dict[str, tuple[float, bool, float, float]] = {
    "equal versions": (0.0, False, 0.0, 0.0),
    "equal, correlation 0.05": (0.05, False, 0.0, 0.0),
    "equal, lasting correlation 0.05": (0.05, True, 0.0, 0.0),
    "equal, drift 0.12": (0.0, False, 0.12, 0.0),
    "equal, correlation 0.05, drift 0.12": (0.05, False, 0.12, 0.0),
    "gain 0.03, correlation 0.01, drift 0.06": (0.01, False, 0.06, 0.03),
    "gain 0.03, correlation 0.05, drift 0.12": (0.05, False, 0.12, 0.03),
}


def run(setting: tuple[float, bool, float, float], seed: int) -> tuple[str, int]:
    """One trial: ``promote``, ``roll_back`` or ``undecided``, and outcomes of the new version."""
    correlation, lasting, drift, gain = setting
    draw = np.random.default_rng(seed)
    config = AbTestConfig()
    deployment = Deployment(
        number=seed, phase="trial", strategy="ab_test", source=f"step-{seed}", updates=seed
    )
    trial, episode = Trial(deployment, config), 0
    own = draw.normal(0, SPREAD * correlation**0.5, size=AGENTS)
    share: float = -1.0
    arms: list[Arm] = []
    while trial.ending is None:
        if not lasting:
            own = draw.normal(0, SPREAD * correlation**0.5, size=AGENTS)
        level = draw.normal(0, drift)
        luck = draw.normal(0, SPREAD * (1 - correlation) ** 0.5, size=(TICKS, AGENTS))
        for rewards in (level + own + luck).tolist():
            if trial.share != share:
                share, arms = trial.share, [trial.arm(f"agent-{n}") for n in range(AGENTS)]
            for agent, (arm, reward) in enumerate(zip(arms, rewards, strict=True)):
                if trial.ending is not None:
                    break
                trial.add(
                    arm,
                    reward + gain * (arm == "new"),
                    # The market cannot tell lasting ones, and the service of HTTP answers can.
                    cluster=f"agent-{agent}" if lasting else f"agent-{agent}/{episode}",
                    stage=str(episode),
                )
        episode += 1
    decided = trial.test.verdict is not None
    return (trial.ending if decided else "undecided"), trial.test.arms["new"].count


def measured(name: str, trials: int, pool: ProcessPoolExecutor) -> dict[str, Any]:
    """The shares of endings in ``trials`` trials of a setting, and how long they took."""
    found = list(pool.map(partial(run, SETTINGS[name]), range(trials), chunksize=10))
    endings = [ending for ending, _ in found]
    return {
        "trials": trials,
        **{f"{end}_share": endings.count(end) / trials for end in ("promote", "roll_back")},
        "decided_share": 1 - endings.count("undecided") / trials,
        "outcomes_of_the_new_version": statistics.median(count for _, count in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.processes) as pool:
        rows = {}
        for name in SETTINGS:
            rows[name] = measured(name, arguments.trials, pool)
            print(name, rows[name], flush=True)
    record("trials", {"settings": rows})


if __name__ == "__main__":
    main()
