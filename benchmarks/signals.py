"""Which signals a run gives for causes that are planted, and how often a healthy run gives one.

    python benchmarks/signals.py [--only CAUSE …] [--healthy SEEDS] [--folder DIR]

With ``--only`` and without healthy runs the other rows of the results stay as they are.

Each planted cause is a run of ``rlforge train`` that can learn nothing: settings, or a plug-in of
``benchmarks/planted.py``. It must be named by one of the signals that are expected, at an update no
later than the one given. Healthy are shipped experiments as they stand, shortened; the figures of
their updates are kept in ``tests/record/healthy.json.xz``, and a test judges them again.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from common import RESULTS, record
from families import tiny, tokenizer

from rlforge.config.plugins import SIGNALS
from rlforge.record.files import RunPaths, read_json, read_jsonl
from rlforge.record.signals import Signal
from rlforge.system.values import from_json

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "tests/record/healthy.json.xz"
SHORT = ("eval.every=1000", "eval.games=8", "eval.final_games=8", "learner.batch_size=128")
TICTACTOE = ("+experiment=tictactoe_mirror", *SHORT, "learner.total_updates=3")
#: A random language model, which reads all prompts and knows no form.
WORDS = (
    *("+experiment=tictactoe_mirror", *SHORT, "learner.total_updates=3", "model=hf"),
    *("model.name={model}", "engine.max_tokens=8", "engine.max_model_len=1024"),
    *("eval.opponents=[]", "learner.batch_size=32"),
)
GROUPS = ("algorithm=grpo", "buffer=episode", "rewards=none", "algorithm.group_size=2")
#: A player that never wins against it, and a policy that sits at one seat alone.
LOST = ("pool=fixed", "pool.fixed_opponents=[minimax]", "policies={main: {seats: [1]}}")


class Cause(NamedTuple):
    overrides: tuple[str, ...]
    expected: tuple[str, ...]
    update: int


CAUSES = {
    "turns": Cause(
        (*TICTACTOE, "env.train=[{id: TicTacToe-v0-train, max_turns: 2}]"), ("turn_limit",), 3
    ),
    "groups": Cause(
        (*TICTACTOE, *GROUPS, "env.train=[{id: TicTacToe-v0-train, max_turns: 1}]"),
        ("no_advantage",),
        3,
    ),
    "context": Cause(
        (*WORDS, "env.train=[{id: ThreePlayerIPD-v0-train, num_players: 3, max_turns: 20}]"),
        ("context_limit",),
        3,
    ),
    "cut answers": Cause((*WORDS, "model.prompt_template=qwen3-reasoning"), ("cut_answers",), 3),
    "rate x 1e-3": Cause(
        (*TICTACTOE, "learner.learning_rate=2e-6", "learner.total_updates=20"), ("not_moved",), 20
    ),
    "rate x 1e3": Cause((*TICTACTOE, "learner.learning_rate=2"), ("moved_far", "nan_steps"), 3),
    "template of another model": Cause(
        (*WORDS, "model.prompt_template=gemma3-zs"), ("format", "illegal_moves"), 3
    ),
    "temperature 50": Cause((*TICTACTOE, "engine.temperature=50"), ("high_entropy",), 3),
    "temperature 0.01": Cause((*TICTACTOE, "engine.temperature=0.01"), ("low_entropy",), 3),
    "reward with its sign turned": Cause(
        (
            *TICTACTOE,
            *("eval.every=5", "eval.games=100", "eval.final_games=100"),
            *("learner.total_updates=15", "rewards.final=[{name: 'planted:Turned'}]"),
        ),
        ("below_start",),
        15,
    ),
    "opponents that win, one seat": Cause((*TICTACTOE, *LOST), ("equal_rewards", "one_seat"), 3),
    "engine that answers a few a second": Cause(
        (*TICTACTOE, "learner.batch_size=32", "engine.name=planted:slow"), ("waiting",), 3
    ),
    "log-probs shifted by 0.05": Cause(
        (*TICTACTOE, "engine.name=planted:shifted"), ("logprob_gap",), 1
    ),
    "weights NaN at update 2": Cause(
        (*TICTACTOE, "algorithm=planted:NanWeights"), ("nan_steps",), 3
    ),
    # Games are cut before the policy's seat has a turn: the run never gets a batch.
    "no turn of the policy": Cause(
        (
            *TICTACTOE,
            *("pool=fixed", "pool.fixed_opponents=[random_legal]"),
            *("policies={main: {seats: [1]}}", "on_no_signal=stop"),
            "env.train=[{id: TicTacToe-v0-train, max_turns: 1}]",
        ),
        ("no_batch",),
        0,
    ),
}
#: Experiment -> updates.
HEALTHY = {
    "tictactoe_mirror": 40,
    "kuhn_grpo": 40,
    "simpletak_mirror": 30,
    "simpletak_lagged": 20,
    "simpletak_pool": 20,
    "kuhn3_nash": 20,
}


def run(overrides: tuple[str, ...], folder: Path) -> tuple[int, str]:
    """Exit code and output of ``rlforge train`` in ``folder``."""
    model = folder.parent / "model"
    if any("{model}" in word for word in overrides) and not model.exists():
        words = tokenizer()
        words.save_pretrained(model)
        tiny("qwen3", len(words)).save_pretrained(model)
    filled = [word.format(model=model) if "{model}" in word else word for word in overrides]
    command = [sys.executable, "-m", "rlforge", "train", *filled, f"run_dir={folder}"]
    path = f"{ROOT / 'benchmarks'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ended = subprocess.run(
        [*command, "tracker.progress=plain", "tracker.report=false"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,
    )
    return ended.returncode, ended.stderr


def signals_of(folder: Path) -> list[Signal]:
    return from_json(list[Signal], read_json(RunPaths(root=folder).summary).get("signals", []))


def planted(name: str, cause: Cause, folder: Path) -> dict[str, Any]:
    """What a run with a cause said, and when."""
    output = "" if signals_of(folder) else run(cause.overrides, folder)[1]
    found = {one.name: one for one in signals_of(folder)}
    # A run that ends by its failure names the cause there.
    if "not finite" in output and (at := re.search(r"update (\d+): loss", output)):
        line = output.strip().splitlines()[-1]
        found["nan_steps"] = Signal(
            name="nan_steps", step=int(at[1]), text=line, mend="", weight="final"
        )
    named = [found[one] for one in cause.expected if one in found]
    first = min(named, key=lambda one: one.step, default=None)
    last = output.strip().splitlines()[-4:]
    print(f"{name}: {', '.join(f'{one} at {s.step}' for one, s in found.items()) or last}")
    return {
        "cause": name,
        "command": f"rlforge train {shlex.join(cause.overrides)}",
        "must be named": " or ".join(cause.expected),
        "by update": cause.update,
        "named": first.name if first else "nothing",
        "at update": first.step if first else None,
        "also": ", ".join(sorted(found.keys() - set(cause.expected))),
        "says": first.line if first else "; ".join(last),
    }


def healthy(experiment: str, seed: int, folder: Path) -> dict[str, Any]:
    """The figures of a shipped experiment that conditions read, and the signals it gave."""
    updates = HEALTHY[experiment]
    done = (folder / "summary.json").exists()
    code, output = (
        (0, "")
        if done
        else run(
            (
                f"+experiment={experiment}",
                f"seed={seed}",
                f"learner.total_updates={updates}",
                "eval.every=10",
                "eval.games=40",
                "eval.final_games=40",
            ),
            folder,
        )
    )
    if code:
        raise SystemExit(f"{experiment}, seed {seed}: {output[-2000:]}")
    read = {"step", "games", "failed_games", "samples", "samples_too_long", "skipped_no_signal"}
    for name in SIGNALS.own:
        read |= {figure.removeprefix("*/") for figure in SIGNALS.find(name).figures}
    paths = RunPaths(root=folder)
    rows = [
        {key: _short(figure) for key, figure in row.items() if key.rpartition("/")[2] in read}
        for row in read_jsonl(paths.metrics)
    ]
    found = [f"{one.name} at {one.step}" for one in signals_of(folder)]
    print(f"{experiment}, seed {seed}: {', '.join(found) or 'no signal'}")
    evals = [
        {key: one for key, one in each.items() if key != "time_s"}
        for each in read_jsonl(paths.evals)
    ]
    return {"experiment": experiment, "seed": seed, "rows": rows, "evals": evals, "found": found}


def _short(figure: float) -> float | None:
    return None if math.isnan(figure) else float(f"{figure:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Planted causes, and false alarms.")
    parser.add_argument("--only", nargs="+", choices=CAUSES, default=list(CAUSES))
    parser.add_argument("--healthy", type=int, default=5, help="seeds of each experiment")
    parser.add_argument("--folder", type=Path, help="keep the runs here; those there are not made")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        causes = [
            planted(name, CAUSES[name], folder / f"planted-{number}")
            for number, name in enumerate(CAUSES)
            if name in arguments.only
        ]
        kept = [
            healthy(experiment, seed, folder / f"{experiment}-{seed}")
            for experiment in HEALTHY
            for seed in range(arguments.healthy)
        ]
    late = missed(causes)
    alarms = [
        f"{run['experiment']}, seed {run['seed']}: {one}" for run in kept for one in run["found"]
    ]
    print(f"planted: {len(causes) - len(late)} of {len(causes)} named in time; missed: {late}")
    print(f"healthy: {len(alarms)} signals in {len(kept)} runs {alarms}")
    if arguments.healthy and arguments.only == list(CAUSES):
        KEPT.write_bytes(lzma.compress(json.dumps(kept).encode()))
        healthy_ones = {"healthy_runs": len(kept), "false_alarms": len(alarms), "alarms": alarms}
        record("signals", {**of_causes(causes), **healthy_ones})
    elif not arguments.healthy:
        before = read_json(RESULTS / "signals.json")
        old = [row for row in before["readings"] if row["cause"] not in arguments.only]
        record("signals", {**before, **of_causes([*old, *causes])})


def missed(causes: list[dict[str, Any]]) -> list[str]:
    """Causes that were named late, or never."""
    return [
        row["cause"]
        for row in causes
        if row["at update"] is None or row["at update"] > row["by update"]
    ]


def of_causes(causes: list[dict[str, Any]]) -> dict[str, Any]:
    """The part of the results on planted causes."""
    return {
        "planted": {
            row["cause"]: [
                f"{row['must be named']} by update {row['by update']}",
                f"is {row['named']} at update {row['at update']}",
                f"`{row['command']}`",
            ]
            for row in causes
        },
        "readings": causes,
        "named_in_time": len(causes) - len(missed(causes)),
        "causes": len(causes),
    }


if __name__ == "__main__":
    main()
