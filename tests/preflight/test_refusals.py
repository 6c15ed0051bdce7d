"""Refusals come before anything starts, in one message with key, value and mend."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.harness.composed import ROOTS, composed

from rlforge import AlgorithmConfig, Count, Reinforce
from rlforge.errors import ConfigError
from rlforge.launch import check
from rlforge.models.load import check_source
from rlforge.preflight.fit import check_fit
from rlforge.preflight.plan import make_plan
from rlforge.system.hardware import detect


@dataclass
class RankedConfig(AlgorithmConfig):
    """Settings of an algorithm of another package that compares games of a group."""

    group_size: Count = 4


class Ranked(Reinforce):
    """It would compare them; here the settings alone count."""

    config_class = RankedConfig


def _cases() -> dict[str, list[tuple[str, str]]]:
    """Lines and parts of their messages, below each heading of refusals.txt."""
    _about, *sections = Path(__file__).with_name("refusals.txt").read_text().split("\n\n# ")
    found = {}
    for section in sections:
        heading, *rows = section.splitlines()
        found[heading] = list(zip(rows[::2], rows[1::2], strict=True))
    return found


def refusal(line: str) -> str:
    """Why a command refuses its overrides."""
    command, *overrides = shlex.split(line.removeprefix("$ "))
    try:
        found = composed(*overrides, root=ROOTS[command])
        check(found)
        plan = make_plan(found.config, detect())
        check_fit(plan.config, plan.hardware, ())
        check_source(found.config.model)
    except ConfigError as error:
        return str(error)
    return ""


CASES = _cases()


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("heading", "part"), [(one, part) for one in CASES for part in range(4)])
def test_what_cannot_be_is_refused_in_one_message(heading, part, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for key in ("OPENAI_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    assert len({line for line, _ in CASES[heading]}) == len(CASES[heading])
    wrong = {}
    for line, parts in CASES[heading][part::4]:
        said = [f"^{problem}$" for problem in refusal(line).splitlines()]
        expected = ".*".join(map(re.escape, parts.split(" ... ")))
        if not any(re.search(expected, problem) for problem in said):
            wrong[line] = said
    assert wrong == {}


LERNING = "learner.lerning_rate (command line, learner.lerning_rate"  # =1): no such key


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("line", "keys"),
    [
        *(
            (f"train algorithm={name}", ["algorithm.name", "rewards.final"])
            for name in ("grpo", "gspo", "cispo", "rloo", "dapo", "nash_pg")
        ),
        (
            "train learner.lerning_rate=1 engine.max_tokens=few seed=1",
            ["engine.max_tokens", LERNING],
        ),
        ("train env=nowhere algorithm=pp0 learner.epochs=many", ["algorithm", "env"]),
        ("train seed=-1 learner.epochs=0", ["seed", "learner.epochs"]),
        (
            "train simpletak_mirror pool.mode=nope model.prompt_template=nope",
            ["model.prompt_template"],
        ),
        (
            "train simpletak_mirror pool.mode=nope eval.games=3 learner.save_every=9",
            ["pool.mode", "eval.games", "learner.save_every"],
        ),
        (
            "sft data=random_legal data.players=[nobody] algorithm=ppo",
            ["data.players", "algorithm.name"],
        ),
        (
            "continuous continuous.source=requests continuous.http=false window.clock=simulated",
            ["continuous.http", "window.clock"],
        ),
        (
            "serve deployment.strategy=ab_test engine.max_loras=2 eval.games=3",
            ["eval.games", "engine.max_loras"],
        ),
        (
            "train kuhn_grpo learner.batch_size=abc engine.min_engines=4 engine.num_engines=1",
            ["learner.batch_size", "engine.min_engines"],
        ),
        (
            "train kuhn_grpo engine.min_engines=4 engine.num_engines=1 model.action_extraction=no",
            ["engine.min_engines", "model.action_extraction"],
        ),
        # The number of engines may be the one that is meant.
        ("train kuhn_grpo engine.min_engines=4 engine.num_engines=x", ["engine.num_engines"]),
    ],
)
def test_all_reasons_are_said_at_once_a_line_each(line, keys):
    said = refusal(f"$ {line}").splitlines()
    assert [one.partition("=")[0] for one in said] == keys, said
