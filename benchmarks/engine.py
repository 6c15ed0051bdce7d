"""Tokens a second and adapter swaps of the transformers engine, against plain ``generate``.

    python benchmarks/engine.py [--repeats N]

The same prompts (SimpleTak positions of random play, in the tiny model's words), the same sampling.
``one token`` is what a move takes; ``16 tokens`` is forced by a minimum length. Plain ``generate``
gets all prompts as one padded batch, which is its best case, and gives no log-probs here. ``4
versions`` splits the requests over four adapters, ``16 versions`` over sixteen: the engine computes
them in one batch, plain PEFT runs one batch per adapter. ``mixed``: tokens a second of sixteen
adapters in shares of those of one, from runs of 16 tokens one after the other.

``swaps``: from a published adapter, on disk, to the first token of its version, one after the other
with nothing else under way. The engine drops its oldest version for a new one; plain PEFT deletes
the one before, so that its memory does not grow either.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from adapters import save_adapters
from common import record, seconds, shown, spread
from peft import PeftModel

from rlforge.config.engine import EngineConfig
from rlforge.config.model import ModelConfig
from rlforge.engines.transformers import TransformersEngine
from rlforge.games.players import make_player
from rlforge.games.prompts import Prompter
from rlforge.games.registry import make_game
from rlforge.models.load import load_base_model, load_tokenizer
from rlforge.system.loops import in_thread
from rlforge.types import EnvSpec, Form, PolicyRef, SamplingParams

REQUESTS, SWAPS = 512, 20
#: Numbers of adapters that requests are split over.
VERSIONS = (1, 4, 16)
FORM = Form(template="board", extraction="bracket")
ENV = EnvSpec(id="SimpleTak-v0-train")
MODEL = ModelConfig(kind="tiny")


def positions(tokenizer: Any, number: int) -> list[tuple[int, ...]]:
    """Prompts as they come up in games of the random player."""
    prompter, found, draw = Prompter(tokenizer), [], random.Random(0)
    while len(found) < number:
        game = make_game(ENV, draw.getrandbits(32))
        players = [make_player("random_legal", ENV, draw.getrandbits(32)) for _ in range(2)]
        while not game.done:
            view = game.view()
            found.append(tuple(prompter.encode(FORM, view)[1]))
            game.step(players[view.player_id].act(view))
    draw.shuffle(found)
    return found[:number]


def ours(
    engine: TransformersEngine, prompts: Sequence[tuple[int, ...]], policies: Sequence[PolicyRef]
) -> Callable[[int], None]:
    """Asks all prompts at once."""

    async def ask(tokens: int) -> None:
        answers = await asyncio.gather(
            *(
                engine.generate(
                    prompt,
                    SamplingParams(max_tokens=tokens, seed=index),
                    policies[index % len(policies)],
                )
                for index, prompt in enumerate(prompts)
            )
        )
        assert all(len(answer.token_ids) == tokens for answer in answers)

    return lambda tokens: asyncio.run(ask(tokens))


def plain(
    model: Any, prompts: Sequence[tuple[int, ...]], names: Sequence[str | None], pad: int
) -> Callable[[int], None]:
    """One padded ``generate`` per adapter, in a thread that leaves none to slow the engine down."""

    def generate(tokens: int) -> None:
        for index, name in enumerate(names):
            share = prompts[index :: len(names)]
            if name is not None:
                model.set_adapter(name)
            width = max(map(len, share))
            rows = [[pad] * (width - len(ids)) + list(ids) for ids in share]
            mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in share]
            with torch.inference_mode():
                out = model.generate(
                    input_ids=torch.tensor(rows),
                    attention_mask=torch.tensor(mask),
                    do_sample=True,
                    top_k=0,
                    min_new_tokens=tokens,
                    max_new_tokens=tokens,
                    pad_token_id=pad,
                )
            assert out.shape[1] == width + tokens

    return lambda tokens: in_thread(lambda: generate(tokens))


def named(versions: int) -> str:
    return f"{versions} version" + ("s" if versions > 1 else "")


def in_tokens(row: dict[str, Any]) -> dict[str, Any]:
    """A row of answers a second as one of tokens a second."""
    scaled = {
        who: {
            key: value * row["tokens"] if key.endswith("_per_s") else value
            for key, value in row[who].items()
        }
        for who in ("rlforge", "generate")
    }
    return row | scaled


async def swap(engine: Any, policy: PolicyRef, prompt: tuple[int, ...]) -> float:
    """Seconds from the published ``policy`` to its first token."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    await engine.load(policy)
    answer = await engine.generate(prompt, SamplingParams(max_tokens=1, seed=0), policy)
    took = loop.time() - start
    assert answer.policy_uid == policy.uid
    return took


def swap_in_peft(
    model: Any, policy: PolicyRef, before: PolicyRef, prompt: tuple[int, ...], pad: int
) -> float:
    """The same with plain PEFT, where ``before`` is what is loaded."""

    def work() -> None:
        model.load_adapter(policy.path_or_name, adapter_name=policy.uid)
        plain(model, [prompt], [policy.uid], pad)(1)
        model.delete_adapter(before.uid)

    return seconds(work)


def loaded() -> Any:
    """The tiny model."""
    return load_base_model(MODEL, torch.device("cpu"), torch.float32)


def with_adapters(refs: Sequence[PolicyRef]) -> Any:
    """The tiny model with adapters, by plain PEFT."""
    first, *others = refs
    peft = PeftModel.from_pretrained(loaded(), first.path_or_name, adapter_name=first.uid)
    for ref in others:
        peft.load_adapter(ref.path_or_name, adapter_name=ref.uid)
    return peft.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description="Engine tokens a second, and adapter swaps.")
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    tokenizer = load_tokenizer(MODEL)
    prompts = positions(tokenizer, REQUESTS)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        saved = in_thread(lambda: save_adapters(loaded(), Path(folder), VERSIONS[-1] + SWAPS))
        refs = saved[: VERSIONS[-1]]
        base = PolicyRef(uid="step-0", kind="checkpoint", path_or_name=None)
        config = EngineConfig(max_parallel_seq=256, max_loras=len(refs))
        engine = in_thread(lambda: TransformersEngine(config, loaded(), tokenizer))
        untouched, peft = in_thread(loaded), in_thread(lambda: with_adapters(refs))
        pad = tokenizer.pad_token_id
        cases = {"base": (ours(engine, prompts, [base]), plain(untouched, prompts, [None], pad))}
        for number in VERSIONS:
            some = refs[:number]
            cases[named(number)] = (
                ours(engine, prompts, some),
                plain(peft, prompts, [ref.uid for ref in some], pad),
            )
        for tokens in (1, 16):
            found: dict[tuple[str, str], list[float]] = {}
            for mine, theirs in cases.values():
                mine(tokens), theirs(tokens)
            for _ in range(repeats):
                for name, works in cases.items():
                    for who, work in zip(("rlforge", "generate"), works, strict=True):
                        per_s = REQUESTS / seconds(lambda work=work, n=tokens: work(n))
                        found.setdefault((name, who), []).append(per_s)
            rows += [
                {"policies": name, "tokens": tokens}
                | {who: spread(found[name, who], "per_s") for who in ("rlforge", "generate")}
                for name in cases
            ]
        pairs = zip(found[named(VERSIONS[-1]), "rlforge"], found[named(1), "rlforge"], strict=True)
        mixed = spread([many / one for many, one in pairs], "share")
        swaps: dict[str, list[float]] = {"rlforge": [], "peft": []}
        for before, policy in itertools.pairwise(saved[VERSIONS[-1] - 1 :]):
            swaps["rlforge"].append(asyncio.run(swap(engine, policy, prompts[0])))
            swaps["peft"].append(swap_in_peft(peft, policy, before, prompts[0], pad))
        asyncio.run(engine.close())
    print(f"{'policies':12}{'tokens':>7}{'rlforge answers/s':>28}{'generate answers/s':>28}")
    for row in rows:
        cells = (shown(row[who], "per_s", digits=0) for who in ("rlforge", "generate"))
        print(f"{row['policies']:12}{row['tokens']:>7}" + "".join(f"{cell:>28}" for cell in cells))
    print(f"16 adapters against one, tokens/s: {shown(mixed, 'share', digits=2)}")
    times_of_swaps = {who: spread(times) for who, times in swaps.items()}
    for who, values in times_of_swaps.items():
        print(f"published adapter to first token, {who}: {shown(values, scale=1e3)} ms")
    record(
        "engine",
        {
            "model": "tiny",
            "requests": REQUESTS,
            "prompt_tokens": spread([float(len(ids)) for ids in prompts], "tokens"),
            "threads": torch.get_num_threads(),
            "answers": rows,
            "generated_tokens": [in_tokens(row) for row in rows],
            "mixed": mixed,
            "swaps": times_of_swaps,
        },
    )


if __name__ == "__main__":
    main()
