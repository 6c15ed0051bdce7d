"""Questions for prediction markets: invented, so that no model knows the answer."""

from __future__ import annotations

import random

_WHO = ("Orla Venn", "Team Basalt", "the Quill party", "Mayor Idris", "Lumen Labs", "Cape Harrow")
_WHAT = (
    "win the vote on the harbour",
    "finish the bridge on time",
    "take the northern cup",
    "announce a merger",
    "beat last year's harvest",
    "launch the new ferry",
    "publish the audit",
)


def question(rng: random.Random) -> str:
    """Any of them, each as likely."""
    return f"Will {rng.choice(_WHO)} {rng.choice(_WHAT)}?"
