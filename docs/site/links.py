"""Hooks of mkdocs: pages may link to files of the repository outside of docs/.

On the site such a file, and each that the navigation names, is a page or a download under its path
in the repository; links are rewritten to it. In a repository browser they work as they are.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
HOME = {"README.md": "index.md"}  # the site has a start page of its own


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that the navigation names or a page links to."""
    waiting = list(_named(config.nav))
    waiting += [page.src_uri for page in files.documentation_pages()]
    while waiting:
        uri = waiting.pop()
        path = _root(config) / _in_repository(uri, config)
        if files.get_file_from_path(uri) is None and path.is_file():
            files.append(File.generated(config, uri, abs_src_path=str(path)))
            waiting.append(uri)
        if uri.endswith(".md") and path.is_file():
            links = (_target(link["path"], uri, config) for link in LINK.finditer(path.read_text()))
            waiting += [link for link in links if link and files.get_file_from_path(link) is None]
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links of the repository to their pages of the site."""

    def moved(link: re.Match[str]) -> str:
        target = _target(link["path"], page.file.src_uri, config)
        if target is None:
            return link[0]
        here = posixpath.dirname(page.file.src_uri) or "."
        return posixpath.relpath(target, here) + (link["anchor"] or "")

    return LINK.sub(moved, markdown)


def _target(link: str, uri: str, config: MkDocsConfig) -> str | None:
    """The path on the site of the file that page ``uri`` links to; None where there is none."""
    folder = posixpath.dirname(_in_repository(uri, config))
    path = posixpath.normpath(posixpath.join(folder, link))
    if "://" in link or path.startswith("..") or not (_root(config) / path).is_file():
        return None
    path = re.sub(r"^docs/(.*)\.ipynb$", r"docs/\1.md", path)  # notebooks.py makes pages of them
    return HOME.get(path, path.removeprefix("docs/"))


def _in_repository(uri: str, config: MkDocsConfig) -> str:
    """The path in the repository of a path on the site."""
    notebook = re.sub(r"\.md$", ".ipynb", uri)
    for own in (uri, notebook):
        if (Path(config.docs_dir) / own).is_file():
            return f"docs/{own}"
    return uri


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent


def _named(nav: Any) -> Iterator[str]:
    """The paths in a navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _named(entry)
