"""The language model that plays, and its adapter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rlforge.config.prompts import template_args_problem
from rlforge.config.rules import Beta, Count, Group, LeftOut, OneOf, Problem, Text

ALL_LINEAR = "all-linear"
"""The ``model.lora.target_modules`` of every linear layer but the output layer."""


@dataclass
class LoraConfig(Group):
    """The low-rank adapter that is trained."""

    #: Rank of the adapter matrices.
    rank: Count = 32
    #: Scale: the update is alpha / rank times B A.
    alpha: Count = 32
    #: Rank-stabilised scale (Kalajdzievski 2023): alpha / sqrt(rank) instead.
    use_rslora: bool = False
    #: Dropout in front of A, in passes with a gradient. The model's own dropout is always off.
    dropout: Beta = 0.0
    #: Linear layers with an adapter: ``all-linear``, all but the output layer; a list of names, or
    #: of ends of names; or a regular expression for whole names.
    target_modules: Annotated[
        Text | list[Text], OneOf("a text or a list of texts, none of them empty")
    ] = ALL_LINEAR
    #: Adapt only this many last decoder layers; null: all. The backward pass ends there: with half
    #: of the layers an update takes about two thirds of the time. An output layer in
    #: ``target_modules`` is adapted in any case.
    last_layers: Count | None = None

    def adapts(self, name: str, *, head: bool = False) -> bool:
        """Whether a linear layer gets an adapter; head: it is the output layer.

        Example:
            >>> LoraConfig().adapts("model.layers.0.mlp.up_proj")
            True
            >>> LoraConfig(target_modules=["up_proj"]).adapts("lm_head", head=True)
            False
        """
        targets = self.target_modules
        if targets == ALL_LINEAR:
            return not head
        if isinstance(targets, str):
            return re.fullmatch(targets, name) is not None
        # With the dots only whole words match: ``proj`` is no end of ``up_proj``.
        return any(f".{name}".endswith(f".{target}") for target in targets)

    def adapted_layers(self, layers: int) -> int:
        """Number of a model's decoder layers with an adapter."""
        return layers if self.last_layers is None else min(self.last_layers, layers)

    def clashes(self) -> Iterator[Problem]:
        if isinstance(self.target_modules, str):
            try:
                re.compile(self.target_modules)
            except re.error as error:
                yield "target_modules", f"is no pattern: {error}; a list of names is in brackets"


_NO_FLOAT16 = LeftOut(
    "float16 fp16 half",
    "be bfloat16, or float32 where the hardware has none (auto chooses): small gradients vanish in "
    "float16 unless losses are scaled, which the learner does not do; an export can have it "
    "(rlforge export --dtype float16)",
)


@dataclass
class ModelConfig(Group):
    """The language model that plays (group ``model``)."""

    #: ``tiny`` (for games), ``tiny_market`` and ``tiny_social``, trained on this machine at first
    #: use, ``smollm2_135m`` (from a package), ``hf``, or one of your own.
    kind: str = "hf"
    #: Hugging Face id or local directory; only for ``kind: hf``.
    name: Text | None = None
    #: Default prompt template of the environments, one of ``prompts`` or of ``rlforge plugins``. A
    #: model without a chat template gets ``default`` in place of a ``chat`` that no setting chose.
    prompt_template: str = "chat"
    #: Arguments of the tokenizer's chat template, as ``{enable_thinking: false}``.
    chat_template_args: dict[str, Any] = field(default_factory=dict)
    #: Default action extraction of the environments; ``rlforge plugins`` lists them.
    action_extraction: str = "boxed"
    #: Data type of the weights; ``auto``: bfloat16 where the hardware computes in it.
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], _NO_FLOAT16] = "auto"
    #: The adapter; unused with ``learner.train: full``.
    lora: LoraConfig = field(default_factory=LoraConfig)

    @property
    def label(self) -> str:
        return self.name or self.kind

    @property
    def place(self) -> str:
        """The key that chose it and its value."""
        return f"model.name={self.name}" if self.name else f"model.kind={self.kind}"

    def clashes(self) -> Iterator[Problem]:
        if self.kind == "hf" and not self.name:
            yield "name", "model.kind=hf needs a name; add model.name=ORG/MODEL"
        if self.kind != "hf" and self.name:
            yield "name", f"only for model.kind=hf, not {self.kind}"
        if problem := template_args_problem(self.chat_template_args):
            yield "chat_template_args", problem
