"""The checks of a new version before it is served, in this order; the first failure ends them.

files      every file exists and has the digest in its manifest
fit        same base model, target modules and rank
finite     no weight is NaN or infinite
loads      the engine loads it and answers the probes
format     enough answers have the format that games can read
holdout    not worse than the current version by more than a margin
conduct    earns its rewards there by what they stand for
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlforge.config.model import ModelConfig
from rlforge.continuous.config.serving import DeploymentConfig
from rlforge.continuous.serving.adapter import check_fit, fingerprint
from rlforge.continuous.serving.records import Check, Holdout, PairedOutcomes, Probe
from rlforge.continuous.serving.trials import compare
from rlforge.engines.base import Generator
from rlforge.errors import DeploymentError, RlforgeError
from rlforge.models.finite import check_finite
from rlforge.types import Completion, PolicyRef, value

_NAMES = ("files", "fit", "finite", "loads", "format", "holdout", "conduct")


@value
class Report:
    """checks: checks that were made; only the last one may have failed. files: digests by name."""

    checks: tuple[Check, ...]
    files: Mapping[str, str]

    @property
    def passed(self) -> bool:
        return self.checks[-1].passed

    @property
    def reason(self) -> str:
        return f"{self.checks[-1].name}: {self.checks[-1].detail}"


async def validate(
    candidate: PolicyRef,
    current: PolicyRef,
    engine: Generator,
    *,
    config: DeploymentConfig,
    model: ModelConfig,
    probes: Sequence[Probe],
    holdout: Holdout | None,
) -> Report:
    """Check a new version, whose path is set, against the current one.

    The other parameters are those of ``DeploymentService.open``.
    """
    path = Path(candidate.path_or_name or "")
    files: Mapping[str, str] = {}
    found: list[str] = []
    try:
        files = await asyncio.to_thread(fingerprint, path)
        found.append(f"{len(files)} files")
        found.append(await asyncio.to_thread(check_fit, path, model))
        found.append(await asyncio.to_thread(check_finite, path))
        asked = (engine.generate(p.prompt_token_ids, p.params, candidate) for p in probes)
        answers = await asyncio.gather(*asked)
        found.append("the engine loaded it")
        found.append(_read(probes, answers, config.min_format))
        if holdout is not None:
            outcomes = await holdout(candidate, current)
            # A version that loses is refused for that, suspect or not.
            found.append(_compare(outcomes, config))
            if outcomes.concerns:
                raise DeploymentError("; ".join(outcomes.concerns))
            found.append("nothing is suspect")
    except RlforgeError as error:
        failed = [Check(name=_NAMES[len(found)], passed=False, detail=str(error))]
    else:
        failed = []
    passed = zip(_NAMES, found, strict=False)
    checks = [Check(name=name, passed=True, detail=detail) for name, detail in passed]
    return Report(checks=(*checks, *failed), files=files)


def _read(probes: Sequence[Probe], answers: Sequence[Completion], wanted: float) -> str:
    read = [p.well_formed(a.text) for p, a in zip(probes, answers, strict=True)]
    detail = f"{sum(read)} of {len(read)} answers can be read; {wanted:.0%} must be"
    if sum(read) / len(read) < wanted:
        unread = answers[read.index(False)].text[:80]
        raise DeploymentError(f"{detail}; one that cannot: {unread!r}")
    return detail


def _compare(outcomes: PairedOutcomes, config: DeploymentConfig) -> str:
    try:
        if len(outcomes.candidate) != len(outcomes.current):
            raise DeploymentError(
                f"the held-out set gave {len(outcomes.candidate)} rewards of the new version "
                f"and {len(outcomes.current)} of the current one"
            )
        result = compare(outcomes, margin=config.margin, alpha=config.alpha, test=config.test)
    except ValueError as error:
        raise DeploymentError(str(error)) from error
    if not result.passed:
        raise DeploymentError(str(result))
    return str(result)
