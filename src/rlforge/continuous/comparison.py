"""Before and after: how the policy did in the same markets when the run began and when it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlforge.config.continuous import ContinuousConfig
from rlforge.continuous.assembly import Assembly
from rlforge.continuous.performance import POLICY
from rlforge.tracking.files import RunPaths, read_json, write_json
from rlforge.tracking.formatting import number, percent

#: The document's three numbers, and how each is written.
FIGURES: Mapping[str, Callable[[float | None], str]] = {
    "win_rate": lambda share: percent(share, 1),
    "avg_reward": lambda mean: number(mean, 3),
    "avg_pnl": lambda mean: number(mean, 3),
}


async def compare_once(
    when: str,
    assembly: Assembly,
    config: ContinuousConfig,
    paths: RunPaths,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Measure what serves now and keep it in ``comparison.json``, unless it is there already.

    when: ``before`` or ``after``. Returns all that is in the file: for each time the version that
    served, and ``players``: the policy and the scripted traders beside it.
    """
    if not config.continuous.compare_episodes:
        return {}
    content = read_json(paths.comparison)
    if when not in content:
        note(f"measuring the policy {when} training")
        players = await assembly.trials.compare(assembly.service.current.policy())
        content[when] = {
            "version": assembly.parts.deployments.serving(),
            "episodes": config.continuous.compare_episodes,
            "players": {name: one.to_json() for name, one in players.items()},
        }
        write_json(paths.comparison, content)
    return content


def in_words(comparison: Mapping[str, Any]) -> list[str]:
    """One line per figure of the policy, with its change."""
    if "before" not in comparison or "after" not in comparison:
        return []
    before, after = (comparison[when]["players"][POLICY] for when in ("before", "after"))
    return [
        f"{name}: {say(before[name])} before, {say(after[name])} after"
        for name, say in FIGURES.items()
    ]


def final_reward(comparison: Mapping[str, Any], otherwise: float) -> float:
    """Mean reward of the policy's decisions after training; ``otherwise`` where not compared."""
    if "after" not in comparison:
        return otherwise
    mean = comparison["after"]["players"][POLICY]["avg_reward"]
    return otherwise if mean is None else float(mean)
