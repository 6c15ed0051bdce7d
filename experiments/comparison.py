"""Compares algorithms over games and seeds at equal numbers of games or of generated tokens.

    python experiments/comparison.py equilibria --seeds 0 1 2 [--games Kuhn …] [--runs FOLDER]
    python experiments/comparison.py cycles
    python experiments/comparison.py endurance --seeds 0 1 2 3 4 5

The comparisons are those of COMPARISONS. Every arm plays every game with every seed, one run after
the other. An arm's score is that of its last measured version within the budget of the game: what
the arm that spent least has spent. Runs on record stay, others are added; results.json, README.md
and curves.svg in experiments/NAME/ are written after each.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recording import ROOT, Results, heading, recorded, rlforge, write_study
from study import nash_conv

from rlforge.config.roots import read_run
from rlforge.config.schema import RunConfig
from rlforge.lab.exact.exploit import exploit_run
from rlforge.show.report.charts import Chart, Series
from rlforge.show.report.plots import draw

Curve = list[tuple[int, float]]


@dataclass(frozen=True)
class Comparison:
    """games, arms: name and overrides. every: overrides of all runs. budget: the key of
    metrics.jsonl that is equal. measures: curves of a run over updates, by name; the first decides.
    warm: overrides of the supervised fine-tuning that runs of a game start from; empty: none.
    """

    title: str
    games: dict[str, list[str]]
    arms: dict[str, list[str]]
    every: list[str]
    budget: str
    measures: Callable[[Path], dict[str, Curve]]
    warm: tuple[str, ...] = ()


def exact(run_dir: Path) -> dict[str, Curve]:
    """NashConv of the averaged weights and of the versions themselves."""
    found = nash_conv(run_dir)
    return {"averaged weights": found["own"][:1] + found["average"], "versions": found["own"]}


def points(run_dir: Path) -> dict[str, Curve]:
    """Wins and half of the draws against a random player, as shares of the evaluation games."""
    rows = [json.loads(line) for line in (run_dir / "evals.jsonl").read_text().splitlines()]
    own = [row for row in rows if row["opponent"] == "random_legal"]
    curve = [(row["step"], (row["wins"] + row["draws"] / 2) / row["games"]) for row in own]
    return {"points": curve, "illegal": [(row["step"], row["invalid_rate"]) for row in own]}


def circles(run_dir: Path) -> dict[str, Curve]:
    """NashConv of the equilibrium between the saved versions, and of the newest of them."""
    *versions, mixture = exploit_run(run_dir, ["all"], mixture=True)
    newest = [(exact.step, exact.nash_conv) for exact in versions]
    return {
        "newest version": newest,
        "mixture of versions": [newest[0], (mixture.step, mixture.nash_conv)],
    }


def lasting(run_dir: Path) -> dict[str, Curve]:
    """NashConv where the run measures it, points elsewhere, and how far below its best a run is."""
    if read_run(run_dir, RunConfig).eval.exploitability:
        (name, curve), best = next(iter(exact(run_dir).items())), min
    else:
        (name, curve), best = next(iter(points(run_dir).items())), max
    scores = [score for _, score in curve]
    gaps = [abs(best(scores[: at + 1]) - score) for at, score in enumerate(scores)]
    return {
        name: curve,
        "worse than its best": [(s, gap) for (s, _), gap in zip(curve, gaps, strict=True)],
    }


_UNSAVED = ["collector.save_games=false"]
COMPARISONS = {
    "equilibria": Comparison(
        title="Exact NashConv (0 is a Nash equilibrium) at equal numbers of games",
        games={
            "Kuhn": ["+experiment=kuhn_nash", "learner.total_updates=160"],
            "Leduc": ["+experiment=leduc_nash", "learner.total_updates=120"],
            "liar's dice": [
                *("+experiment=kuhn_nash", "env=openspiel_liars_dice", "eval.opponents=null"),
                "learner.total_updates=160",
            ],
            "dark hex": ["+experiment=dark_hex_nash", "learner.total_updates=80"],
            "three-player Kuhn": ["+experiment=kuhn3_nash", "learner.total_updates=160"],
        },
        arms={"NashPG": [], "GRPO": ["algorithm=grpo", "algorithm.group_size=8"]},
        # What is measured comes from saved versions.
        every=["eval.every=100000", "eval.games=2", "eval.final_games=2", *_UNSAVED],
        budget="games",
        measures=exact,
    ),
    "cycles": Comparison(
        title="Exact NashConv (0: an equilibrium, 2: loses every game) at equal numbers of samples",
        games={"Blotto": ["+experiment=blotto_league"]},
        arms={
            "self-play": ["~policies.oracle", "pool=mirror", "learner.total_updates=130"],
            "league": [],
        },
        every=["eval.every=100000", "eval.games=2", "eval.final_games=2", *_UNSAVED],
        budget="samples_seen",
        measures=circles,
        warm=("data=random_legal", "data.epochs=4"),
    ),
    "endurance": Comparison(
        title="Kuhn: exact NashConv; TicTacToe: points against a random player; 1,024 updates",
        games={
            "Kuhn": ["+experiment=kuhn_nash", "eval.exploitability=true"],
            "TicTacToe": ["+experiment=tictactoe_nash", "eval.opponents=[random_legal]"],
        },
        arms={"sentinel": ["sentinel=repair"]},
        every=["learner.total_updates=1024", "eval.every=64", *_UNSAVED],
        budget="games",
        measures=lasting,
    ),
}


def run(name: str, game: str, arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """One run, and what it measured over what it spent."""
    comparison = COMPARISONS[name]
    settings = [*comparison.games[game], *comparison.arms[arm], *comparison.every, f"seed={seed}"]
    command = ["rlforge", "train", *settings]
    run_dir = folder / f"{game}-{arm}-{seed}".replace(" ", "_").replace("'", "")
    if comparison.warm:
        start = folder / f"{game}-start-{seed}"
        warm = ["sft", *comparison.games[game], *comparison.warm, f"seed={seed}"]
        if not start.exists():
            rlforge(warm, start)
        settings.append(f"learner.initial_adapter={start}")
    wall_s = rlforge(["train", *settings], run_dir)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [0, *(row["step"] for row in rows)]
    spent = [0, *(row[comparison.budget] for row in rows)]
    return {
        "game": game,
        "arm": arm,
        "seed": seed,
        "command": shlex.join(command),
        **({"start": shlex.join(["rlforge", *warm])} if comparison.warm else {}),
        "wall_s": round(wall_s, 1),
        "curves": {
            # A policy that begins anew is a version without an update.
            measure: [(spent[bisect(steps, step) - 1], score) for step, score in curve]
            for measure, curve in comparison.measures(run_dir).items()
        },
    }


def budgets(results: Results) -> dict[str, int]:
    """What the run of each game spent that spent least."""
    spent: dict[str, list[int]] = {}
    for result in results:
        most = max(curve[-1][0] for curve in result["curves"].values())
        spent.setdefault(result["game"], []).append(most)
    return {game: min(each) for game, each in spent.items()}


def score(curve: Curve, budget: int) -> float:
    """The last score within the budget, give or take an update."""
    return [value for spent, value in curve if spent <= 1.02 * budget][-1]


def table(comparison: Comparison, results: Results) -> list[str]:
    """A row for each game and arm: the mean over seeds of each measure, and the seeds.

    Games whose measures differ have tables of their own.
    """
    lines: list[str] = []
    above: list[str] = []
    for game, budget in budgets(results).items():
        own = [result for result in results if result["game"] == game]
        measures = list(own[0]["curves"])
        if measures != above:
            lines += [
                *([""] if lines else []),
                f"| game | {comparison.budget} | arm | {' | '.join(measures)} | "
                f"seeds, {measures[0]} | wall s |",
                "|---|---|---|" + "---|" * (len(measures) + 2),
            ]
            above = measures
        for arm in dict.fromkeys(result["arm"] for result in own):
            runs = [result for result in own if result["arm"] == arm]
            scores = [[score(one["curves"][each], budget) for one in runs] for each in measures]
            means = " | ".join(f"{statistics.fmean(each):.3f}" for each in scores)
            seeds = ", ".join(f"{each:.3f}" for each in scores[0])
            wall = statistics.median(one["wall_s"] for one in runs)
            lines.append(f"| {game} | {budget} | {arm} | {means} | {seeds} | {wall:.0f} |")
    return lines


def plot(comparison: Comparison, results: Results) -> str | None:
    """The first measure over what was spent: a chart per game, a colour per arm."""
    colours = {arm: f"c{place}" for place, arm in enumerate(comparison.arms)}
    charts = []
    for game in dict.fromkeys(result["game"] for result in results):
        own = [result for result in results if result["game"] == game]
        lines = []
        for result in own:
            xs, ys = zip(*next(iter(result["curves"].values())), strict=True)
            lines.append(Series(name=result["arm"], xs=xs, ys=ys, colour=colours[result["arm"]]))
        title = f"{game}: {next(iter(own[0]['curves']))}"
        charts.append(Chart(title=title, series=lines, x_name=comparison.budget))
    return draw(charts, columns=3)


def main() -> None:
    """Run what is not on record, and write after each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=COMPARISONS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--games", nargs="+", help="only these")
    parser.add_argument("--arms", nargs="+", help="only these")
    parser.add_argument("--runs", type=Path, help="where the run directories go")
    arguments = parser.parse_args()
    comparison = COMPARISONS[arguments.name]
    folder = arguments.runs or ROOT / "runs" / "studies" / arguments.name
    command = f"python experiments/comparison.py {arguments.name}"
    results = recorded(arguments.name)
    for game in arguments.games or comparison.games:
        for seed in arguments.seeds:
            for arm in arguments.arms or comparison.arms:
                key = {"game": game, "arm": arm, "seed": seed}
                if any(key.items() <= result.items() for result in results):
                    continue
                results.append(run(arguments.name, game, arm, seed, folder.absolute()))
                write_study(
                    arguments.name,
                    command,
                    results,
                    lambda found: plot(comparison, found),
                    lambda name, record: page(comparison, name, record),
                )
    print("\n".join(table(comparison, results)))


def page(comparison: Comparison, name: str, record: dict[str, Any]) -> str:
    """The comparison as a page."""
    lines = [
        *heading(name, record),
        f"{comparison.title}: of each run the last measured version within them, mean over seeds.",
        "",
        *table(comparison, record["results"]),
        "",
        "| game | arm | command, seed 0 |",
        "|---|---|---|",
        *(
            f"| {one['game']} | {one['arm']} | `{one['command']}`{_start(one)} |"
            for one in record["results"]
            if one["seed"] == 0
        ),
        "",
        "![scores over what was spent](curves.svg)",
        "",
    ]
    return "\n".join(lines)


def _start(result: dict[str, Any]) -> str:
    return f", from the adapter of `{result['start']}`" if "start" in result else ""


if __name__ == "__main__":
    main()
