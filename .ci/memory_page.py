"""Writes the tables of ``docs/memory.md`` from the planner; a test says when they are stale.

``python .ci/memory_page.py``
"""

from __future__ import annotations

from pathlib import Path

from rlforge.config.schema import HardwareConfig, PolicyConfig, RunConfig
from rlforge.models.shape import KNOWN, ModelShape
from rlforge.preflight.memory.needs import GIB
from rlforge.preflight.memory.plan import make_plan
from rlforge.preflight.memory.remedies import TURNS, Changes, largest_pass, pass_of, with_keys

PAGE = Path(__file__).parents[1] / "docs" / "memory.md"
MARK = "<!-- below: python .ci/memory_page.py -->\n"

CARDS = (12, 16, 24, 32, 48, 80)
MODELS = ("Llama-3.2-1B", "Qwen3-1.7B", "Llama-3.2-3B", "Qwen3-4B", "Qwen3-8B")

#: Longest steps that the tables try, and the length from which nothing needs to be cut.
LIMIT = 32768
TARGET = 8192
LENGTHS = (8192, 4096, 2048, 1024)

#: Fewer concurrent sequences than this are too few to collect games.
LEAST_SEQUENCES = 4

CHECKPOINTS: dict[str, Changes] = {
    "none": {},
    "activation": {"learner.activation_checkpointing": True},
    "gradient": {"learner.gradient_checkpointing": True},
}

ALONE = HardwareConfig(device="cuda", learner_gpus=1.0, engine_gpus=1.0)
SHARED = HardwareConfig(device="cuda", learner_gpus=0.5, engine_gpus=0.5)


PARTS = """## A card for the learner

The longest pass in tokens (prompt and answer of one step) with each kind of checkpointing, and the
settings for steps of up to 8,192 tokens. Both kinds compute the forward pass a second time;
gradient checkpointing keeps less, also less than both together, so it is the one to set.
Truncation (`learner.max_train_len`) cuts the ends of longer answers in training, not in play.
"""

TOGETHER = """## One card for learner and engine

The engine is the embedded one. Longest answers with gradient checkpointing, and how many sequences
of that length the card holds: with both working at the same time, and in turns
(`hardware.alternate=true`), where each has the whole card except for the other's process. The
weights of the waiting one are on the host. That nothing but its process stays on the card is not
measured yet.
"""


def render() -> str:
    """Both sections of tables."""
    shapes = [shape for name in MODELS for shape in KNOWN if shape.name == name]
    lines = [PARTS]
    for shape in shapes:
        lines += [f"### {shape.name}", "", *_alone(shape), ""]
    lines += [TOGETHER]
    for shape in shapes:
        lines += [f"### {shape.name} with its engine", "", *_shared(shape), ""]
    return "\n".join(lines).rstrip() + "\n"


def _longest(shape: ModelShape, card: int, checkpoints: Changes) -> int:
    """Tokens of the longest pass of a learner with a card of its own."""
    config = with_keys(RunConfig(), {"engine.max_model_len": LIMIT, **checkpoints})

    def fits(config: PolicyConfig) -> bool:
        plan = make_plan(config, shape, ALONE, card * GIB, bf16=True)
        return plan.learner.total <= plan.cards[0].usable

    return largest_pass(config, fits)


def _alone(shape: ModelShape) -> list[str]:
    lines = [
        "| VRAM | none | activation | gradient "
        "| Activation checkpointing | Gradient checkpointing | Train length truncation |",
        "|---|--:|--:|--:|---|---|---|",
    ]
    for card in CARDS:
        longest = {name: _longest(shape, card, kind) for name, kind in CHECKPOINTS.items()}
        chosen = "none" if longest["none"] >= TARGET else "gradient"
        if longest[chosen] == 0:
            advice = "does not fit | |"
        else:
            words = ["on" if name == chosen else "off" for name in ("activation", "gradient")]
            cut = longest[chosen] // 64 * 64
            words.append("none" if cut >= TARGET else f"{cut:,}")
            advice = " | ".join(words)
        cells = " | ".join(_tokens(longest[name]) for name in CHECKPOINTS)
        lines.append(f"| {card} GB | {cells} | {advice} |")
    return lines


def _shared(shape: ModelShape) -> list[str]:
    lines = [
        "| VRAM | `engine.max_model_len`, `learner.max_train_len` | full-length sequences "
        "| in turns: the same length | full-length sequences |",
        "|---|--:|--:|--:|--:|",
    ]
    for card in CARDS:
        cells = (_longest_answers(shape, card, alternate=turns) for turns in (False, True))
        lines.append(f"| {card} GB | {' | '.join(cells)} |")
    return lines


def _longest_answers(shape: ModelShape, card: int, *, alternate: bool) -> str:
    """Cells for the longest answers and how many of them run at once."""
    for length in LENGTHS:
        changes = {"engine.max_model_len": length, **CHECKPOINTS["gradient"], **pass_of(length)}
        config = with_keys(RunConfig(), {**changes, **(TURNS if alternate else {})})
        plan = make_plan(config, shape, SHARED, card * GIB, bf16=True)
        if not plan.excess and plan.sequences >= LEAST_SEQUENCES:
            return f"{length:,} | {plan.sequences}"
    return "does not fit | "


def _tokens(number: int) -> str:
    return "–" if number == 0 else f"{number:,}" if number < LIMIT else f"≥ {LIMIT:,}"


if __name__ == "__main__":
    prose = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(prose + MARK + render(), encoding="utf-8")
