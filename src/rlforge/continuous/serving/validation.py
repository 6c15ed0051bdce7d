"""The checks of a new version before it is served, in this order; the first failure ends them.

files      every file exists and has the digest in its manifest
fit        same base model, target modules and rank
finite     no weight is NaN or infinite
loads      the engine loads it and answers the probes
format     enough answers have the format that games can read
holdout    not worse than the current version by more than a margin
conduct    earns its rewards there by what they stand for, where the held-out set can tell
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from rlforge.config.model import ModelConfig
from rlforge.continuous.config.serving import DeploymentConfig
from rlforge.continuous.serving.adapter import check_fit, fingerprint
from rlforge.continuous.serving.records import Check, Holdout, PairedOutcomes, Probe
from rlforge.continuous.serving.statistics import compare
from rlforge.engines.base import Generator
from rlforge.errors import DeploymentError, RlforgeError
from rlforge.models.finite import check_finite
from rlforge.types import Completion, PolicyRef, value


@value
class Report:
    """checks: those made; only the last one may have failed. files: digests by name."""

    checks: tuple[Check, ...]
    files: dict[str, str]

    @property
    def passed(self) -> bool:
        """Whether the version may be served."""
        return self.checks[-1].passed

    @property
    def reason(self) -> str:
        """Name and detail of the last check."""
        return f"{self.checks[-1].name}: {self.checks[-1].detail}"


class Validator:
    """Checks new versions on ``engine``; holds no state between them."""

    def __init__(
        self,
        engine: Generator,
        config: DeploymentConfig,
        model: ModelConfig,
        probes: Sequence[Probe],
    ) -> None:
        self._engine, self._config, self._model = engine, config, model
        self._probes = tuple(probes)

    async def validate(
        self, candidate: PolicyRef, current: PolicyRef, holdout: Holdout | None
    ) -> Report:
        """Check ``candidate``, whose path is set. holdout: None skips the comparison."""
        path = Path(candidate.path_or_name or "")
        files: dict[str, str] = {}
        answers: list[Completion] = []

        async def read_files() -> str:
            files.update(await asyncio.to_thread(fingerprint, path))
            return f"{len(files)} files"

        async def load() -> str:
            engine = self._engine
            asked = (engine.generate(p.prompt_token_ids, p.params, candidate) for p in self._probes)
            answers.extend(await asyncio.gather(*asked))
            return "the engine loaded it"

        async def read_answers() -> str:
            read = [p.well_formed(a.text) for p, a in zip(self._probes, answers, strict=True)]
            wanted = self._config.min_format
            detail = f"{sum(read)} of {len(read)} answers can be read; {wanted:.0%} must be"
            if sum(read) / len(read) < wanted:
                unread = answers[read.index(False)].text[:80]
                raise DeploymentError(f"{detail}; one that cannot: {unread!r}")
            return detail

        steps: dict[str, Callable[[], Awaitable[str]]] = {
            "files": read_files,
            "fit": lambda: asyncio.to_thread(check_fit, path, self._model),
            "finite": lambda: asyncio.to_thread(check_finite, path),
            "loads": load,
            "format": read_answers,
        }
        if holdout is not None:
            concerns: list[str] = []

            async def compare_rewards() -> str:
                outcomes = await holdout(candidate, current)
                concerns.extend(outcomes.concerns)
                return self._compare(outcomes)

            async def read_concerns() -> str:
                if concerns:
                    raise DeploymentError("; ".join(concerns))
                return "nothing is suspect"

            steps |= {"holdout": compare_rewards, "conduct": read_concerns}
        checks = []
        for name, step in steps.items():
            try:
                checks.append(Check(name=name, passed=True, detail=await step()))
            except RlforgeError as error:
                checks.append(Check(name=name, passed=False, detail=str(error)))
                break
        return Report(checks=tuple(checks), files=files)

    def _compare(self, outcomes: PairedOutcomes) -> str:
        config = self._config
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
