"""The report of ``rlforge doctor`` as tables for a terminal, and as plain values for JSON."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlforge.errors import counted
from rlforge.preflight.doctor import Report
from rlforge.preflight.finding import Finding
from rlforge.preflight.fit import Memory
from rlforge.preflight.memory.needs import GIB, Need
from rlforge.preflight.memory.plan import Card, Plan

_STATES = {"ok": "green", "note": "yellow", "problem": "red"}
_VERDICTS = {"fits": "green", "tight": "yellow", "does not fit": "red"}

#: Columns that a detail needs next to what it is about.
_BESIDE = 24


def render(report: Report) -> RenderableType:
    """Findings, the memory plan and what buys memory; readable from 80 columns on."""
    parts: list[RenderableType] = [_Findings(report.findings)]
    if report.memory is not None:
        parts += [Text(), _needs(report.memory), Text(), *_cards(report.memory)]
        if report.memory.options:
            parts += [Text(), *_options(report.memory)]
    return Group(*parts)


def to_values(report: Report) -> dict[str, Any]:
    memory = report.memory
    values: dict[str, Any] = {
        "healthy": report.healthy,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        "memory": None,
    }
    if memory is not None:
        plan = memory.plan
        values["memory"] = {
            "verdict": plan.verdict,
            "excess": plan.excess,
            "parameters": plan.shape.parameters,
            "learner": dict(plan.learner),
            "engine": dict(plan.engine),
            "alternate": plan.alternate,
            "learner_idle": dict(plan.learner_idle),
            "engine_idle": dict(plan.engine_idle),
            "on_host": plan.on_host,
            "engine_with_one_sequence": dict(plan.least),
            "cards": [
                dataclasses.asdict(card) | {"usable": card.usable, "least": plan.need(card)}
                for card in plan.cards
            ],
            "sequences": plan.sequences,
            "sequence_bytes": plan.sequence_bytes,
            "largest_pass_tokens": memory.largest,
            "options": [dataclasses.asdict(option) for option in memory.options],
            "mend": list(memory.mend),
        }
    return values


class _Findings:
    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = findings

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        longest = max((len(finding.what) for finding in self._findings), default=0)
        width = options.max_width
        for finding in self._findings:
            head = f"{finding.state:9}{finding.what:{longest}}  "
            lines = textwrap.wrap(
                finding.detail,
                width,
                initial_indent=head,
                subsequent_indent=" " * (len(head) if width >= len(head) + _BESIDE else 4),
                # Paths and ids stay whole, so that they can be copied.
                break_long_words=False,
                break_on_hyphens=False,
            )
            text = _whole(Text("\n".join(lines or [head.rstrip()])))
            text.stylize(_STATES[finding.state], 0, len(finding.state))
            yield text


def _needs(memory: Memory) -> Table:
    """Put the parts side by side: what both hold first, then what only one does."""
    plan = memory.plan
    unit, size = _unit(plan)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(f"{unit}, at the fullest moment", overflow="fold")
    needs: tuple[Need, ...] = (plan.learner, plan.least, plan.engine)
    titles: tuple[str, ...] = ("learner", "engine, one sequence", "engine, all sequences")
    if plan.least == plan.engine:
        # An engine that reserves its memory at the start always needs the same.
        needs, titles = needs[:2], ("learner", "engine")
    if not plan.engine:
        needs, titles = needs[:1], titles[:1]
    for title in titles:
        table.add_column(title, justify="right")
    for name in dict.fromkeys(part for need in needs for part in need):
        table.add_row(
            name, *(f"{need[name] / size:.1f}" if name in need else "–" for need in needs)
        )
    table.add_row("together", *(f"{need.total / size:.1f}" for need in needs), style="bold")
    if plan.alternate:
        idle = (plan.learner_idle, plan.engine_idle, plan.engine_idle)[: len(needs)]
        table.add_row("in the other's turn", *(f"{need.total / size:.1f}" for need in idle))
    return table


def _cards(memory: Memory) -> list[RenderableType]:
    plan = memory.plan
    lines = [
        f"{_holds(card)}: at least {_gib(plan.need(card))} of {_gib(card.usable)} usable GiB "
        f"({memory.device}: {_gib(card.capacity)} GiB"
        f"{f', {_gib(card.others)} for the other processes' if card.others else ''})"
        for card in plan.cards
    ]
    if plan.alternate:
        card = plan.cards[0]
        lines.append(
            f"in turns (hardware.alternate): {_gib(plan.learning(card))} GiB while it learns, "
            f"{_gib(plan.playing(card))} GiB while it plays; {_gib(plan.on_host)} GiB of RAM for "
            "what waits"
        )
    color = _VERDICTS[plan.verdict]
    more = f", {_gib(plan.excess)} GiB too much" if plan.excess else ""
    lines.append(f"[bold {color}]{plan.verdict}[/]{more}")
    if plan.excess and memory.mend:
        lines.append(f"fits with: {escape(' '.join(memory.mend))}")
    elif not plan.excess and plan.engine:
        lines.append(
            f"each engine has room for {plan.sequences} sequences of full length "
            f"({plan.sequence_bytes / 2**20:.1f} MiB each)"
        )
        if plan.share is not None:
            lines.append(
                f"it takes {plan.share:.2f} of its card, and can have {plan.left:.2f} "
                f"{'in its turn' if plan.alternate else 'next to the learner'} "
                "(engine.vllm.gpu_memory_utilization)"
            )
        if plan.verdict == "tight":
            lines.append(
                f"it may be asked for {plan.wanted} at once: short ones fit; "
                f"engine.max_parallel_seq={plan.sequences} would always"
            )
    if memory.largest:
        lines.append(
            f"longest pass with these settings: {memory.largest} tokens "
            "(learner.max_train_len, learner.micro_batch_tokens)"
        )
    return [Text.from_markup(line) for line in lines]


def _holds(card: Card) -> str:
    who = [_several(card.learners, "learner")] if card.learners else []
    if card.engines:
        who.append(_several(card.engines, "engine"))
    return f"{card.count} × {' and '.join(who)}" if card.count > 1 else " and ".join(who)


def _several(number: int, name: str) -> str:
    return counted(number, name)


def _options(memory: Memory) -> list[Text]:
    unit, size = _unit(memory.plan)
    rows = [("what buys memory, of learner or engine", unit)]
    for option in memory.options:
        if (saves := f"{option.saves / size:,.1f}") != "0.0":
            rows.append((f"{option.key}={option.value}", saves))
    width = max(len(key) for key, _ in rows)
    lines = [Text(f"{key:{width}}  {saves:>7}") for key, saves in rows]
    lines[0].stylize("dim")
    # No line is broken, so that keys can be copied.
    return [_whole(line) for line in lines]


def _whole(line: Text) -> Text:
    line.no_wrap, line.overflow = True, "ignore"
    return line


def _unit(plan: Plan) -> tuple[str, int]:
    return ("GiB", GIB) if max(plan.engine.total, plan.learner.total) > 2 * GIB else ("MiB", 2**20)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"
