"""Answers three questions about agents in one market: many against one, talk, strategies over time.

    python experiments/social_study.py --seeds 0 1 2 --set continuous.windows=6

Each condition is a run of market_social per seed, one after the other; conditions share seeds,
model and comparison markets, so that they are compared in pairs. Writes results.json, README.md and
a figure per question to experiments/market_social/; runs that are done in --runs are taken.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from recording import ROOT, Results, heading, rlforge, write_study
from scipy.stats import t as student
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlforge.config.model import ModelConfig
from rlforge.continuous.decisions.records import Decision
from rlforge.continuous.decisions.store import StoreReader
from rlforge.continuous.loop.performance import is_ours
from rlforge.models.load import resolve_model
from rlforge.show.report.charts import Chart, Series
from rlforge.show.report.plots import draw

NAME = "market_social"
CONDITIONS = {
    "silent": ["market.social=false"],
    "alone": ["market.social=false", "continuous.agents=1", "window.min_agents=1"],
    "talk": [],
    "shared": ["continuous.reader_share=1"],
}
#: All decisions are learned from: scores of decisions see no words that agents say.
EVERYWHERE = ["continuous.select_by=all"]
POSTS = ("action/policy/CREATE_POST", "action/policy/CREATE_COMMENT")
#: Answers of the vocabulary that buy shares of each side.
_BUYS = {side: [f" [{side}{size}]" for size in "123"] for side in ("yes", "no")}


def run_condition(condition: str, seed: int, overrides: list[str], runs: Path) -> dict[str, Any]:
    run_dir = runs / condition / f"seed-{seed}"
    chosen = [*EVERYWHERE, *overrides, *CONDITIONS[condition]]
    command = ["continuous", f"+experiment={NAME}", f"seed={seed}", *chosen]
    if not run_dir.exists():
        rlforge(command, run_dir)
    ended = json.loads((run_dir / "summary.json").read_text())
    if ended["status"] != "done":
        raise SystemExit(f"{run_dir} is {ended['status']}: finish or delete it")
    given = (run_dir / "command.txt").read_text()
    store = StoreReader(run_dir / "store")
    by_window = {
        window: [one for one in store.decisions(window) if is_ours(one) and one.observation]
        for window in store.window_ids()
    }
    rows = [json.loads(line) for line in (run_dir / "windows.jsonl").read_text().splitlines()]
    for row in rows:
        row |= spoken(by_window[row["window_id"]])
    trained = sorted((run_dir / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    asked = by_window[rows[-1]["window_id"]]
    return {
        "preset": condition,
        "seed": seed,
        # A run that was made before may have had other settings.
        "command": re.sub(r" (run_dir|tracker\.\w+)=\S+", "", given.strip()),
        "wall_s": round(ended["wall_time_s"], 1),
        "windows": rows,
        "comparison": json.loads((run_dir / "comparison.json").read_text()),
        "flips": {"first": flips(None, asked), "last": flips(trained[-1], asked)},
    }


def spoken(decisions: list[Decision]) -> dict[str, float | None]:
    """What a window's decisions say and follow.

    true_to_wire: share of the posts on a market of which the author had read wire, the best news
    account, that say what wire does. reads: share of the prompts with something that a followed
    agent said. heeded: share of the purchases after such a prompt that take the side that it says.
    wire_heeded: the same of wire.
    """
    found: dict[str, list[bool]] = {"true_to_wire": [], "heeded": [], "wire_heeded": []}
    reads = 0
    for one in decisions:
        words = dict(re.findall(r"\b(a|said)_(\w+)", one.observation))
        wire, said = words.get("a", "none"), words.get("said", "none")
        reads += said != "none"
        bought = str(one.action.get("outcome", "")).lower()
        if one.action["type"] == "CREATE_POST" and wire != "none" and not one.refused:
            found["true_to_wire"].append(one.action["content"].split()[2].lower() == wire)
        for name, told in (("heeded", said), ("wire_heeded", wire)):
            if bought and told != "none" and not one.refused:
                found[name].append(bought == told)
    shares = {name: statistics.fmean(each) if each else None for name, each in found.items()}
    return {**shares, "reads": reads / len(decisions)}


@torch.no_grad()
def flips(adapter: Path | None, decisions: list[Decision]) -> dict[str, list[float]]:
    """How far a version follows what it reads, by agent: an experiment on its prompts.

    In each prompt of a window the word of wire, and that of the followed agents, is set to yes and
    to no. The figure is the difference of P(buys yes) - P(buys no), halved: 1 follows always.
    """
    place = resolve_model(ModelConfig(kind="tiny_social"))
    tokenizer, model = (
        kind.from_pretrained(place) for kind in (AutoTokenizer, AutoModelForCausalLM)
    )
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    ids = {s: [tokenizer.encode(w, add_special_tokens=False)[0] for w in _BUYS[s]] for s in _BUYS}

    def leaning(texts: list[str]) -> torch.Tensor:
        tokens = torch.tensor([tokenizer.encode(t, add_special_tokens=False) for t in texts])
        chances = torch.softmax(model(tokens).logits[:, -1], dim=-1)
        return chances[:, ids["yes"]].sum(1) - chances[:, ids["no"]].sum(1)

    effects: dict[str, list[float]] = {}
    for word in ("a", "said"):
        asked = [one for one in decisions if f" {word}_" in one.observation]
        if not asked:
            continue
        set_to = {
            side: [re.sub(rf"\b{word}_\w+", f"{word}_{side}", one.observation) for one in asked]
            for side in ("yes", "no")
        }
        if word == "said":  # one that is followed has spoken
            set_to = {
                s: [t.replace("talk_none", "talk_known") for t in x] for s, x in set_to.items()
            }
        moved = (leaning(set_to["yes"]) - leaning(set_to["no"])) / 2
        own: dict[str, list[float]] = {}
        for one, effect in zip(asked, moved.tolist(), strict=True):
            own.setdefault(one.agent_id, []).append(effect)
        effects[word] = [statistics.fmean(each) for each in own.values()]
    return effects


# ---------------------------------------------------------------- figures of the page


def interval(numbers: list[float]) -> str:
    """Mean and Student's 95 % interval, and whether it spans 0."""
    mean = statistics.fmean(numbers)
    half = float(student.ppf(0.975, len(numbers) - 1)) * statistics.stdev(numbers)
    half /= len(numbers) ** 0.5
    chance = "" if abs(mean) > half else ", may be chance"
    return f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f}{chance})"


def after(result: dict[str, Any]) -> float:
    return float(result["comparison"]["after"]["players"]["policy"]["avg_reward"])


def talks(row: dict[str, Any]) -> float:
    return sum(row.get(key, 0.0) for key in POSTS)


def of(results: Results, condition: str) -> dict[int, dict[str, Any]]:
    return {one["seed"]: one for one in results if one["preset"] == condition}


def paired(results: Results, one: str, other: str, figure: Any = after) -> str:
    """The difference of two conditions over the seeds that both have."""
    mine, theirs = of(results, one), of(results, other)
    pairs = [figure(mine[seed]) - figure(theirs[seed]) for seed in mine.keys() & theirs.keys()]
    return interval(pairs) if len(pairs) > 1 else "–"


def curve(results: Results, condition: str, figure: Any) -> list[float | None]:
    """The mean over the seeds in each window."""
    runs = [one["windows"] for one in results if one["preset"] == condition]
    means = []
    for rows in zip(*runs, strict=True):
        known = [n for n in map(figure, rows) if n is not None]
        means.append(statistics.fmean(known) if known else None)
    return means


def chart(
    title: str, results: Results, figure: Any, *conditions: str, shares: bool = True
) -> Chart:
    """A colour per condition, a line per seed."""
    lines = [
        Series(
            name=one["preset"],
            xs=[row["window"] for row in one["windows"]],
            ys=[figure(row) for row in one["windows"]],
            colour=f"c{list(CONDITIONS).index(one['preset'])}",
        )
        for one in results
        if one["preset"] in conditions
    ]
    return Chart(title=title, series=lines, shares=shares, x_name="window")


def many_or_one(results: Results) -> str | None:
    key = {"reward": "policy_reward", "trades with a profit": "win_rate"}
    charts = [
        chart(title, results, lambda row, k=k: row[k], "silent", "alone", shares=k == "win_rate")
        for title, k in key.items()
    ]
    return draw(charts, columns=2)


def talk(results: Results) -> str | None:
    both = ("talk", "shared")
    charts = [
        chart("posts and comments per decision", results, talks, *both),
        chart("prompts with what followed agents say", results, lambda r: r["reads"], *both),
        chart("posts that say what wire does", results, lambda r: r["true_to_wire"], *both),
        chart("purchases as followed agents say", results, lambda r: r["heeded"], *both),
        chart(*("agents in teams", results, lambda r: r.get("social/team_agents")), *both),
        chart("reward", results, lambda r: r["policy_reward"], "silent", *both, shares=False),
    ]
    return draw(charts, columns=3)


def kinds(results: Results, condition: str) -> list[str]:
    prefix = "action/policy/"
    rows = [row for one in results if one["preset"] == condition for row in one["windows"]]
    return sorted({key for row in rows for key in row if key.startswith(prefix)})


def strategies(results: Results) -> str | None:
    charts = []
    for condition in CONDITIONS:
        lines = []
        for place, key in enumerate(kinds(results, condition)):
            ys = curve(results, condition, lambda row, k=key: row.get(k, 0.0))
            name = key.rpartition("/")[2].replace("_", " ").lower()
            xs = list(range(1, len(ys) + 1))
            lines.append(Series(name=name, xs=xs, ys=ys, colour=f"c{place % 8}"))
        charts.append(Chart(title=condition, series=lines, shares=True, x_name="window"))
    return draw(charts, columns=2, shared=True)


def table(titles: list[str], rows: list[list[str]]) -> list[str]:
    lines = [titles, ["---"] * len(titles), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines] + [""]


def change(results: Results, condition: str, figure: Any) -> list[str]:
    """First window, last window, and the paired change over the seeds."""
    runs = [one["windows"] for one in results if one["preset"] == condition]
    ends = [(figure(rows[0]), figure(rows[-1])) for rows in runs]
    known = [(a, b) for a, b in ends if a is not None and b is not None]
    if len(known) < 2:
        return ["–"] * 3
    means = [f"{statistics.fmean(each):.3f}" for each in zip(*known, strict=True)]
    return [*means, interval([b - a for a, b in known])]


def page(name: str, record: dict[str, Any]) -> str:
    """The study as a page."""
    results = record["results"]
    seeds = Counter(one["preset"] for one in results)
    rewards = [
        [c, *(f"{after(one):.3f}" for _, one in sorted(of(results, c).items()))] for c in seeds
    ]
    seed_titles = [f"seed {seed}" for seed in sorted({one["seed"] for one in results})]
    compared = (("silent", "alone"), ("talk", "silent"), ("shared", "silent"), ("shared", "talk"))
    asked = [
        [f"{mine} less {theirs}", paired(results, mine, theirs)]
        for mine, theirs in compared
        if mine in seeds and theirs in seeds
    ]
    heard = []
    for condition in seeds:
        for word, label in (("a", "wire"), ("said", "followed agents")):
            runs = [one["flips"] for one in of(results, condition).values()]
            if all(word in run["last"] for run in runs) and len(runs) > 1:
                ends = [[statistics.fmean(run[end][word]) for run in runs] for end in run_ends]
                heard.append([condition, label, *map(interval, ends)])
    figures = {
        "posts and comments per decision": talks,
        "posts that say what wire does": lambda row: row["true_to_wire"],
        "prompts with what followed agents say": lambda row: row["reads"],
        "purchases as followed agents say": lambda row: row["heeded"],
        "agents in teams": lambda row: row.get("social/team_agents"),
        "reward of teams above other agents": lambda row: row.get("social/team_advantage"),
        "agents on the same side": lambda row: row.get("social/agreement"),
    }
    said = [
        [label, condition, *change(results, condition, figure)]
        for label, figure in figures.items()
        for condition in ("talk", "shared")
        if condition in seeds
    ]
    moves = [
        [
            condition,
            key.rpartition("/")[2],
            *change(results, condition, lambda r, k=key: r.get(k, 0)),
        ]
        for condition in seeds
        for key in kinds(results, condition)
    ]
    ends = ["first window", "last window", "change"]
    return "\n".join(
        [
            *heading(name, record),
            ABOUT,
            "",
            "Mean reward after training, in markets that were not trained on:",
            "",
            *table(["condition", *seed_titles], rewards),
            *table(["paired by seed", "difference, 95 % interval"], asked),
            "## Many agents or one",
            "",
            "![reward and wins over windows](curves.svg)",
            "",
            "## Talk",
            "",
            *table(["figure", "condition", *ends], said),
            FLIPS,
            "",
            *table(["condition", "word of", "first version", "last version"], heard),
            "![talk over windows](talk.svg)",
            "",
            "## Strategies over time",
            "",
            *table(["condition", "action", *ends], moves),
            "![actions over windows, means over the seeds](strategies.svg)",
            "",
        ]
    )


run_ends = ("first", "last")
ABOUT = """Conditions, all in the market of `market_social`, of one model, seeds and test markets:

- `silent`: many agents without words for each other (`market.social=false`)
- `alone`: the same with one agent
- `talk`: many agents that talk; what they say earns what doing nothing does
- `shared`: the same, where a post or comment earns the mean reward of the trades that followers
  made after reading it (`continuous.reader_share=1`)

Intervals are Student's, over the seeds. results.json has the command of each run."""
FLIPS = """Does a reader follow what it reads? In each prompt of the last window the word of wire,
or that of the followed agents, is set to yes and to no; the figure is how far the purchase moves to
the side that it says (1: always)."""


def main() -> None:
    """Run, record, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--runs", type=Path, help="where the run directories go")
    arguments = parser.parse_args()
    runs = (arguments.runs or ROOT / "runs" / "studies" / NAME).absolute()
    words = ["python", "experiments/social_study.py", "--seeds", *map(str, arguments.seeds)]
    words += ["--set", *arguments.overrides] if arguments.overrides else []
    results: Results = []
    for seed in arguments.seeds:
        for condition in CONDITIONS:
            results.append(run_condition(condition, seed, arguments.overrides, runs))
            write_study(NAME, shlex.join(words), results, many_or_one, page)
            for file, plot in (("talk.svg", talk), ("strategies.svg", strategies)):
                (ROOT / "experiments" / NAME / file).write_text(plot(results) or "")


if __name__ == "__main__":
    main()
