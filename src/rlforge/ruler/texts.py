"""Decisions in words: what a judge reads of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from rlforge.ruler.features import WITH_OUTCOME
from rlforge.trajectories.records import Decision

#: What agents see alike comes first, so that the texts of a group begin alike.
_ROOMS = ("markets", "social", "portfolio", "agent")
_CUT = "\n[…]\n"


def situation(decision: Decision) -> str:
    """What the agent knew: what its model read, or the state, one fact a line."""
    if decision.observation:
        return decision.observation.strip()
    state = decision.state
    rooms = [*_ROOMS, *sorted(set(state) - set(_ROOMS))]
    return "\n".join(line for room in rooms if room in state for line in _facts(room, state[room]))


def choice(decision: Decision, features: str) -> str:
    """What it did and why; what came of it, where ``features`` is ``with_outcome``."""
    lines = [f"Action: {_compact(decision.action)}"]
    if decision.metadata.reasoning.strip():
        lines.append(f"Reasoning: {' '.join(decision.metadata.reasoning.split())}")
    lines.append(f"Confidence: {decision.metadata.confidence:.2f}")
    result = decision.result
    if features == WITH_OUTCOME and result is not None:
        lines.append(
            f"Outcome: profit {result.pnl:.2f} on {result.investment:.2f} invested, held for "
            f"{result.hold_time_minutes:g} minutes"
        )
    return "\n".join(lines)


def common_beginning(texts: Sequence[str]) -> tuple[str, list[str]]:
    """The whole lines that all texts begin with, and what is left of each."""
    lines = [text.split("\n") for text in texts]
    alike = takewhile(lambda row: len(set(row)) == 1, zip(*lines, strict=False))
    shared = len(list(alike))
    return "\n".join(lines[0][:shared]), ["\n".join(rest[shared:]) for rest in lines]


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters: beginning and end, with a mark where the middle was."""
    if len(text) <= limit:
        return text
    room = max(0, limit - len(_CUT))
    head = room * 2 // 3
    return text[:head] + _CUT + (text[-(room - head) :] if room > head else "")


def _facts(name: str, content: Any) -> list[str]:
    if not isinstance(content, Mapping):
        return [f"{name}: {_compact(content)}"]
    lines = []
    for part, inside in content.items():
        if isinstance(inside, list | tuple):
            lines += [f"{name}.{part}:", *(f"- {_compact(one)}" for one in inside)]
        else:
            lines.append(f"{name}.{part}: {_compact(inside)}")
    return lines


def _compact(content: Any) -> str:
    if isinstance(content, str):
        return content
    return json.dumps(content, ensure_ascii=False, default=str)
