"""Hook of mkdocs: notebooks of docs/ become pages, with the outputs that are saved in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page ``NAME.md`` for each ``NAME.ipynb``."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        uri = notebook.src_uri.removesuffix(".ipynb") + ".md"
        page = to_markdown(json.loads(Path(notebook.abs_src_path).read_text()))
        page += f'\n\n<a href="{Path(uri).stem}.ipynb" download>This page as a notebook</a>\n'
        files.append(File.generated(config, uri, content=page))
    return files


def to_markdown(notebook: dict[str, Any]) -> str:
    """The cells of a notebook, each with its outputs."""
    parts: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code" and source.strip():
            parts.append(f"```python\n{source}\n```")
            parts += [_output(output) for output in cell.get("outputs", [])]
    return "\n\n".join(part for part in parts if part)


def _output(output: dict[str, Any]) -> str:
    """The best form of an output that a page can show; an error is text."""
    data = {kind: "".join(text) for kind, text in output.get("data", {}).items() if text}
    if "image/svg+xml" in data:
        _, tag, drawing = data["image/svg+xml"].partition("<svg")
        return f"<div>{tag}{drawing}</div>"
    if "image/png" in data:
        png = "".join(data["image/png"].split())
        return f'<img alt="output" src="data:image/png;base64,{png}">'
    if "<table" in data.get("text/html", ""):
        table = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL)
        return re.sub(r"\n\s*", "", re.sub(r"<table[^>]*>", "<table>", table))
    lines = output.get("text") or output.get("traceback") or data.get("text/plain", "")
    text = ESCAPES.sub("", "".join(lines)).rstrip()
    return f"```text\n{text}\n```" if text else ""
