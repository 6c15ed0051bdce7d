"""The batch of an update to be read: as a table, and a sample in full."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from rlforge.buffer.batches import READABLE, ShownSample
from rlforge.config.roots import read_any
from rlforge.errors import ConfigError, counted
from rlforge.kinds import kind_of
from rlforge.show.formatting import number as digits
from rlforge.show.panels import Listing, facts
from rlforge.system.values import to_json
from rlforge.types import value

WIDE = 110
"""Columns from which there is room for environments and the reward after each transform."""

#: Entries of ``Sample.info``.
_MARKS = (("well_formed", "has the form"), ("legal", "is legal"))

#: Most characters of an action in a table.
_ACTION = 24


@value
class ShownBatch:
    """The samples of one update, in the order of its file."""

    number: int
    samples: tuple[ShownSample, ...]

    def find(self, place: int) -> ShownSample:
        if not 0 <= place < len(self.samples):
            raise ConfigError(
                f"--sample {place}: batch {self.number} has samples 0 to {len(self.samples) - 1}"
            )
        return self.samples[place]


def find_batch(run_dir: Path, number: int | None = None) -> ShownBatch:
    """The batch of an update, by default the newest; ConfigError for none.

    Raises RunError for files of earlier versions, without texts.
    """
    config = read_any(run_dir)
    number, samples = kind_of(config).samples(config, run_dir, number)
    return ShownBatch(number=number, samples=tuple(samples))


def among(run_dir: Path, made: Sequence[int], number: int | None) -> int:
    """``number``, or the newest, of the updates that were ``made``; ConfigError for none."""
    if not made:
        raise ConfigError(f"{run_dir} has made no update yet")
    if number is not None and number not in made:
        raise ConfigError(f"{run_dir} has no batch {number}; it has {made[0]} to {made[-1]}")
    return made[-1] if number is None else number


def to_values(batch: ShownBatch, place: int | None = None) -> dict[str, Any]:
    """The batch, or its sample at ``place``, as JSON values."""
    chosen = [place] if place is not None else range(len(batch.samples))
    rows = []
    for index in chosen:
        shown = batch.find(index)
        texts = {name: getattr(shown, name) for name in READABLE}
        rows.append({"sample": index, **texts, **to_json(shown.sample)})
    return {"batch": batch.number, "samples": rows}


def batch_table(batch: ShownBatch, most: int, width: int) -> RenderableType:
    """The first ``most`` samples, a line each, below a summary; width: columns."""
    shown, wide = batch.samples[:most], width >= WIDE
    several = wide and len({one.sample.env_id for one in batch.samples}) > 1
    updated = batch.samples[0].advantage is not None
    table = Listing(
        *("", "game", *(["environment"] if several else []), "player", "turn", "action"),
        *(["tokens"] if wide else []),
        *(["rewards", "advantage", "version"] if updated else []),
        left=["environment", "action", "rewards"],
        whole=["game"],
    )
    table.columns[0].style = "dim"
    for index, one in enumerate(shown):
        sample = one.sample
        # An action may have several lines, a row has one.
        action = " ".join(sample.action.split())
        after = [sample.raw_reward, *sample.rewards.values()]
        if not wide:
            after[1:] = after[1:] and [sample.reward]
        table.add_row(
            str(index),
            sample.origin or "given",
            *([sample.env_id] if several else []),
            str(sample.player_id),
            str(sample.turn_index),
            action if len(action) <= _ACTION else f"{action[: _ACTION - 1]}…",
            *([str(len(sample.token_ids))] if wide else []),
            *([" → ".join(digits(reward, 3) for reward in after)] if updated else []),
            *([_signed(one.advantage), str(sample.policy_version)] if updated else []),
        )
    left = len(batch.samples) - len(shown)
    more = [Text(f"and {left:,} more; --rows {len(batch.samples)} shows all")] if left else []
    heading = Text("\n".join(_heading(batch, wide=wide)), style="dim", overflow="fold")
    return Group(heading, table, *more)


def sample_in_full(batch: ShownBatch, place: int) -> RenderableType:
    """Prompt, answer and weight of a sample."""
    shown = batch.find(place)
    sample = shown.sample
    lines = [
        ("action", sample.action or "none was found"),
        *(
            (word, "yes" if sample.info[key] else "no")
            for key, word in _MARKS
            if key in sample.info
        ),
        ("tokens", f"{len(sample.prompt_token_ids):,} read, {len(sample.token_ids):,} drawn"),
    ]
    # An answer that was given, not drawn, has no probability.
    if any(sample.logprobs):
        lines.append(("probability", f"{math.exp(sum(sample.logprobs)):.3g}"))
    if shown.advantage is not None:
        names = ["game", *sample.rewards]
        after = [sample.raw_reward, *sample.rewards.values()]
        lines += [
            (f"reward, {'of' if name == 'game' else 'after'} {name}", _signed(reward))
            for name, reward in zip(names, after, strict=True)
        ]
        lines.append(("advantage", _signed(shown.advantage)))
    who = (
        f"{sample.env_id}, player {sample.player_id}, turn {sample.turn_index}, {sample.policy_uid}"
    )
    title = Text(f"batch {batch.number}, sample {place}: {sample.origin or 'given'}, {who}", "bold")
    return Group(
        title,
        Rule("prompt", align="left", style="dim"),
        Text(shown.prompt),
        Rule("answer", align="left", style="dim"),
        Text(shown.answer),
        Rule(style="dim"),
        facts(lines),
    )


def _heading(batch: ShownBatch, *, wide: bool) -> list[str]:
    samples = [one.sample for one in batch.samples]
    versions = sorted({sample.policy_version for sample in samples})
    games = len({sample.origin for sample in samples})
    envs = sorted({sample.env_id for sample in samples})
    head = f"batch {batch.number}: {counted(len(samples), 'sample')} of {counted(games, 'game')}"
    head += f" of {envs[0]}" if len(envs) == 1 else f" of {len(envs)} environments"
    advantages = [one.advantage for one in batch.samples if one.advantage is not None]
    if not advantages:
        return [head]
    span = f"version {versions[0]}" + (f" to {versions[-1]}" if len(versions) > 1 else "")
    # Else rewards that cancel each other leave a mean such as 1e-17.
    mean = round(sum(sample.reward for sample in samples) / len(samples), 6)
    size = sum(map(abs, advantages)) / len(advantages)
    names = [*samples[0].rewards] if wide else ["after all transforms"]
    return [
        f"{head}, {span}",
        f"mean reward {digits(mean, 3)}, mean size of an advantage {digits(size, 3)}",
        *([f"rewards: of the game → {' → '.join(names)}"] if samples[0].rewards else []),
    ]


def _signed(number: float | None) -> str:
    text = digits(number, 3)
    return f"+{text}" if number is not None and number > 0 else text
