"""SimpleTak turns to learn from: real games, real prompts, answers drawn with a seed.

    python benchmarks/turns.py

Writes ``benchmarks/simpletak_lengths.json``: how many tokens the prompts of whole games have, for
benchmarks that need a length mix and no text (``benchmarks/learner.py --shape``). The tokenizer is
SmolLM2's.
"""

from __future__ import annotations

import dataclasses
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from adapters import randomise
from contenders.work import Turn, Work
from peft import LoraConfig, get_peft_model

from rlforge.config.compose import compose
from rlforge.config.model import ModelConfig
from rlforge.config.training import LearnerConfig
from rlforge.games.players import make_player
from rlforge.games.prompts import Prompter
from rlforge.games.registry import make_game
from rlforge.models.load import load_base_model, load_tokenizer, resolve_model
from rlforge.models.shape import KNOWN
from rlforge.rollout.lineup import form_of
from rlforge.types import EnvSpec

LENGTHS = Path(__file__).parent / "simpletak_lengths.json"
ENV = EnvSpec(id="SimpleTak-v0-train")
#: Model option -> the learner preset it is used with.
PRESETS = {"tiny": "tiny_ppo", "smollm2_135m": "default"}

#: How a chat model answers, from the bare move to a few sentences.
ANSWERS = (
    r"\boxed{[CELL]}",
    "[CELL]",
    r"I play \boxed{[CELL]}",
    r"My stones should connect, so I place one next to them: \boxed{[CELL]}",
    r"The opponent threatens to finish a path. Blocking it at CELL also extends my own line, so my "
    r"final action is \boxed{[CELL]}",
    r"Step 1: the free cells are listed above. Step 2: CELL touches one of my stones and lies on "
    r"the way to the other edge. Step 3: no other cell does both. Final action: \boxed{[CELL]}",
)


def make_turns(tokenizer: Any, model: ModelConfig, number: int, seed: int = 0) -> tuple[Turn, ...]:
    """The first ``number`` turns of whole games between random players, both seats trained.

    The tiny model answers with a move, one token; a chat model says it in one of ``ANSWERS``, drawn
    at equal odds, and ends its turn. Advantages are standard normal, log-probs those of a sampler
    that gives a token e^-1 on average.
    """
    draw, prompter = random.Random(seed), Prompter(tokenizer)
    turns: list[Turn] = []
    game = 0
    while len(turns) < number:
        turns += _game(game, model, prompter, tokenizer, draw)
        game += 1
    return tuple(turns[:number])


def _game(
    number: int, model: ModelConfig, prompter: Prompter, tokenizer: Any, draw: random.Random
) -> list[Turn]:
    seeds = [draw.getrandbits(32) for _ in range(3)]
    game = make_game(ENV, seeds[0])
    players = [make_player("random_legal", ENV, seed) for seed in seeds[1:]]
    turns = []
    while not game.done:
        view = game.view()
        move = players[view.player_id].act(view)
        prompt, prompt_ids = prompter.encode(form_of(model), view)
        answer = f" {move}"
        if model.prompt_template != "board":
            answer = draw.choice(ANSWERS).replace("[CELL]", move).replace("CELL", move.strip("[]"))
            answer += tokenizer.eos_token
        answer_ids = tuple(tokenizer.encode(answer, add_special_tokens=False))
        assert tokenizer.encode(prompt + answer, add_special_tokens=False) == [
            *prompt_ids,
            *answer_ids,
        ]
        game.step(move)
        turns.append(
            Turn(
                game=number,
                player=view.player_id,
                index=len(turns) // 2,
                last=game.done,
                prompt=prompt,
                answer=answer,
                prompt_ids=prompt_ids,
                answer_ids=answer_ids,
                logprobs=tuple(-draw.expovariate(1.0) for _ in answer_ids),
                advantage=draw.gauss(0.0, 1.0),
            )
        )
    return turns


def make_work(option: str, turns: int, folder: Path) -> Work:
    """A batch of ``turns`` turns for ``model=OPTION``, and an adapter that is not zero."""
    config = compose([f"model={option}", f"learner={PRESETS[option]}"]).config
    # Named layers: the peers know nothing of those that rlforge finds by itself.
    lora = dataclasses.replace(config.model.lora, target_modules=[*KNOWN[0].linears])
    model = dataclasses.replace(config.model, lora=lora)
    # One optimizer step on the whole batch for all contenders; rate and clipping are the work's.
    own = ("train", "mini_batch_size", "micro_batch_tokens", "share_prefixes", "betas")
    tokenizer = load_tokenizer(model)
    return Work(
        name=option,
        model=resolve_model(model),
        adapter=str(make_adapter(model, folder / f"{option}-adapter")),
        rank=lora.rank,
        alpha=lora.alpha,
        target_modules=tuple(lora.target_modules),
        pad_token_id=tokenizer.pad_token_id,
        learning_rate=LearnerConfig().learning_rate,
        grad_clip=1.0,
        learner={key: getattr(config.learner, key) for key in own},
        turns=make_turns(tokenizer, model, turns),
    )


def make_adapter(model: ModelConfig, folder: Path) -> Path:
    """A saved adapter with small random weights."""
    torch.manual_seed(0)
    config = LoraConfig(
        r=model.lora.rank,
        lora_alpha=model.lora.alpha,
        target_modules=list(model.lora.target_modules),
        task_type="CAUSAL_LM",
    )
    made = get_peft_model(load_base_model(model, torch.device("cpu"), torch.float32), config)
    randomise(made)
    made.save_pretrained(folder)
    return folder


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = make_work("smollm2_135m", 384, Path(folder))
    lengths = [len(turn.prompt_ids) for turn in work.turns]
    LENGTHS.write_text(json.dumps({"tokenizer": "SmolLM2", "prompt_tokens": lengths}) + "\n")
    print(f"{len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens in {LENGTHS.name}")


if __name__ == "__main__":
    main()
