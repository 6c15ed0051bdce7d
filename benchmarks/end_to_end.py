"""Whole training against TRL's GRPO trainer and a plain loop: turns played and learned a second.

    python benchmarks/end_to_end.py [--model M] [--repeats N] [--peers PYTHON] [--layers L …]

All train the same model against itself: the tiny one at SimpleTak, or SmolLM2 at TicTacToe after
some supervised fine-tuning on random play, since before it most games end with the first answer.
The games and prompts are the same (rlforge's, which are TextArena's), sampling, longest answer,
LoRA layers and rank, float32, every turn learned from once. An update takes the same number of
turns of finished games and makes one step of AdamW with the gradient of REINFORCE: the game's
reward less the mean of the batch. The learning rate is low, so that the games stay those of the
model that all begin with. Every run is a process of its own, and they take turns; the updates after
the first few are timed. CPU seconds over all processes of a run are reported next to wall time,
since on a shared machine Ray's processes give way to others and the peers' do not. Ratios of
earlier sittings stay in the results: on a machine that others use as well, one sitting says little.

``--layers`` trains the same tiny player made slower as well: layers that hand on what they get are
laid on top of its two, as in collector.py, so that its games are the same and each token costs
more.

What is not the same:

- rlforge is ``rlforge train`` of the experiment with that algorithm: engine, learner, collector,
  buffer, pool and tracker in processes of their own, playing and learning at the same time (SmolLM2
  by turns: ``hardware.alternate``), from turns one update old at most, with truncated importance
  weights. What it plays and then drops as too old is not counted. It rates, saves and publishes
  every version, and writes games, batches and metrics, as any run does; evaluations are left to the
  untimed start and end.
- The plain loop and TRL play and learn by turns in one process. As many games as rlforge has
  workers are under way, a new one in the place of each that ends: an update learns from turns of
  finished games, whose first ones can be some updates old, and nothing corrects for that. They save
  and write nothing. Both get the fastest of a few settings: threads, turns at a time.
- TRL plays in a ``rollout_func``; why, and its settings: ``benchmarks/pipelines/trl_grpo.py``.
- unstable-rl is absent: its actors need vLLM and a GPU each. Its learner is in learner.py.

``--peers`` names the interpreter of an environment with ``benchmarks/requirements-peers.txt``.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collector import deepen
from common import RESULTS, cpu_seconds, record, rows_so_far, shown, spread
from contenders import ABSENT
from pipelines.work import Work

from rlforge.config.compose import compose
from rlforge.models.load import load_model_config, load_tokenizer, resolve_model, stop_token_ids
from rlforge.models.shape import KNOWN
from rlforge.system.hardware import versions

HERE = Path(__file__).parent
RLFORGE = (sys.executable, "-m", "rlforge")
NAMES = {"rlforge": "rlforge", "plain_loop": "plain loop", "trl_grpo": "TRL GRPO"}
#: How many turns a peer may take at a time, as parts of an update.
PARTS = (2, 8)
#: Updates of a run that tries a setting; the first is not timed.
TRIAL = 3
#: Runs of each setting that is tried; the fastest counts, as other work only slows a run down.
TRIALS = 2
OVERRIDES = (
    "algorithm=reinforce",
    "algorithm.loss_aggregation=constant",
    "rewards=none",
    "rewards.sampling=[{name: normalize_by_env, z_score: false}]",
    "buffer=step",
    "learner.optimizer_steps=1",
    "learner.epochs=1",
    "learner.learning_rate=1e-4",
    "learner.schedule=constant",
    "learner.warmup_updates=0",
    "eval.every=0",
    "eval.games=2",
    "eval.final_games=2",
    "eval.opponents=[base]",
    "tracker.report=false",
    "tracker.progress=off",
)


@dataclass(frozen=True)
class Setting:
    """How a model is trained, unless the command says otherwise.

    warm_up: updates that are not timed, before the ``updates`` that are.
    """

    experiment: str
    turns: int
    games: int
    updates: int
    warm_up: int


SETTINGS = {
    "tiny": Setting("simpletak_mirror", turns=1536, games=192, updates=12, warm_up=4),
    "smollm2_135m": Setting("smollm2_tictactoe", turns=256, games=64, updates=3, warm_up=1),
}


@dataclass(frozen=True)
class Rate:
    """What a run did after its first updates, and what its games were like.

    turns_per_s, turns_per_cpu_s: learned from. dropped: share of turns that were played and then
    thrown away as too old.
    """

    turns_per_s: float
    turns_per_cpu_s: float
    answer_tokens_per_turn: float
    turns_per_game: float
    dropped: float
    versions: dict[str, str]


def overrides_for(work: Work) -> list[str]:
    """The command line of ``rlforge train`` for the same work."""
    return [
        *OVERRIDES,
        f"seed={work.seed}",
        f"learner.batch_size={work.turns}",
        f"learner.total_updates={work.updates}",
        f"buffer.max_size={2 * work.turns}",
        f"collector.num_train_workers={work.games}",
    ]


def make_work(more: Sequence[str], *, turns: int, games: int, updates: int) -> Work:
    """What the configuration, with ``more`` overrides, means for those that do not read it.

    more: the experiment among them.
    """
    config = compose([*OVERRIDES, *more]).config
    [env] = config.env.train
    depth = load_model_config(config.model).num_hidden_layers
    tokenizer = load_tokenizer(config.model)
    return Work(
        model=resolve_model(config.model),
        env_id=env.id,
        max_turns=env.max_turns,
        prompt_template=config.model.prompt_template,
        prompts={name: dataclasses.asdict(prompt) for name, prompt in config.prompts.items()},
        action_extraction=config.model.action_extraction,
        stop_token_ids=stop_token_ids(config.model, tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        max_tokens=config.engine.max_tokens,
        rank=config.model.lora.rank,
        alpha=config.model.lora.alpha,
        target_modules=tuple(KNOWN[0].linears),  # those of every Llama
        layers=tuple(range(depth - (config.model.lora.last_layers or depth), depth)),
        learning_rate=config.learner.learning_rate,
        grad_clip=config.learner.grad_clip,
        seed=config.seed,
        turns=turns,
        updates=updates,
        games=games,
        threads=os.cpu_count() or 1,
        turns_at_a_time=turns,
    )


def run_rlforge(work: Work, more: Sequence[str], warm_up: int) -> Rate:
    """One ``rlforge train``, read from its own metrics.jsonl."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir, log = Path(folder) / "run", Path(folder) / "output.txt"
        command = [*RLFORGE, "train", *overrides_for(work), *more, f"run_dir={run_dir}"]
        with log.open("w") as output:
            process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
        cpu = []
        for updates in (warm_up, work.updates):
            while len(rows := rows_so_far(run_dir)) < updates and process.poll() is None:
                time.sleep(0.02)
            cpu.append(cpu_seconds(process.pid))
        if process.wait() != 0 or len(rows) < work.updates:
            raise SystemExit(f"rlforge train failed:\n{log.read_text()[-2000:]}")
    first, last, timed = rows[warm_up - 1], rows[-1], rows[warm_up:]
    turns = sum(row["samples"] for row in timed)
    dropped = sum(row["dropped_stale"] for row in timed)
    return Rate(
        turns_per_s=turns / (last["time_s"] - first["time_s"]),
        turns_per_cpu_s=turns / (cpu[1] - cpu[0]),
        answer_tokens_per_turn=sum(row["trained_tokens"] for row in timed) / turns,
        turns_per_game=last[f"collection-{work.env_id}/game_length"],
        dropped=dropped / (turns + dropped),
        versions={name: versions()[name] for name in ("torch", "transformers", "rlforge")},
    )


def run_peer(name: str, python: str, work: Work, warm_up: int) -> Rate | None:
    """One run of a peer; None when its packages are not installed."""
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "work.json", Path(folder) / "log.txt"
        work.write(file)
        source = str(HERE.parent / "src")
        path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
        with log.open("w") as errors:
            done = subprocess.run(
                [python, "-m", "pipelines.worker", name, str(file)],
                cwd=HERE,
                env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        if done.returncode == ABSENT:
            return None
        if done.returncode != 0:
            raise SystemExit(f"{NAMES[name]} failed:\n{log.read_text()[-2000:]}")
    answer = json.loads(done.stdout)
    clock, cpu = (answer[key] for key in ("updates_done_s", "updates_done_cpu_s"))
    turns = work.turns * (work.updates - warm_up)
    return Rate(
        turns_per_s=turns / (clock[-1] - clock[warm_up - 1]),
        turns_per_cpu_s=turns / (cpu[-1] - cpu[warm_up - 1]),
        answer_tokens_per_turn=answer["answer_tokens"] / answer["turns"],
        turns_per_game=answer["turns"] / answer["games"],
        dropped=0.0,
        versions=answer["versions"],
    )


def tuned(name: str, python: str, work: Work) -> tuple[Work, dict[str, float]]:
    """The work with the fastest settings for a peer, and turns a second of all that were tried.

    First the threads, then how many turns at a time.
    """
    speeds: dict[str, float] = {}
    chosen = work
    for choices in (
        [{"threads": n, "turns_at_a_time": work.turns // PARTS[0]} for n in {1, work.threads}],
        [{"turns_at_a_time": work.turns // parts} for parts in PARTS[1:]],
    ):
        settings = [replace(chosen, **choice) for choice in choices]
        for setting, _ in itertools.product(settings, range(TRIALS)):
            rate = run_peer(name, python, replace(setting, updates=TRIAL), warm_up=1)
            if rate is None:
                return work, {}
            key = _setting(setting)
            speeds[key] = max(rate.turns_per_s, speeds.get(key, 0.0))
        tried = settings if chosen is work else [chosen, *settings]
        chosen = max(tried, key=lambda setting: speeds[_setting(setting)])
    return chosen, speeds


def _setting(work: Work) -> str:
    return f"threads {work.threads}, turns at a time {work.turns_at_a_time}"


def measure(
    work: Work, peers: str, repeats: int, more: Sequence[str], warm_up: int
) -> dict[str, dict[str, Any]]:
    """A row of figures for each that could run."""
    rates: dict[str, list[Rate]] = {"rlforge": []}
    works, tried = {}, {}
    pythons = {"plain_loop": sys.executable, "trl_grpo": peers}
    for name, python in pythons.items():
        works[name], tried[name] = tuned(name, python, work)
        if tried[name]:
            rates[name] = []
    for _, name in itertools.product(range(repeats), list(rates)):
        if name == "rlforge":
            rates[name].append(run_rlforge(work, more, warm_up))
        elif rate := run_peer(name, pythons[name], works[name], warm_up):
            rates[name].append(rate)
    check_versions({name: found[0].versions for name, found in rates.items()})
    rows: dict[str, dict[str, Any]] = {}
    for name, found in rates.items():
        rows[name] = {
            "turns": spread([rate.turns_per_s for rate in found], "per_s"),
            "turns_by_cpu_time": spread([rate.turns_per_cpu_s for rate in found], "per_s"),
            "answer_tokens_per_turn": found[-1].answer_tokens_per_turn,
            "turns_per_game": found[-1].turns_per_game,
            "dropped_share": found[-1].dropped,
            "versions": found[0].versions,
        }
        if name in tried:
            chosen = works[name]
            rows[name] |= {
                "threads": chosen.threads,
                "turns_at_a_time": chosen.turns_at_a_time,
                "turns_per_s_by_setting": tried[name],
            }
    return rows


def ratios(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """rlforge's turns for one of each peer, in the same CPU time and in the same time."""
    return {
        name: {
            "by_cpu_time": _ratio(rows, name, "turns_by_cpu_time"),
            "by_wall_time": _ratio(rows, name, "turns"),
        }
        for name in rows
        if name != "rlforge"
    }


def _ratio(rows: dict[str, dict[str, Any]], name: str, key: str) -> float:
    ours, theirs = (float(rows[each][key]["median_per_s"]) for each in ("rlforge", name))
    return ours / theirs


def check_versions(found: dict[str, dict[str, str]]) -> None:
    """End with a message where torch or transformers differ."""
    frameworks = {(row["torch"], row["transformers"]) for row in found.values()}
    if len(frameworks) > 1:
        raise SystemExit(
            f"torch and transformers differ between rlforge's environment and the peers' "
            f"({sorted(frameworks)}); install both with -c constraints.txt"
        )


def models(name: str, layers: Sequence[int], folder: Path) -> dict[str, Path]:
    """The models to train, made in ``folder``, by what they are called in the results."""
    if name != "tiny":
        return {name: fine_tuned(SETTINGS[name].experiment, folder)}
    source = resolve_model(compose(["model=tiny"]).config.model)
    made = {str(depth): folder / str(depth) for depth in layers}
    for depth, path in made.items():
        deepen(source, int(depth), path)
    return made


def fine_tuned(experiment: str, folder: Path) -> Path:
    """The model of ``experiment`` after an epoch over 1,500 answers of random legal play."""
    run_dir, merged = folder / "sft", folder / "merged"
    learned = ("data=random_legal", "data.games=300", "data.max_samples=1500", "data.epochs=1")
    learner = ("learner.batch_size=32", "learner.learning_rate=5e-4")
    commands = (
        ("sft", f"+experiment={experiment}", *learned, *learner, f"run_dir={run_dir}"),
        ("export", str(run_dir), str(merged), "--merge"),
    )
    for command in commands:
        done = subprocess.run([*RLFORGE, *command], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"rlforge {command[0]} failed:\n{done.stderr[-2000:]}")
    return merged


def show(rows: dict[str, dict[str, Any]]) -> None:
    """A table."""
    keys = ("turns_by_cpu_time", "turns")
    print(f"{'':12}{'turns/CPU s':>24}{'turns/s':>24}   rlforge is faster")
    for name, row in rows.items():
        cpu, clock = (_ratio(rows, name, key) for key in keys)
        cells = [shown(row[key], "per_s", digits=0) for key in keys]
        print(
            f"{NAMES[name]:12}{''.join(f'{cell:>24}' for cell in cells)}   "
            f"CPU {cpu:.2f} x, clock {clock:.2f} x; {row['turns_per_game']:.1f} turns a game, "
            f"{row['answer_tokens_per_turn']:.2f} tokens a turn, {row['dropped_share']:.1%} dropped"
        )
    if absent := [name for key, name in NAMES.items() if key not in rows]:
        print(f"absent: {', '.join(absent)}; to install: benchmarks/requirements-peers.txt")


def main() -> None:
    parser = argparse.ArgumentParser(description="Whole training, and peers'.")
    parser.add_argument("--model", choices=SETTINGS, default="tiny")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--turns", type=int, help="in one update")
    parser.add_argument("--games", type=int, help="under way at a time")
    parser.add_argument("--layers", type=int, nargs="+", default=[2], help="of the tiny model")
    parser.add_argument("--updates", type=int, help="that are timed, in each run")
    arguments = parser.parse_args()
    given = {key: getattr(arguments, key) for key in ("turns", "games", "updates")}
    setting = replace(
        SETTINGS[arguments.model], **{key: n for key, n in given.items() if n is not None}
    )
    if arguments.repeats < 2:
        parser.error("--repeats: a spread needs at least 2")
    if setting.updates < 1 or setting.games < 1 or min(arguments.layers) < 2:
        parser.error("--updates and --games: at least 1; --layers: at least 2")
    if setting.turns < 1 or setting.turns % max(PARTS):
        parser.error(f"--turns {setting.turns}: must be a multiple of {max(PARTS)}")
    if shutil.which(arguments.peers) is None:
        parser.error(f"--peers {arguments.peers}: no such interpreter")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in models(arguments.model, arguments.layers, Path(folder)).items():
            more = [f"+experiment={setting.experiment}", "model.kind=hf", f"model.name={path}"]
            work = make_work(
                more,
                turns=setting.turns,
                games=setting.games,
                updates=setting.warm_up + setting.updates,
            )
            rows = measure(work, arguments.peers, arguments.repeats, more, setting.warm_up)
            print(name if arguments.model == name else f"{name} layers")
            show(rows)
            results[name] = {"contenders": rows}
    figures = {
        "experiment": setting.experiment,
        "turns_per_update": setting.turns,
        "updates_per_run": setting.updates,
        "concurrent_games": setting.games,
        "longest_answer_tokens": work.max_tokens,
    }
    name = "end_to_end" if arguments.model == "tiny" else f"end_to_end_{arguments.model}"
    kept = RESULTS / f"{name}.json"
    earlier = json.loads(kept.read_text()).get("sittings", []) if kept.exists() else []
    now = {key: ratios(found["contenders"]) for key, found in results.items()}
    figures["sittings"] = [*earlier, {"date": time.strftime("%Y-%m-%d"), "ratios": now}]
    own = {"layers": results} if arguments.model == "tiny" else results[arguments.model]
    record(name, figures | own, script="end_to_end")


if __name__ == "__main__":
    main()
