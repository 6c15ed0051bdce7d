"""Makes a tiny model: supervised training on random play, saved in Hugging Face format.

All losses are at the last prompt token, whose hidden state h (after the final norm) also gives
the next token:

* policy: cross-entropy to the uniform distribution over the legal actions;
* value: squared error of a linear head to the discounted outcome of the game. The head is kept,
  as the initial critic of A2C and PPO;
* wins and blocks, on grids: binary cross-entropy of two linear heads for the cells where a stone
  completes a line;
* facts, in markets: the same for the words of the prompt and how the market in focus ends.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlforge.models.files import VALUE_HEAD, no_progress_bars
from rlforge.models.tiny.corpus import Lessons, corpus, lessons
from rlforge.models.tiny.recipe import TinyRecipe
from rlforge.models.tiny.vocabulary import closing_ids

#: Games per environment that the report of a model is measured on.
_REPORT_GAMES = 100
_REPORT_SEED = 1_000_003


def create_tiny(directory: Path, recipe: TinyRecipe, progress: Callable[[str], None]) -> None:
    """Play, train, and save to ``directory``: about a minute on one core.

    Beside the model, ``warmup.json`` has the recipe, the time, and a ``report`` on new games.
    """
    from safetensors.torch import save_file

    started = time.perf_counter()
    progress(f"playing {sum(game.games for game in recipe.games)} random games")
    tokenizer, played = corpus(recipe)
    threads = torch.get_num_threads()
    # Matrices this small multiply faster on one thread than on several.
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            model = build_model(recipe, tokenizer)
            heads = warm_up(model, played, recipe, progress)
            measured = {}
            for game in recipe.games:
                fresh = dataclasses.replace(game, games=min(game.games, _REPORT_GAMES))
                states = fresh.play(recipe.discount, _REPORT_SEED)
                measured[game.name] = report(model, heads, lessons(states, tokenizer))
    finally:
        torch.set_num_threads(threads)
    # Answers end with an action, whose last token holds ``]``; engines find stop tokens here.
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


class Heads(nn.Module):
    """Linear heads of the hidden state: outcome, and logits of actions of a grid and of facts."""

    def __init__(self, hidden: int, actions: int, facts: int) -> None:
        super().__init__()
        self.value = nn.Linear(hidden, 1)
        # These heads are discarded; the features that they read stay in h. Without their losses h
        # holds only the free cells, and later learning finds nothing else in it.
        self.wins = nn.Linear(hidden, actions)
        self.blocks = nn.Linear(hidden, actions)
        self.facts = nn.Linear(hidden, facts) if facts else None


def build_model(recipe: TinyRecipe, tokenizer: Any) -> Any:
    """The untrained model, drawn from torch's global generator."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.ffn,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=recipe.positions,
        initializer_range=recipe.initializer_range,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def warm_up(
    model: Any, games: list[Lessons], recipe: TinyRecipe, progress: Callable[[str], None]
) -> Heads:
    """Train ``model`` in place on ``games``, one per game of ``recipe``; returns its heads."""
    facts = max(each.facts.shape[1] if each.facts is not None else 0 for each in games)
    heads = Heads(recipe.hidden, max(len(each.action_ids) for each in games), facts)
    parameters = [*model.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(
        parameters, lr=recipe.learning_rate, betas=recipe.betas, weight_decay=recipe.weight_decay
    )
    rng = np.random.default_rng(recipe.seed)
    model.train()
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * lr_factor(step, recipe)
        loss = torch.zeros(())
        for game, played in zip(recipe.games, games, strict=True):
            rows = rng.integers(0, len(played), game.batch_size)
            loss = loss + game_loss(model, heads, played, rows, recipe)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, recipe.grad_clip)
        optimizer.step()
        if (step + 1) % max(1, recipe.steps // 9) == 0:
            progress(f"warming up: step {step + 1} of {recipe.steps}, loss {loss.item():.3f}")
    model.eval()
    return heads


def lr_factor(step: int, recipe: TinyRecipe) -> float:
    """Learning rate of a step relative to ``recipe.learning_rate``."""
    done = step / recipe.steps
    factor = min(1.0, (step + 1) / recipe.lr_warmup)
    if done > recipe.lr_flat:
        fall = (done - recipe.lr_flat) / (1 - recipe.lr_flat)
        factor *= recipe.lr_floor + (1 - recipe.lr_floor) * (1 + math.cos(math.pi * fall)) / 2
    return factor


def game_loss(
    model: Any, heads: Heads, lessons: Lessons, rows: np.ndarray[Any, Any], recipe: TinyRecipe
) -> Tensor:
    """The weighted sum of the mean losses over the states ``rows``."""
    hidden = last_hidden(model, lessons.prompt_ids[rows])
    legal = torch.from_numpy(lessons.legal[rows]).float()
    logprobs = action_logprobs(model, hidden, lessons)
    # The mask gives illegal actions weight 0; their log-probs are finite, so no nan arises.
    policy = -(logprobs * legal).sum(1) / legal.sum(1)
    error = heads.value(hidden)[:, 0] - torch.from_numpy(lessons.outcome[rows])
    loss: Tensor = policy.mean() + recipe.value_weight * error.square().mean()
    for head, targets in (
        (heads.wins, lessons.wins),
        (heads.blocks, lessons.blocks),
        (heads.facts, lessons.facts),
    ):
        if head is not None and targets is not None:
            board = functional.binary_cross_entropy_with_logits(
                head(hidden)[:, : targets.shape[1]], torch.from_numpy(targets[rows]).float()
            )
            loss += recipe.board_weight * board
    return loss


def last_hidden(model: Any, prompt_ids: np.ndarray[Any, Any]) -> Tensor:
    """Hidden state of the last token of each prompt after the final norm; [B, T] to [B, H]."""
    output = model.model(input_ids=torch.from_numpy(prompt_ids), use_cache=False)
    hidden: Tensor = output.last_hidden_state[:, -1]
    return hidden


def action_logprobs(model: Any, hidden: Tensor, lessons: Lessons) -> Tensor:
    """Log-probabilities of the actions' tokens in the whole vocabulary; [B, H] to [B, A]."""
    logits: Tensor = model.lm_head(hidden)
    return torch.log_softmax(logits, dim=-1)[:, torch.from_numpy(lessons.action_ids)]


@torch.no_grad()
def report(model: Any, heads: Heads, lessons: Lessons) -> dict[str, float]:
    """How well the model reads states; means over ``lessons``.

    illegal: probability of tokens other than legal actions. kl_uniform: divergence of the uniform
    distribution over legal actions from the model's, in nats. value_r2: explained share of the
    variance of outcomes.
    """
    hidden = last_hidden(model, lessons.prompt_ids)
    legal = torch.from_numpy(lessons.legal)
    logprobs = action_logprobs(model, hidden, lessons)
    outcome = torch.from_numpy(lessons.outcome)
    count = legal.sum(1)
    cross_entropy = -(logprobs * legal).sum(1) / count
    error = heads.value(hidden)[:, 0] - outcome
    return {
        "illegal": 1 - float((logprobs.exp() * legal).sum(1).mean()),
        "kl_uniform": float((cross_entropy - count.log()).mean()),
        "value_r2": 1 - float(error.square().mean() / outcome.var(correction=0)),
    }
