"""Runs continuous presets over seeds and records what came out: table, curves, versions, command.

    python experiments/continuous_study.py market_continuous market_direct_reward --seeds 0 1 2

Every preset is run with every seed, each in a process of its own, --jobs of them at once (markets
of simulated time come to the same end under any load of the machine). Writes results.json,
README.md and curves.svg to experiments/NAME/; NAME is that of the first preset unless --name says
another. Several presets are compared in the tables and in the curves. Where other language models
trade (market.traders), a table shows all traders; the server that answers them runs meanwhile, and
--server says how it was started.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from recording import ROOT, heading, rlforge, write_study

from rlforge.show.report.charts import Chart, Series
from rlforge.show.report.plots import draw

FIGURES = {"policy_reward": "mean reward", "win_rate": "trades with a profit", "avg_pnl": "profit"}
#: More presets than these are drawn in panels of their own.
FEW = 3
#: Other agents whose rewards are drawn next to the policy's.
OTHERS = {"control": "control, mean", "scripted:momentum": "momentum, mean"}


def run_seed(
    preset: str, seed: int, overrides: list[str], runs: Path, keep: bool
) -> dict[str, Any]:
    """One run in a process of its own; what its run directory says.

    keep: a run that is done there already is taken as it is.
    """
    run_dir = runs / preset / f"seed-{seed}"
    command = ["rlforge", "continuous", f"+experiment={preset}", f"seed={seed}", *overrides]
    if not (keep and run_dir.exists()):
        rlforge(command[1:], run_dir)
    ended = json.loads((run_dir / "summary.json").read_text())
    if ended["status"] != "done":
        raise SystemExit(f"{run_dir} is {ended['status']}: finish or delete it")
    lines = (run_dir / "windows.jsonl").read_text().splitlines()
    updates = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    comparison, api = run_dir / "comparison.json", run_dir / "api.json"
    return {
        "preset": preset,
        "seed": seed,
        "command": shlex.join(command),
        "wall_s": round(ended["wall_time_s"], 1),
        "windows": [json.loads(line) for line in lines],
        # Losses without a clip have none.
        "clip_fractions": [row["clip_fraction"] for row in updates if "clip_fraction" in row],
        "comparison": json.loads(comparison.read_text()) if comparison.exists() else {},
        "api": json.loads(api.read_text())["players"] if api.exists() else [],
    }


def reached(result: dict[str, Any]) -> dict[str, Any]:
    """First and last window of one run, the difference to the control, and before and after."""
    first, last = result["windows"][0], result["windows"][-1]
    found = {
        "first": first["policy_reward"],
        "last": last["policy_reward"],
        "control": last["control_reward"],
        "difference": last["reward_difference"],
        "interval": (last["reward_difference_low"], last["reward_difference_high"]),
        "clipped": statistics.fmean(result["clip_fractions"]) if result["clip_fractions"] else None,
        "trained": sum(row["version"] is not None for row in result["windows"]),
        "deployed": sum(row["deployment_success"] is True for row in result["windows"]),
    }
    if "after" in result["comparison"]:
        for when in ("before", "after"):
            found[when] = result["comparison"][when]["players"]["policy"]
    return found


def table(results: list[dict[str, Any]]) -> str:
    """One row per preset and seed."""
    lines = [
        "| preset | seed | windows | trained | deployed | reward, first window | last window | "
        "control, last window | difference, 95 % interval | before → after: reward | win rate | "
        "profit of a trade | clip fraction, mean | wall s |",
        "|" + "---|" * 14,
    ]
    for result in results:
        found = reached(result)
        changes = ["–"] * 3
        if "after" in found:
            before, after = found["before"], found["after"]
            changes = [
                f"{_say(before[key])} → {_say(after[key])}"
                for key in ("avg_reward", "win_rate", "avg_pnl")
            ]
        lines.append(
            f"| {result['preset']} | {result['seed']} | {len(result['windows'])} | "
            f"{found['trained']} | {found['deployed']} | {_say(found['first'])} | "
            f"{_say(found['last'])} | {_say(found['control'])} | {_difference(found)} | "
            f"{' | '.join(changes)} | {_say(found['clipped'])} | "
            f"{result['wall_s']:.0f} |"
        )
    return "\n".join(lines)


def summary(results: list[dict[str, Any]]) -> str:
    """One row per preset: what its policies reached, median and range over the seeds."""
    lines = [
        "| preset | runs | windows trained | reward in the last window | above the control | "
        "after: reward | win rate | profit of a trade |",
        "|" + "---|" * 8,
    ]
    for preset in dict.fromkeys(result["preset"] for result in results):
        found = [reached(result) for result in results if result["preset"] == preset]
        compared = [one["after"] for one in found if "after" in one]
        cells = [
            f"{sum(one['trained'] for one in found)} of "
            f"{sum(len(r['windows']) for r in results if r['preset'] == preset)}",
            _spread([one["last"] for one in found]),
            _spread([one["difference"] for one in found]),
            *(
                _spread([one[key] for one in compared])
                for key in ("avg_reward", "win_rate", "avg_pnl")
            ),
        ]
        lines.append(f"| {preset} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def traded(results: list[dict[str, Any]]) -> list[str]:
    """Who traded, over all windows and runs; nothing where no language model but the run's did."""
    used = [player for result in results for player in result.get("api", [])]
    if not used:
        return []
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in (row for result in results for row in result["windows"]):
        for name, figures in row["players"].items():
            rows.setdefault(name, []).append(figures)
    lines = [
        "| who traded | decisions | refused | trades | with a profit | mean reward | profit of a "
        "trade |",
        "|" + "---|" * 7,
    ]
    for name, own in rows.items():
        decisions, refused = (sum(one[key] for one in own) for key in ("decisions", "refused"))
        cells = [str(decisions), f"{100 * refused / decisions:.0f} %"]
        cells.append(str(sum(one["trades"] for one in own)))
        for key, count in (
            ("win_rate", "trades"),
            ("avg_reward", "decisions"),
            ("avg_pnl", "trades"),
        ):
            known = [(one[key], one[count]) for one in own if one[key] is not None]
            total = sum(n for _, n in known)
            cells.append(_say(sum(x * n for x, n in known) / total if total else None))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    requests = sum(one["requests"] for one in used)
    said = (
        f"Of {requests} requests {sum(one['failed'] for one in used)} failed; a request took "
        f"{sum(one['seconds'] for one in used) / requests:.1f} s, "
        f"{sum(one['prompt_tokens'] for one in used) / requests:.0f} tokens of prompt and "
        f"{sum(one['answer_tokens'] for one in used) / requests:.0f} of answer."
    )
    return [*lines, "", said, ""]


def _spread(numbers: list[float | None]) -> str:
    there = [number for number in numbers if number is not None]
    if not there:
        return "–"
    return f"{statistics.median(there):.3f} ({min(there):.3f} to {max(there):.3f})"


def _difference(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    if found["difference"] is None or low is None:
        return "–"
    return f"{found['difference']:+.3f} ({low:+.3f} to {high:+.3f})"


def _say(number: float | None) -> str:
    return "–" if number is None else f"{number:.3f}"


def plot(results: list[dict[str, Any]]) -> str | None:
    """Curves over the windows; of many presets the reward alone, in a chart each."""
    presets = list(dict.fromkeys(result["preset"] for result in results))
    if len(presets) > FEW:
        return draw(_of_presets(results, presets), columns=4, shared=True)
    return draw(_of_figures(results, presets), columns=3)


def _of_presets(results: list[dict[str, Any]], presets: list[str]) -> list[Chart]:
    """A chart per preset: its seeds, and grey the mean of the first preset's."""
    xs, ys = _mean_curve([r for r in results if r["preset"] == presets[0]])
    reference = Series(name=f"{presets[0]}, mean", xs=xs, ys=ys, colour="draw")
    charts = []
    for preset in presets:
        lines = [reference] if preset != presets[0] else []
        for place, result in enumerate(r for r in results if r["preset"] == preset):
            lines.append(_line(result, "policy_reward", f"seed {result['seed']}", place))
        charts.append(Chart(title=preset, series=lines, x_name="window"))
    return charts


def _line(result: dict[str, Any], key: str, name: str, colour: int) -> Series:
    rows = result["windows"]
    xs, ys = [row["window"] for row in rows], [row[key] for row in rows]
    return Series(name=name, xs=xs, ys=ys, colour=f"c{colour}")


def _mean_curve(results: list[dict[str, Any]]) -> tuple[list[int], list[float]]:
    curves: dict[int, list[float]] = {}
    for row in (row for result in results for row in result["windows"]):
        if row["policy_reward"] is not None:
            curves.setdefault(row["window"], []).append(row["policy_reward"])
    return list(curves), [statistics.fmean(rewards) for rewards in curves.values()]


def _of_figures(results: list[dict[str, Any]], presets: list[str]) -> list[Chart]:
    """A chart per figure: a colour per preset, a line per seed, and other agents."""
    charts = []
    for key, title in FIGURES.items():
        lines = [
            _line(result, key, result["preset"], presets.index(result["preset"]))
            for result in results
        ]
        if key == "policy_reward":
            xs = [row["window"] for row in results[0]["windows"]]
            for (player, label), colour in zip(OTHERS.items(), ("draw", "c7"), strict=True):
                ys = [_mean_of(results, window, player) for window in xs]
                lines.append(Series(name=label, xs=xs, ys=ys, colour=colour))
        charts.append(Chart(title=title, series=lines, shares=key == "win_rate", x_name="window"))
    return charts


def _mean_of(results: list[dict[str, Any]], window: int, player: str) -> float | None:
    found = [
        row["players"][player]["avg_reward"]
        for result in results
        for row in result["windows"]
        if row["window"] == window and player in row["players"]
    ]
    found = [number for number in found if number is not None]
    return statistics.fmean(found) if found else None


def page(name: str, record: dict[str, Any]) -> str:
    """The study as a page."""
    results = record["results"]
    walls = [result["wall_s"] for result in results]
    verdicts = [reached(result) for result in results]
    compared = [verdict for verdict in verdicts if verdict["interval"][0] is not None]
    above = sum(verdict["difference"] > 0 for verdict in compared)
    surely = sum(verdict["interval"][0] > 0 for verdict in compared)
    control = [verdict["control"] for verdict in verdicts if verdict["control"] is not None]
    presets = {result["preset"] for result in results}
    several = [summary(results), ""] if len(presets) > 1 else []
    return "\n".join(
        [
            *heading(name, record),
            "Mean reward of the policy's decisions in the last window: above that of the control "
            f"agents, which keep the first version, in {above} of {len(compared)} runs with "
            f"several agents; the 95 % interval of the difference is above 0 in {surely}. Control: "
            f"{_spread(control)}. "
            f"Median wall time {statistics.median(walls):.0f} s (from {min(walls):.0f} to "
            f"{max(walls):.0f}).",
            "",
            *several,
            *traded(results),
            table(results),
            "",
            "![reward, wins and profit over windows](curves.svg)",
            "",
        ]
    )


def main() -> None:
    """Run, record, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("presets", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--server", help="command of the server that traders ask, for the record")
    parser.add_argument("--name", help="folder of the study below experiments/")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at once")
    parser.add_argument("--runs", type=Path, help="where the run directories go")
    parser.add_argument(
        "--keep", action="store_true", help="take runs that are done in --runs as they are"
    )
    arguments = parser.parse_args()
    name = arguments.name or arguments.presets[0]
    runs = (arguments.runs or ROOT / "runs" / "studies" / name).absolute()
    results: list[dict[str, Any]] = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running = [
            pool.submit(run_seed, preset, seed, arguments.overrides, runs, arguments.keep)
            for preset in arguments.presets
            for seed in arguments.seeds
        ]
        for run in running:
            results.append(run.result())
            # After every run, so that a study that is stopped keeps what it has.
            write_study(name, _command(arguments), results, plot, page)
    print(table(results))


def _command(arguments: argparse.Namespace) -> str:
    """What it takes to run the study again, wherever its runs are put."""
    words = ["python", "experiments/continuous_study.py", *arguments.presets, "--seeds"]
    words += map(str, arguments.seeds)
    words += ["--set", *arguments.overrides] if arguments.overrides else []
    words += ["--name", arguments.name] if arguments.name else []
    words += ["--server", arguments.server] if arguments.server else []
    words += ["--jobs", str(arguments.jobs)] if arguments.jobs > 1 else []
    return shlex.join(words)


if __name__ == "__main__":
    main()
