"""Models that are made when they are first used, and kept in the machine's cache."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from rlforge.config.plugins import MODELS
from rlforge.models.files import cache_dir, made_once, no_progress_bars
from rlforge.models.smollm2 import CACHE_NAME, create_smollm2
from rlforge.models.tiny import recipe
from rlforge.types import value

Progress = Callable[[str], None]
"""Called with a line on each slow step."""


@value
class MadeModel:
    """A model that code makes.

    Attributes:
        cache_name: Name of its folder in the cache; a change makes the model again.
        create: Writes a Hugging Face model with its tokenizer into an empty folder.
        reads: Compact boards that it was made to play from; ``social``: of all markets; ``text``:
            anything.
        takes: Time that this takes, in words.

    Example: a kind of your own, for ``model.kind=mine:COPY``:
        >>> def create(folder, progress):
        ...     progress("copying my model")
        ...     shutil.copytree("my-model", folder, dirs_exist_ok=True)
        >>> COPY = MadeModel(cache_name="copy-1", create=create)
    """

    cache_name: str
    create: Callable[[Path, Progress], None]
    reads: Literal["text", "games", "market", "social"] = "text"
    takes: str = "a while"

    @property
    def folder(self) -> Path:
        """Its place in the cache, made or not."""
        return cache_dir() / self.cache_name

    def knows(self, subject: str) -> bool:
        """Whether it reads a subject: ``games``, ``market`` or ``social``."""
        return self.reads in ("text", subject) or (self.reads, subject) == ("social", "market")

    def make(self, progress: Progress) -> Path:
        """The folder, filled on the first call; other processes wait for that."""

        def fill(folder: Path) -> None:
            progress(
                f"making the model {self.cache_name}: once on this machine, {self.takes}; "
                f"it is kept in {self.folder.parent}"
            )
            started = time.monotonic()
            with no_progress_bars():
                self.create(folder, progress)
            progress(f"made in {time.monotonic() - started:.0f} s")

        return made_once(self.cache_name, fill, progress)


def made_model(kind: str) -> MadeModel | None:
    """The model behind ``model.kind``; None for ``hf``; ConfigError for an unknown one."""
    return None if kind == "hf" else MODELS.find(kind)


def _create_tiny(own: recipe.TinyRecipe, folder: Path, progress: Progress) -> None:
    # ``create`` imports torch, which only making a model needs.
    from rlforge.models.tiny.create import create_tiny

    create_tiny(folder, own, progress)


def tiny(
    kind: str, own: recipe.TinyRecipe, reads: Literal["games", "market", "social"]
) -> MadeModel:
    """A model that is trained from nothing by a recipe."""
    name, create = f"{kind}-{own.digest()}", partial(_create_tiny, own)
    return MadeModel(cache_name=name, create=create, reads=reads, takes="about a minute")


TINY = tiny("tiny", recipe.TINY, "games")
SMOLLM2_135M = MadeModel(
    cache_name=CACHE_NAME, create=create_smollm2, takes="half a minute and the download"
)
