"""Runs an experiment over seeds and records what came out: table, curves, versions, command.

    python experiments/study.py simpletak_mirror --seeds 0 1 2 [--nash-conv] [KEY=VALUE ...]
    python experiments/study.py smollm2_tictactoe --sft data=random_legal --sft data.keep=wins
    python experiments/study.py simpletak_mirror --seeds 3 4 --add
    python experiments/study.py simpletak_pool --exploiter 41

With ``--add`` the seeds on record stay. With ``--exploiter`` a new adapter is trained for so many
updates against the last version, and another against the averaged weights where there are any. With
``--sft`` training starts from the adapter of `rlforge sft` with these overrides. Every seed starts
with an empty model cache, so that the wall time holds all that a newcomer waits for: making the
tiny model or unpacking SmolLM2, fine-tuning, training, evaluating. Writes results.json, README.md
and curves.svg to experiments/NAME/.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recording import ROOT, heading, recorded, rlforge, write_study

from rlforge.config.roots import read_run
from rlforge.config.schema import RunConfig
from rlforge.lab.exact.exploit import exploit_run
from rlforge.lab.exact.tree import ExactGame
from rlforge.record.results import ExactResult
from rlforge.show.report.charts import COLOURS, Chart, Series
from rlforge.show.report.plots import draw

#: Points of a curve of NashConv after the start.
CURVE = 16


def run_seed(
    experiment: str, seed: int, overrides: list[str], warm: list[str], folder: Path
) -> dict[str, Any]:
    """Train with one seed; what its run directory says, and wall time.

    warm: overrides of the supervised fine-tuning that comes first; empty: none.
    """
    run_dir, warm_dir = folder / f"seed-{seed}", folder / f"sft-{seed}"
    cache = folder / f"cache-{seed}"
    common = [f"+experiment={experiment}", f"seed={seed}"]
    sft, train = ["sft", *common, *warm], ["train", *common, *overrides]
    fine_tuned_s, start = 0.0, []
    if warm:
        fine_tuned_s = rlforge(sft, warm_dir, cache)
        start = [f"learner.initial_adapter={warm_dir}"]
    wall_s = fine_tuned_s + rlforge([*train, *start], run_dir, cache)
    lines = (run_dir / "evals.jsonl").read_text().splitlines()
    return {
        "seed": seed,
        "commands": [
            shlex.join(["rlforge", *command]) for command in ([sft, train] if warm else [train])
        ],
        "wall_s": round(wall_s, 1),
        "fine_tuned_s": round(fine_tuned_s, 1),
        "evals": [json.loads(line) for line in lines],
        "summary": json.loads((run_dir / "summary.json").read_text()),
        "learner": _learner_figures(run_dir),
    }


def _learner_figures(run_dir: Path) -> dict[str, float]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    gaps = [row["logprob_gap_mean"] for row in rows if row.get("logprob_gap_mean") is not None]
    most = [row["logprob_gap_max"] for row in rows if row.get("logprob_gap_max") is not None]
    return {
        "updates": len(rows),
        "samples_seen": rows[-1]["samples_seen"],
        "logprob_gap_mean": max(gaps, default=float("nan")),
        "logprob_gap_max": max(most, default=float("nan")),
        "illegal_answers": max(
            (rows[-1][key] for key in rows[-1] if key.endswith("/invalid_rate")),
            default=float("nan"),
        ),
    }


def nash_conv(run_dir: Path) -> dict[str, Any]:
    """Exact NashConv of versions spaced over the run, of their averages where it keeps them.

    Also that of the uniform policy, and at the end what the policy is worth to the first seat and
    the probability of illegal answers.
    """
    config = read_run(run_dir, RunConfig)
    last = config.learner.total_updates
    steps = sorted({round(last * part / CURVE) for part in range(CURVE + 1)})
    own = list(exploit_run(run_dir, [f"step-{step}" for step in steps]))
    averages: list[ExactResult] = []
    if config.learner.average != "off":
        averages = list(exploit_run(run_dir, [f"step-{step}-average" for step in steps[1:]]))
    game = ExactGame(own[0].env_id)
    uniform = {
        decision.key: dict.fromkeys(actions, 1 / len(actions))
        for decision in game.decisions
        if (actions := decision.view.legal_actions)
    }
    return {
        "uniform": game.exploitability(uniform).nash_conv,
        "own": [(one.step, one.nash_conv) for one in own],
        "average": [(one.step, one.nash_conv) for one in averages],
        "illegal": (averages or own)[-1].illegal,
        "value": (averages or own)[-1].values[0],
    }


def exploiters(run_dir: Path, updates: int, cache: Path) -> dict[str, dict[str, Any]]:
    """What a new adapter wins after ``updates``, and its games, by what it is trained against."""
    targets = {"last version": "latest"}
    if read_run(run_dir, RunConfig).learner.average != "off":
        targets["averaged weights"] = "average"
    found = {}
    for name, checkpoint in targets.items():
        file = run_dir.with_name(f"exploiter-{run_dir.name}-{checkpoint}.json")
        command = ["exploit", str(run_dir), "--learn", "--updates", str(updates)]
        rlforge([*command, "--checkpoint", checkpoint, "--json", str(file)], cache=cache)
        response = json.loads(file.read_text())
        summary = json.loads((Path(response["run_dir"]) / "summary.json").read_text())
        won = response["evaluations"][0]
        del won["opponent"]  # a path
        found[name] = {"updates": updates, "trained_games": summary["games"], **won}
    return found


def edges(evals: list[dict[str, Any]], opponent: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first and the last evaluation against ``opponent``."""
    rows = sorted((row for row in evals if row["opponent"] == opponent), key=lambda r: r["step"])
    return rows[0], rows[-1]


def opponents(results: list[dict[str, Any]]) -> list[str]:
    """All opponents, in order of appearance."""
    return list(dict.fromkeys(row["opponent"] for r in results for row in r["evals"]))


def shares(row: dict[str, Any]) -> str:
    """Win / draw / loss of an evaluation in per cent."""
    return " / ".join(f"{100 * row[key] / row['games']:.1f}" for key in ("wins", "draws", "losses"))


def table(results: list[dict[str, Any]]) -> str:
    """One row per seed and opponent: before and after, with the wall time."""
    lines = [
        "| seed | opponent | games | before: win / draw / loss % | after: win / draw / loss % | "
        "illegal answers % | wall s |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for opponent in opponents(results):
            first, last = edges(result["evals"], opponent)
            lines.append(
                f"| {result['seed']} | {opponent} | {last['games']} | {shares(first)} | "
                f"{shares(last)} | {100 * result['learner']['illegal_answers']:.1f} | "
                f"{result['wall_s']:.0f} |"
            )
    return "\n".join(lines)


def plot(results: list[dict[str, Any]]) -> str | None:
    """Win and loss rate against every opponent, a colour per seed; NashConv where it is known."""
    charts = []
    for name in opponents(results):
        lines = []
        for index, result in enumerate(results):
            rows = sorted(
                (row for row in result["evals"] if row["opponent"] == name),
                key=lambda row: row["step"],
            )
            for key in ("wins", "losses"):
                lines.append(
                    Series(
                        name=f"seed {result['seed']}",
                        xs=[row["step"] for row in rows],
                        ys=[row[key] / row["games"] for row in rows],
                        colour=f"c{index % COLOURS}",
                        faint=key == "losses",
                    )
                )
        charts.append(Chart(title=f"won against {name} (thin: lost)", series=lines, shares=True))
    if "nash_conv" in results[0]:
        charts.append(nash_conv_chart(results))
    return draw(charts, columns=3)


def nash_conv_chart(results: list[dict[str, Any]]) -> Chart:
    """NashConv of the versions, thin where their averages are known too."""
    averaged = bool(results[0]["nash_conv"]["average"])
    last, uniform = results[0]["nash_conv"]["own"][-1][0], results[0]["nash_conv"]["uniform"]
    lines = [Series(name="uniform policy", xs=[0, last], ys=[uniform] * 2, colour="draw")]
    for index, result in enumerate(results):
        for kind in ("own", "average") if averaged else ("own",):
            steps, values = zip(*result["nash_conv"][kind], strict=True)
            faint = averaged and kind == "own"
            name, colour = f"seed {result['seed']}", f"c{index % COLOURS}"
            lines.append(Series(name=name, xs=steps, ys=values, colour=colour, faint=faint))
    title = "NashConv" + (" (thin: before averaging)" if averaged else "")
    return Chart(title=title, series=lines, log=True)


def main() -> None:
    """Run, record, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--nash-conv", action="store_true", help="exact NashConv (OpenSpiel games)")
    parser.add_argument("--exploiter", type=int, metavar="UPDATES", help="train a best response")
    parser.add_argument("--runs", type=Path, help="where the run directories go")
    parser.add_argument(
        "--sft",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="fine-tune first, with these",
    )
    parser.add_argument("--add", action="store_true", help="keep the other seeds on record")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    runs = (arguments.runs or ROOT / "runs" / "studies" / arguments.experiment).absolute()
    runs.mkdir(parents=True, exist_ok=True)
    words = sys.argv[1:]
    if "--runs" in words:  # a folder of this machine
        at = words.index("--runs")
        words = words[:at] + words[at + 2 :]
    command = shlex.join(["python", "experiments/study.py", *words])
    kept = recorded(arguments.experiment) if arguments.add else []
    results = [result for result in kept if result["seed"] not in arguments.seeds]
    for seed in arguments.seeds:
        result = run_seed(arguments.experiment, seed, arguments.overrides, arguments.sft, runs)
        run_dir, cache = runs / f"seed-{seed}", runs / f"cache-{seed}"
        if arguments.nash_conv:
            os.environ["RLFORGE_CACHE"] = str(cache)
            result["nash_conv"] = nash_conv(run_dir)
        if arguments.exploiter:
            result["exploiters"] = exploiters(run_dir, arguments.exploiter, cache)
        results = sorted([*results, result], key=lambda each: each["seed"])
        # After every seed, so that a study that is stopped keeps what it has.
        write_study(arguments.experiment, command, results, plot, page)
    print(table(results))


def _of_which(results: list[dict[str, Any]]) -> str:
    if not results[0]["fine_tuned_s"]:
        return ""
    median = statistics.median(result["fine_tuned_s"] for result in results)
    return (
        f"; of this {median:.0f} s for supervised fine-tuning (`{results[0]['commands'][0]}`), "
        "which is over where the table begins"
    )


def _nash_conv_table(results: list[dict[str, Any]]) -> list[str]:
    uniform = results[0]["nash_conv"]["uniform"]
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "before": lambda found: f"{found['own'][0][1]:.3f}",
        "last version": lambda found: f"{found['own'][-1][1]:.3f}",
        "averaged weights": lambda found: f"{found['average'][-1][1]:.3f}",
        "probability of illegal answers": lambda found: f"{found['illegal']:.4f}",
        "worth to the first seat": lambda found: f"{found['value']:.3f}",
    }
    if not results[0]["nash_conv"]["average"]:
        del columns["averaged weights"]
    if not all("value" in result["nash_conv"] for result in results):  # of an older record
        del columns["worth to the first seat"]
    return [
        f"Exact NashConv (0 is a Nash equilibrium, the uniform policy has {uniform:.4f}):",
        "",
        f"| seed | {' | '.join(columns)} |",
        "|---|" + "---|" * len(columns),
        *(
            f"| {result['seed']} | "
            f"{' | '.join(cell(result['nash_conv']) for cell in columns.values())} |"
            for result in results
        ),
        "",
    ]


def _exploiter_table(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        "A new adapter, trained against one policy alone (`rlforge exploit --learn`):",
        "",
        "| seed | against | updates | its games, of those of the run | "
        "what it wins: win / draw / loss % |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        games = result["summary"]["games"]
        for name, found in result["exploiters"].items():
            lines.append(
                f"| {result['seed']} | {name} | {found['updates']} | {found['trained_games']} of "
                f"{games}, {found['trained_games'] / games:.0%} | {shares(found)} |"
            )
    return [*lines, ""]


def page(name: str, record: dict[str, Any]) -> str:
    """The study as a page."""
    results = record["results"]
    walls = [result["wall_s"] for result in results]
    lines = [
        *heading(name, record),
        f"Median wall time {statistics.median(walls):.0f} s (from {min(walls):.0f} to "
        f"{max(walls):.0f}), with the model made again for every seed{_of_which(results)}. Illegal "
        "answers: of the last games against itself.",
        "",
        table(results),
        "",
    ]
    if "nash_conv" in results[0]:
        lines += _nash_conv_table(results)
    if all("exploiters" in result for result in results):
        lines += _exploiter_table(results)
    lines += [
        "| seed | updates | samples | idle share | engine share | learner share | "
        "log-prob gap, mean | max |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        summary, learner = result["summary"], result["learner"]
        lines.append(
            f"| {result['seed']} | {learner['updates']} | {learner['samples_seen']} | "
            f"{summary['idle_share']:.3f} | {summary['engine_share']:.3f} | "
            f"{summary['learner_share']:.3f} | {learner['logprob_gap_mean']:.1e} | "
            f"{learner['logprob_gap_max']:.1e} |"
        )
    lines += ["", "![win and loss rates over updates](curves.svg)", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
