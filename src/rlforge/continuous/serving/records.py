"""Deployments with their checks, what checks are made of, and the answers that clients got."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from rlforge.games.actions import extract
from rlforge.types import Completion, PolicyRef, SamplingParams, value

Phase = Literal[
    "staged",
    "validating",
    "checkpointing",
    "swapping",
    "verifying",
    "trial",
    "live",
    "former",
    "rejected",
    "rolled_back",
    "failed",
    "interrupted",
]

#: Phases of a deployment in progress. A process that starts marks those it finds as interrupted.
UNDER_WAY: tuple[Phase, ...] = ("validating", "checkpointing", "swapping", "verifying")


Arm = Literal["current", "new"]
"""The versions that a trial compares."""


@value
class TrialOutcome:
    """The reward of an answer during a trial; cluster, stage: see ``trials.MixtureSprt``."""

    arm: Arm
    reward: float
    cluster: str | None = None
    stage: str | None = None


@value
class Check:
    name: str
    passed: bool
    detail: str


@value
class Deployment:
    """A version of the policy that is served, was served, or may be.

    number: place in the order of deployments, 0 for the base model. updates: updates of the learner
    that made the adapter. path: the service's own copy. created_at, changed_at: seconds since
    1970 UTC. reason: why it is not served.
    """

    number: int
    phase: Phase
    strategy: str
    source: str
    path: str | None = None
    updates: int = 0
    created_at: float = 0.0
    changed_at: float = 0.0
    checks: tuple[Check, ...] = ()
    reason: str = ""

    @property
    def uid(self) -> str:
        """Its name in requests and answers, and that of its folder."""
        return f"deploy-{self.number}"

    @property
    def succeeded(self) -> bool:
        """Whether it is served, to all users or in a trial."""
        return self.phase in ("live", "trial")

    def policy(self) -> PolicyRef:
        return PolicyRef(
            uid=self.uid, kind="checkpoint", path_or_name=self.path, version=self.updates
        )

    def to_json(self) -> dict[str, Any]:
        """For HTTP and files: without the path, ``updates`` as ``version``."""
        values = dataclasses.asdict(self)
        # Clients cannot read the path, and its folder may move.
        del values["path"]
        return {"uid": self.uid, "version": values.pop("updates"), **values}


#: Prompts that a new version must answer, and most tokens in the answer to one.
PROBES, PROBE_TOKENS = 8, 256


@value
class Probe:
    """A prompt that a new version must answer, and how an action is read from the answer."""

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    extraction: str
    # Some extractions choose among these.
    legal_actions: tuple[str, ...] | None = None

    def well_formed(self, text: str) -> bool:
        """Whether an action can be read from the answer, legal or not."""
        return extract(self.extraction, text, self.legal_actions).well_formed


@value
class PairedOutcomes:
    """Rewards of a new and the current version on the same items, in the same order.

    concerns: suspicions about how the new version earned them, in sentences.
    """

    candidate: tuple[float, ...]
    current: tuple[float, ...]
    concerns: tuple[str, ...] = ()


#: Measures a new version (first argument) and the current one (second) on the same held-out items.
Holdout = Callable[[PolicyRef, PolicyRef], Awaitable[PairedOutcomes]]


@value
class Answered:
    """An answer that a client got.

    user: stands for the user. arguments: arguments of the chat template. text: up to a stop
    string, and then without ``completion``.
    """

    id: str
    user: str
    conversation: Sequence[Mapping[str, Any]] | str
    tools: Sequence[Mapping[str, Any]]
    params: SamplingParams
    text: str
    completion: Completion | None
    arguments: Mapping[str, Any] | None = None


class AnswerObserver(Protocol):
    """Sees the answers of a service, and their outcomes."""

    async def answered(self, answer: Answered) -> None:
        """A client got ``answer``. Raises nothing."""

    async def rewarded(self, answer_id: str, reward: float) -> bool:
        """A client reports the reward of an answer; whether the observer made use of it."""
