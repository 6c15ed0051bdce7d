"""How well a language model judges as RULER: agreement with rewards, groups unscored, cost.

    python benchmarks/judge.py [--model smollm2_135m|openai:MODEL] [--base-url URL] [--groups N]

The decisions are scripted traders' of one simulated hour, six to a group, in time order.
``forecast``: the judge sees what the trader knew; ``hindsight``: also what came of it. Agreement is
over pairs of decisions with different rewards. A model of the house answers from the embedded
engine, greedily.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import time
from typing import Any

from common import record
from ruler import examine, play

from rlforge.config.compose import compose
from rlforge.continuous.config.ruler import JudgeConfig, RulerConfig
from rlforge.continuous.decisions.records import TrainingWindow
from rlforge.continuous.ruler.features import STATE_ACTION, WITH_OUTCOME
from rlforge.continuous.ruler.judge_backends import LocalModel
from rlforge.continuous.ruler.scorer import make_scorer
from rlforge.engines.base import LocalEngine
from rlforge.engines.registry import make_engine
from rlforge.models.load import load_tokenizer, stop_token_ids
from rlforge.types import PolicyRef

GROUP = 6
WAYS = {"forecast": STATE_ACTION, "hindsight": WITH_OUTCOME}
BASE = PolicyRef(uid="base", kind="checkpoint")


def house_model(kind: str) -> tuple[LocalEngine, LocalModel]:
    """An engine with the model of ``conf/model/KIND.yaml``, and the judge's view of it."""
    settings = ("engine.max_model_len=8192", "engine.max_parallel_seq=8", "hardware=cpu")
    config = compose([f"model={kind}", *settings]).config
    engine, tokenizer = make_engine(config, device="cpu"), load_tokenizer(config.model)
    stop = stop_token_ids(config.model, tokenizer)
    return engine, LocalModel(
        generator=engine, tokenizer=tokenizer, policy=BASE, stop_token_ids=stop
    )


async def measure(
    config: RulerConfig, local: LocalModel | None, window: TrainingWindow
) -> dict[str, Any]:
    """What the judge makes of ``window``."""
    scorer = make_scorer(config, local=local)
    started = time.perf_counter()
    hide = config.features == STATE_ACTION
    figures, _ = await examine(scorer, [window], hide_outcomes=hide)
    took = time.perf_counter() - started
    await scorer.close()
    return {
        **figures,
        "decisions": len(window.decisions),
        "seconds_per_group": took * GROUP / len(window.decisions),
    }


async def judged(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The figures of both ways."""
    [window], _ = play(1, 1)
    few = dataclasses.replace(window, decisions=window.decisions[: arguments.groups * GROUP])
    engine, local, name = None, None, arguments.model
    if ":" not in arguments.model:
        engine, local = house_model(arguments.model)
        name = "engine"
    judge = JudgeConfig(
        model=name,
        base_url=arguments.base_url,
        group_size=GROUP,
        max_text_chars=700,
        max_answer_tokens=300,
        timeout_s=600.0,
        retries=0,
        max_concurrency=1,
    )
    figures = {}
    for way, features in WAYS.items():
        config = RulerConfig(
            scoring_method="judge", features=features, temperature=1.0, judge=judge
        )
        figures[way] = await measure(config, local, few)
        print(way, figures[way], flush=True)
    if engine is not None:
        await engine.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Agreement of a language model as judge.")
    parser.add_argument("--model", default="smollm2_135m")
    parser.add_argument("--base-url")
    parser.add_argument("--groups", type=int, default=8)
    arguments = parser.parse_args()
    figures = asyncio.run(judged(arguments))
    record("judge", {"model": arguments.model, "group_size": GROUP, "ways": figures})


if __name__ == "__main__":
    main()
