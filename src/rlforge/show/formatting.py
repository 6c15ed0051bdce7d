"""Numbers and durations as text, the same in terminal, plain lines and report.

Example:
    >>> duration(3845), count(1_234_567), percent(0.683), number(0.000032)
    ('1:04:05', '1.23M', '68%', '3.2e-5')
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rlforge.record.results import ApiUsage

#: Labels of learner metrics, in order.
LEARNER_LABELS = {
    "loss": "loss",
    "reward_mean": "reward",
    "entropy": "entropy",
    "kl": "KL",
    "grad_norm": "grad norm",
    "lr": "learning rate",
    "lag_mean": "staleness",
    "logprob_gap_mean": "log-prob gap, mean",
    "logprob_gap_max": "log-prob gap, max",
}

NOTHING = "–"
_BLOCKS = "▁▂▃▄▅▆▇█"


def duration(seconds: float | None) -> str:
    """``4:05``, ``1:04:05`` or ``3 d 04:05``; a dash for what is unknown."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def count(number: float | None) -> str:
    """``950``, ``12,345``, ``1.23M``; a dash for what is unknown."""
    if number is None or not math.isfinite(number):
        return NOTHING
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(number) >= size:
            return f"{number / size:.2f}{letter}"
    return f"{round(number):,}"


def dollars(used: ApiUsage) -> str:
    """``$0.42``, and the number of answers of unknown price."""
    unknown = f"{count(used.unpriced)} answers of unknown price" if used.unpriced else ""
    # $0.00 would say that they were free.
    if used.unpriced and not used.cost:
        return unknown
    return f"${used.cost:.2f}{' and ' if unknown else ''}{unknown}"


def per_second(rate: float) -> str:
    """``42.1/s``; from 100 on without decimals."""
    return f"{count(rate)}/s" if rate >= 100 else f"{rate:.1f}/s"


def percent(share: float | None, digits: int = 0) -> str:
    """A share of 0..1 as ``68%``; a dash for what is unknown."""
    if share is None or not math.isfinite(share):
        return NOTHING
    return f"{100 * share:z.{digits}f}%"


def elo(points: float) -> str:
    return f"{points:+z.0f}"


def points(change: float) -> str:
    """A difference of shares in percentage points: ``+35.0``."""
    return f"{100 * change:+z.1f}"


def number(amount: float | None, digits: int = 4) -> str:
    """``digits`` significant digits: ``0.01234``, ``3.2e-5``, ``21,034``; a dash for None."""
    if amount is None or not math.isfinite(amount):
        return NOTHING if amount is None else str(amount)
    if amount == 0:
        return "0"
    if abs(amount) >= 1000:
        return count(amount)
    if abs(amount) < 1e-3:
        mantissa, exponent = f"{amount:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(exponent)}"
    return f"{amount:.{digits}g}"


def sparkline(shares: Iterable[float | None]) -> str:
    """Shares of 0..1 as block characters, ``▁`` to ``█``; a gap for None."""
    top = len(_BLOCKS) - 1
    return "".join(
        " " if share is None or math.isnan(share) else _BLOCKS[min(max(round(share * top), 0), top)]
        for share in shares
    )
