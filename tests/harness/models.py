"""Models of a few thousand parameters, which whole runs start from, and settings of short runs."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

from tests import factories

#: Short episodes, few traders, few agents.
SMALL_MARKET = (
    *("market=small", "market.episode_ticks=6", "market.min_lifetime=2", "market.max_lifetime=5"),
    *("window.clock=simulated", "window.minutes=30", "window.min_actions=2"),
    *("window.avg_reward_threshold=null", "learner=tiny_window", "learner.epochs=2"),
    *("model=hf", "model.prompt_template=board", "model.action_extraction=bracket"),
    *("model.dtype=float32", "model.lora.rank=4", "hardware=cpu", "tracker.progress=plain"),
    *("engine.max_tokens=4", "engine.max_model_len=128", "engine.max_parallel_seq=256"),
    *("continuous.windows=2", "continuous.agents=4", "continuous.control_agents=0"),
    *("continuous.threshold=0.3", "continuous.compare_episodes=1", "name=test"),
    *("continuous.start=2024-11-13-10:00", "deployment.holdout_games=0", "deployment.min_format=0"),
)


def make_small_model(folder: Path) -> None:
    """Save a Llama of a few thousand parameters with the tiny model's tokenizer, barely warm."""
    from rlforge.models.tiny.create import create_tiny
    from rlforge.models.tiny.recipe import TINY

    games = tuple(dataclasses.replace(game, games=60) for game in TINY.games)
    recipe = dataclasses.replace(TINY, games=games, hidden=32, heads=2, ffn=64, steps=60)
    create_tiny(folder, recipe, progress=lambda text: None)


def make_market_model(folder: Path) -> None:
    """Save a model whose answers are one token, most of them a legal action of the market."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import GenerationConfig
    from transformers import PreTrainedTokenizerFast as Fast

    from rlforge.continuous.config.market import MarketConfig
    from rlforge.continuous.market.compact import compact_vocabulary

    words, answers = compact_vocabulary()
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *words, *answers])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    Fast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = factories.llama(vocab_size=len(vocabulary), **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _warm_up(model, MarketConfig(), vocabulary)
    ends = [vocabulary["<eos>"], *(vocabulary[answer] for answer in answers)]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=0)
    model.save_pretrained(folder)


def _warm_up(model: Any, market: Any, vocabulary: dict[str, int]) -> None:
    """A few optimizer steps towards legal answers."""
    import torch

    from rlforge.continuous.market.compact import Compact
    from rlforge.continuous.market.traders import Crowd
    from rlforge.continuous.market.world import World

    compact, world, draw = Compact(market), World(market, 0), random.Random(0)
    crowd = Crowd(world, 0)
    rows = []
    for _ in range(40):
        for choice in crowd.act():
            focus = compact.focus(choice.state)
            answer = draw.choice(compact.actions(choice.state, focus))
            text = f"{compact.text(choice.state, focus)} {answer}"
            rows.append([vocabulary[word] for word in text.split()])
        world.tick()
    tokens = torch.tensor(rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        batch = tokens[torch.randint(len(tokens), (64,))]
        logits = model(batch[:, :-1]).logits[:, -1]
        torch.nn.functional.cross_entropy(logits, batch[:, -1]).backward()
        optimizer.step()
        optimizer.zero_grad()
