"""One thing that was looked at before a start."""

from __future__ import annotations

from typing import Literal

from rlforge.types import value

State = Literal["ok", "note", "problem"]


@value
class Finding:
    """One thing that was looked at; ``note``: a run can do without what is missing."""

    what: str
    state: State
    detail: str
