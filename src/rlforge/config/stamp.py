"""The digest in the first line of a run's ``config.yaml``: a file cut short is not taken for it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from rlforge.errors import DamagedError

_STAMP = re.compile(rb"# sha256 ([0-9a-f]{64}) of all below[^\n]*\n")


def stamped(text: str) -> str:
    """YAML ``text`` below a comment with its digest, for ``check_stamp``."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"# sha256 {digest} of all below; delete this line to keep a change by hand\n{text}"


def check_stamp(path: Path) -> None:
    """Raise DamagedError where a file of ``stamped`` was cut short or changed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "config.yaml"
        ...     _ = file.write_text(stamped("seed: 1\\nname: x\\n")[:-8])
        ...     try:
        ...         check_stamp(file)
        ...     except DamagedError as error:
        ...         print(str(error).rpartition(": ")[2].partition(" (")[0])
        is cut short or was changed
    """
    # An editor may write other ends of lines, which change no value.
    content = path.read_bytes().replace(b"\r\n", b"\n") if path.is_file() else b""
    found = _STAMP.match(content)
    # Files of earlier versions have no such line.
    if found and hashlib.sha256(content[found.end() :]).hexdigest().encode() != found[1]:
        raise DamagedError(
            f"{path}: is cut short or was changed (its first line has the sha256 of others); "
            "restore it, or delete that line if the change is meant"
        )
