"""What is asked of a new version before it is served, in this order; the first "no" ends it.

files      every file is there and as its manifest says
fit        same base model, target modules and rank
finite     no weight is NaN or infinite
loads      the engine takes it
format     probes are answered in the format that games can read
holdout    not worse than the current version by more than a margin
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from rlforge.config.schema import ModelConfig
from rlforge.config.serving import DeploymentConfig
from rlforge.engines.base import Generator
from rlforge.errors import DeploymentError, RlforgeError
from rlforge.serving.adapter import WeightCheck, fingerprint
from rlforge.serving.records import Check, Holdout, Probe
from rlforge.serving.statistics import compare
from rlforge.types import Completion, PolicyRef, value


@value
class Report:
    """checks: those made, the last one failed unless ``passed``. files: digests by name."""

    checks: tuple[Check, ...]
    files: dict[str, str]

    @property
    def passed(self) -> bool:
        """Whether the version may be served."""
        return all(check.passed for check in self.checks)

    @property
    def reason(self) -> str:
        """Why not; empty where it may."""
        return next((f"{c.name}: {c.detail}" for c in self.checks if not c.passed), "")


class Validator:
    """Asks ``engine`` and the disk; holds no state between versions."""

    def __init__(
        self,
        engine: Generator,
        config: DeploymentConfig,
        model: ModelConfig,
        probes: Sequence[Probe],
    ) -> None:
        self._engine, self._config, self._probes = engine, config, tuple(probes)
        self._weights = WeightCheck(model)

    async def validate(
        self, candidate: PolicyRef, current: PolicyRef, holdout: Holdout | None
    ) -> Report:
        """All checks of ``candidate``, whose path is set; ``holdout`` None skips the comparison."""
        path = Path(candidate.path_or_name or "")
        checks: list[Check] = []
        files: dict[str, str] = {}

        async def made(name: str, look: Callable[[], str]) -> bool:
            try:
                detail = await asyncio.to_thread(look)
            except RlforgeError as error:
                checks.append(Check(name=name, passed=False, detail=str(error)))
                return False
            checks.append(Check(name=name, passed=True, detail=detail))
            return True

        def read_files() -> str:
            files.update(fingerprint(path))
            return f"{len(files)} files"

        if not (
            await made("files", read_files)
            and await made("fit", lambda: self._weights.check_fit(path))
            and await made("finite", lambda: self._weights.check_finite(path))
        ):
            return Report(checks=tuple(checks), files=files)
        checks += await self._answers(candidate)
        if checks[-1].passed and holdout is not None:
            checks.append(await self._holds(candidate, current, holdout))
        return Report(checks=tuple(checks), files=files)

    async def _answers(self, candidate: PolicyRef) -> list[Check]:
        """Loading and format: one follows from asking the probes."""
        try:
            answers = await self.ask(candidate)
        except RlforgeError as error:
            return [Check(name="loads", passed=False, detail=str(error))]
        return [Check(name="loads", passed=True, detail="the engine took it"), self.format(answers)]

    async def ask(self, policy: PolicyRef) -> list[Completion]:
        """Its answers to all probes."""
        return await asyncio.gather(
            *(self._engine.generate(p.prompt_token_ids, p.params, policy) for p in self._probes)
        )

    def format(self, answers: Sequence[Completion]) -> Check:
        """Whether enough answers can be read."""
        read = [p.well_formed(a.text) for p, a in zip(self._probes, answers, strict=True)]
        share, wanted = sum(read) / len(read), self._config.min_format
        detail = f"{sum(read)} of {len(read)} answers can be read; {wanted:.0%} must be"
        if share < wanted:
            detail += f"; one that cannot: {answers[read.index(False)].text[:80]!r}"
        return Check(name="format", passed=share >= wanted, detail=detail)

    async def _holds(self, candidate: PolicyRef, current: PolicyRef, holdout: Holdout) -> Check:
        """Not worse than the current version."""
        config = self._config
        try:
            outcomes = await holdout(candidate, current)
            if len(outcomes.candidate) != len(outcomes.current):
                raise DeploymentError(
                    f"the held-out set gave {len(outcomes.candidate)} rewards of the new version "
                    f"and {len(outcomes.current)} of the current one"
                )
            result = compare(outcomes, margin=config.margin, alpha=config.alpha, test=config.test)
        except (RlforgeError, ValueError) as error:
            return Check(name="holdout", passed=False, detail=str(error))
        return Check(name="holdout", passed=result.passed, detail=str(result))
