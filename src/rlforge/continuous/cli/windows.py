"""``rlforge continuous`` trains on windows of decisions; ``rlforge windows`` shows them."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Table
from rich.text import Text

from rlforge.cli.arguments import (
    ConfigDir,
    More,
    Multirun,
    Overrides,
    Public,
    Push,
    Resume,
    offered_runs,
    or_newest,
    say,
)
from rlforge.cli.runs import start
from rlforge.errors import ConfigError, DamagedError, RlforgeError, counted, nearest
from rlforge.show.console import Console

if TYPE_CHECKING:
    from rlforge.continuous.config.continuous import WindowConfig
    from rlforge.continuous.decisions.records import Decision, TrainingWindow
    from rlforge.continuous.decisions.store import StoreReader
    from rlforge.record.files import RunPaths

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Look at windows of decisions; export and import them as datasets.

    **Examples**

    ```bash
    rlforge windows list RUN
    rlforge windows show RUN 2024-11-13-10:00
    rlforge windows decisions RUN 2024-11-13-10:00 --worst
    rlforge windows export RUN market-data
    ```
    """,
)

#: Columns of a table whose ids stay whole; a narrower terminal breaks its lines.
_LEAST_WIDTH = 80

#: Characters of each part of a decision that are shown without ``--full``.
_SHOWN = 400

Store = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="STORE",
        help="Train on all windows of this store, or of this run, instead of new ones.",
        autocompletion=offered_runs,
    ),
]
StoreOrRun = Annotated[
    Path,
    typer.Argument(
        metavar="STORE_OR_RUN",
        help="A trajectory store, or the run it belongs to.",
        callback=or_newest,
        autocompletion=offered_runs,
    ),
]
WindowId = Annotated[
    str, typer.Argument(metavar="WINDOW_ID", help="Its id, such as 2024-11-13-10:00.")
]


def continuous(
    overrides: Overrides = None,
    store: Store = None,
    multirun: Multirun = False,
    resume: Resume = None,
    more: More = None,
    config_dir: ConfigDir = None,
) -> None:
    """Train on one window of decisions after another; the last line printed is the run directory.

    For each window: collect its decisions, score them, train on the good ones, and
    deploy the new version. Ctrl-C ends the run, in an update after it.

    **Examples**

    ```bash
    rlforge continuous +experiment=market_continuous
    rlforge continuous market_continuous continuous.windows=20 seed=1
    rlforge continuous +experiment=market_continuous --from STORE
    rlforge continuous +experiment=served_answers
    rlforge continuous -m market_continuous algorithm=window_grpo,window_ppo
    rlforge continuous --resume runs/market_continuous/2026-01-01_12-00-00
    rlforge continuous --resume latest --more 8
    ```
    """
    from rlforge.continuous.config.continuous import ContinuousConfig

    given = _with_store(overrides or [], store)
    start(ContinuousConfig, given, config_dir, resume, more, multirun=multirun)


@app.command("list")
def list_windows(
    where: StoreOrRun,
    last: Annotated[int, typer.Option(metavar="N", help="Only the newest N.", min=1)] = 20,
) -> None:
    """List windows; for those that are not ready, the reasons.

    **Example**

    ```bash
    rlforge windows list runs/market_continuous/2026-01-01_12-00-00
    ```
    """
    from rlforge.show.formatting import number, percent
    from rlforge.show.panels import Listing

    opened = _open(where)
    ids = opened.reader.window_ids()
    if not ids:
        typer.echo(f"{opened.reader.root} holds no decisions yet")
        return
    titles, now = ("window", "agents", "decisions", "known", "reward", "ready"), opened.now()
    table = Listing(*titles, whole=["window"], left=["ready"])
    for window_id in ids[-last:]:
        try:
            window = opened.window(window_id, now)
        except DamagedError as error:  # it must not hide the others
            table.add_row(window_id, "", "", "", "", Text(str(error), style="red"))
            continue
        table.add_row(
            window.id,
            f"{len(window.agents):,}",
            f"{len(window.decisions):,}",
            percent(window.known),
            number(window.avg_reward, 3),
            Text("yes", style="green") if window.ready else f"no: {'; '.join(window.reasons)}",
        )
    Console(width=max(Console().width, _LEAST_WIDTH)).print(table)
    if len(ids) > last:
        typer.echo(f"and {len(ids) - last:,} earlier windows; --last {len(ids)} shows all")


@app.command()
def show(where: StoreOrRun, window_id: WindowId) -> None:
    """Show one window: its agents, and why it is not ready to be trained on.

    **Example**

    ```bash
    rlforge windows show RUN 2024-11-13-10:00
    ```
    """
    from rlforge.continuous.decisions.windows import activity_of, counts
    from rlforge.show.formatting import NOTHING, number, percent
    from rlforge.show.panels import Listing

    opened = _open(where, [window_id])
    window = opened.window(window_id, opened.now())
    lines = [
        f"{window.id} UTC, {opened.config.minutes:g} minutes",
        f"{len(window.decisions):,} decisions of {len(window.agents):,} agents, "
        f"{percent(window.known)} with known outcome, average reward "
        f"{number(window.avg_reward, 3)}",
        "ready" if window.ready else "not ready:",
        *(f"  - {reason}" for reason in window.reasons),
        "",
    ]
    table = Listing("agent", "decisions", "actions", "known", "reward", "counts", left=["agent"])
    for agent in activity_of(window.decisions):
        table.add_row(
            agent.agent_id,
            f"{agent.decisions:,}",
            f"{agent.actions:,}",
            f"{agent.complete:,}",
            number(agent.reward_sum / agent.rewarded, 3) if agent.rewarded else NOTHING,
            "yes" if counts(agent, opened.config) else "no",
        )
    console = Console()
    console.print(Text("\n".join(lines), overflow="fold"))
    console.print(table)


@app.command()
def decisions(
    where: StoreOrRun,
    window_id: WindowId,
    agent: Annotated[
        str | None, typer.Option(metavar="AGENT", help="Only this agent's, such as agent-1.")
    ] = None,
    worst: Annotated[
        bool, typer.Option("--worst", help="Those with the lowest reward first.")
    ] = False,
    last: Annotated[int, typer.Option(metavar="N", help="At most N.", min=1)] = 10,
    full: Annotated[bool, typer.Option("--full", help="Whole prompts and answers.")] = False,
) -> None:
    """Show decisions of a window: what an agent saw, said and did, its reward and its score.

    Without `--agent` those of the model, the newest ones; where it took none, of all.

    **Examples**

    ```bash
    rlforge windows decisions RUN 2024-11-13-10:00 --worst
    rlforge windows decisions RUN 2024-11-13-10:00 --agent agent-1 --full
    ```
    """
    opened = _open(where, [window_id])
    found = opened.reader.decisions(window_id)
    agents = sorted({one.agent_id for one in found})
    if agent is not None and agent not in agents:
        raise ConfigError(
            f"no agent {agent} decided in {window_id}{nearest(agent, agents)}; there are "
            f"{', '.join(agents)}"
        )
    if agent is not None:
        wanted = [one for one in found if one.agent_id == agent]
    else:
        # Scripted traders are shown where the model took no decision.
        wanted = [one for one in found if one.completion and one.metadata.learns] or found
    chosen = wanted[-last:]
    if worst:
        known = [one for one in wanted if one.reward is not None]
        chosen = sorted(known, key=lambda one: one.reward or 0.0)[:last]
    scores = opened.scores(window_id)
    console = Console()
    for one in chosen:
        console.print(_decision_table(one, scores.get(one.id, {}), full=full))
    typer.echo(f"{len(chosen):,} of {len(wanted):,} decisions")


@app.command("export")
def export_windows(
    where: StoreOrRun,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder to make.")],
    window: Annotated[
        list[str] | None,
        typer.Option(metavar="WINDOW_ID", help="Repeatable: only these. Default: all."),
    ] = None,
    push: Push = None,
    public: Public = False,
) -> None:
    """Write decisions as a dataset that `datasets.load_dataset(FOLDER)` reads.

    Those of a run come with their scores and explanations, and the metrics of its windows.

    **Examples**

    ```bash
    rlforge windows export RUN market-data
    rlforge windows export RUN market-data --window 2024-11-13-10:00
    rlforge windows export RUN market-data --push ORG/NAME
    ```
    """
    from rlforge.continuous.decisions.dataset import export_dataset
    from rlforge.system.hub import check_push, push_folder

    opened = _open(where, window or ())
    # Files of two exports would be read as one.
    if folder.exists():
        raise ConfigError(f"{folder} exists already; name a folder that does not")
    # A wrong name must not cost an export.
    check_push(push, public=public)
    run_dir = None if opened.run is None else opened.run.root
    rows = export_dataset(opened.reader, folder, window or None, run_dir)
    # Scripts read the folder from the output, so the count goes to stderr.
    typer.echo(counted(rows, "decision"), err=True)
    if push is not None:
        about = counted(rows, "decision")
        push_folder(folder, push, about, public=public, say=say, kind="dataset")
    typer.echo(str(folder))


@app.command("import")
def import_windows(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A dataset: parquet files in it or its data/.")
    ],
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="A trajectory store; created if missing.")
    ],
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip bad rows instead of importing nothing.")
    ] = False,
) -> None:
    """Append the rows of a dataset to a store; bad rows are reported before any is written.

    **Example**

    ```bash
    rlforge windows import market-data stores/market
    ```
    """
    from rlforge.continuous.decisions.dataset import dataset_files, import_dataset
    from rlforge.continuous.decisions.store import TrajectoryStore

    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    # Else a wrong folder would leave an empty store.
    dataset_files(folder)
    with TrajectoryStore(store) as opened:
        done = import_dataset(folder, opened, skip_bad=skip_bad)
    for problem in done.bad:
        typer.echo(f"left out: {problem}", err=True)
    typer.echo(f"{counted(done.written, 'decision')} imported, {done.known:,} were there already")


def _with_store(overrides: list[str], where: Path | None) -> list[str]:
    if where is None:
        return overrides
    path = str(_open(where).reader.root.absolute()).replace("'", "\\'")
    # The number of windows is that of the store, unless the user says otherwise.
    given = ["continuous.windows=null", *overrides]
    return [*given, "continuous.source=store", f"store.path='{path}'"]


class _Opened(NamedTuple):
    """A store, the window settings of its run, or the defaults, and that run, if there is one."""

    reader: StoreReader
    config: WindowConfig
    run: RunPaths | None

    def window(self, window_id: str, now: float) -> TrainingWindow:
        """A window without prompts and answers, which are most of a store."""
        from rlforge.continuous.decisions.windows import Windows

        return Windows(self.reader, self.config).get(window_id, now, brief=True)

    def now(self) -> float:
        """The current time by the clock of the decisions."""
        from rlforge.continuous.decisions.windows import Windows
        from rlforge.record.files import read_jsonl

        if self.config.clock == "wall":
            return time.time()
        # A simulated clock stands at the newest decision, or at the end of the last window that
        # was trained on.
        window_id = self.reader.window_ids()[-1]
        moments = [one.timestamp for one in self.reader.decisions(window_id, brief=True)[-1:]]
        if trained := [] if self.run is None else read_jsonl(self.run.windows):
            ends = Windows(self.reader, self.config)
            moments.append(ends.due_at(trained[-1]["window_id"]))
        return max(moments)

    def scores(self, window_id: str) -> Mapping[str, Mapping[str, Any]]:
        """Score and explanation of each decision of the window that has them."""
        from rlforge.record.files import read_json

        found = {} if self.run is None else read_json(self.run.scores(window_id))
        scores: Mapping[str, Mapping[str, Any]] = found.get("scores", {})
        return scores


def _open(where: Path, window_ids: Collection[str] = ()) -> _Opened:
    """The store at ``where``; ConfigError for one of ``window_ids`` that it does not hold."""
    opened = _opened(where)
    known = opened.reader.window_ids() if window_ids else []
    for window_id in window_ids:
        if window_id not in known:
            raise ConfigError(
                f"no window {window_id} in {opened.reader.root}"
                f"{nearest(window_id, known) or '; see rlforge windows list'}"
            )
    return opened


def _opened(where: Path) -> _Opened:
    from rlforge.config.roots import read_run
    from rlforge.continuous.config.continuous import ContinuousConfig, WindowConfig
    from rlforge.continuous.decisions.store import EARLIER, FILE, StoreReader, store_folder
    from rlforge.record.files import RunPaths, open_run

    # For a store of an earlier release the reader's error says what to do.
    if any((where / name).is_file() for name in (FILE, EARLIER)):
        run = where.absolute().parent
        if not (run / "config.yaml").is_file():
            return _Opened(StoreReader(where), WindowConfig(), None)
        reader = StoreReader(where)
        return _Opened(reader, read_run(run, ContinuousConfig).window, RunPaths(root=run))
    try:
        open_run(where)
    except RlforgeError as error:
        # What is there may be meant for a store, whose name has no like among those of runs.
        store = f"; nor is it a trajectory store: it has no {FILE}" if where.is_dir() else ""
        raise ConfigError(f"{error}{store}") from error
    # A run may keep its store elsewhere.
    config = read_run(where, ContinuousConfig)
    folder = store_folder(config.store, where)
    if not folder.exists():
        raise ConfigError(f"{where} has written no decisions yet: there is no {folder}")
    return _Opened(StoreReader(folder), config.window, RunPaths(root=where))


def _decision_table(decision: Decision, scored: Mapping[str, Any], *, full: bool) -> Table:
    from rlforge.continuous.decisions.records import PROBLEM
    from rlforge.continuous.ruler.question import situation
    from rlforge.show.formatting import number
    from rlforge.show.panels import facts

    def text(content: str) -> str:
        lines = content.strip()
        return lines if full or len(lines) <= _SHOWN else f"{lines[: _SHOWN - 1].rstrip()}…"

    # Decisions of scripted traders have no version.
    version = decision.completion.policy_uid if decision.completion else ""
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(decision.timestamp))
    who = filter(None, (decision.agent_id, decision.metadata.provider, version))
    rows: list[tuple[str, str | Text]] = [(moment, Text(", ".join(who), style="bold"))]
    action = {key: part for key, part in decision.action.items() if key != PROBLEM}
    rows.append(("action", json.dumps(action, ensure_ascii=False)))
    if decision.refused:
        rows.append(("refused", text(str(decision.action[PROBLEM]))))
    reward = number(decision.reward, 3)
    if decision.result is not None and decision.result.investment:
        result = decision.result
        reward += f", profit {result.pnl:+.2f} on {result.investment:.2f}"
    rows.append(("reward", reward))
    if scored:
        why = f" {scored['explanation']}" if scored.get("explanation") else ""
        rows.append(("score", text(f"{number(scored.get('score'), 3)}{why}")))
    if full and decision.observation:
        rows.append(("prompt", decision.observation))
    else:
        rows.append(("saw", text(situation(decision))))
    if decision.metadata.reasoning:
        rows.append(("answer", text(decision.metadata.reasoning)))
    rows.append(("", ""))
    return facts(rows)
