"""Makes a tiny model and saves it in Hugging Face format."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from rlforge.models.files import VALUE_HEAD
from rlforge.models.quiet import no_progress_bars
from rlforge.models.tiny.corpus import corpus, lessons, play
from rlforge.models.tiny.recipe import TinyRecipe
from rlforge.models.tiny.vocabulary import closing_ids
from rlforge.models.tiny.warmup import build_model, report, warm_up

#: Games per environment that the report of a model is measured on.
_REPORT_GAMES = 100
_REPORT_SEED = 1_000_003


def create_tiny(directory: Path, recipe: TinyRecipe, progress: Callable[[str], None]) -> None:
    """Plays, trains and saves to ``directory``; under a minute on one core for each of
    ``RECIPES``.

    Beside model and tokenizer it writes ``value_head.safetensors`` (weight [1, H], bias [1]; see
    ``rlforge.models.load.load_value_head``) and ``warmup.json`` (the recipe, how long it took,
    and how well the model reads states of fresh games). progress: told what is going on.
    """
    from safetensors.torch import save_file

    started = time.perf_counter()
    progress(f"playing {sum(game.games for game in recipe.games)} random games")
    tokenizer, played = corpus(recipe)
    with _one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = build_model(recipe, tokenizer)
        heads = warm_up(model, played, recipe, progress)
        measured = {}
        for game in recipe.games:
            fresh = dataclasses.replace(game, games=min(game.games, _REPORT_GAMES))
            states = play(fresh, recipe.discount, _REPORT_SEED)
            measured[game.name] = report(model, heads, lessons(states, tokenizer))
    # All that reads a model's stop tokens finds them here, for this model as for any other.
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *closing_ids(tokenizer)]
    with no_progress_bars():
        model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    save_file(dict(heads.value.state_dict()), directory / VALUE_HEAD)
    summary = {
        "recipe": dataclasses.asdict(recipe),
        "parameters": model.num_parameters(),
        "seconds": round(time.perf_counter() - started, 1),
        "states": measured,
    }
    (directory / "warmup.json").write_text(json.dumps(summary, indent=2) + "\n")


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices this small are slower on several threads than on one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
