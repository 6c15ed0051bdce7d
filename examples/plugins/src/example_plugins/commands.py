"""A command: ``rlforge openings RUN``."""

from collections import Counter
from pathlib import Path

import typer

import rlforge


def openings(run_dir: Path, games: int = 1000) -> None:
    """Count the first actions of a run's games.

    **Example**

    ```bash
    rlforge openings runs/tictactoe_mirror/2026-01-01_12-00-00
    ```
    """
    firsts: Counter[str] = Counter()
    for _, game in zip(range(games), rlforge.load_run(run_dir).games(), strict=False):
        firsts.update(turn.action for turn in game.turns[:1])
    for action, times in firsts.most_common():
        typer.echo(f"{times:6d}  {action}")
