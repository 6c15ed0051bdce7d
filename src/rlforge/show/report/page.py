"""Pages that need no other file: Jinja templates, with style, script and uPlot inlined."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlforge.errors import RlforgeError
from rlforge.record.results import by_pairing
from rlforge.record.samples import end_of
from rlforge.show import formatting
from rlforge.statistics import significant, wilson_interval
from rlforge.system.files import write_out

if TYPE_CHECKING:
    from jinja2 import Environment

#: Templates and what they inline are named by their paths in the package.
_ROOT = Path(__file__).parents[2]


def render(template: str, **facts: Any) -> str:
    """The page of a template, given by path; it has ``facts`` and ``rlforge.show.formatting``."""
    return _environment().get_template(template).render(facts)


def write_page(target: Path, page: str) -> Path:
    try:
        write_out(target, page)
    except OSError as error:
        why = f"{target} cannot be written ({error.strerror})"
        raise RlforgeError(f"{why}; --output FILE writes the page elsewhere") from error
    return target


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # Answers of models are no markup; a misspelt name is an error, not a gap in the page.
    made = Environment(
        loader=FileSystemLoader(_ROOT),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    facts = (significant, wilson_interval, by_pairing, end_of)
    made.globals |= vars(formatting) | {function.__name__: function for function in facts}
    # Read as they are: Jinja would take braces of scripts for its own.
    made.globals["inlined"] = lambda name: (_ROOT / name).read_text(encoding="utf-8")
    return made
