"""Metrics of the service for Prometheus."""

from __future__ import annotations

import functools

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rlforge.continuous.serving.records import Deployment
from rlforge.continuous.serving.service import DeploymentService
from rlforge.engines.base import Engine

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_ENGINE = (
    "queued",
    "running",
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "busy_s",
)


class Metrics:
    def __init__(self) -> None:
        # The library's own registry would mix the numbers of all services of a process.
        self._registry = CollectorRegistry()
        counter, gauge, histogram = (
            functools.partial(kind, registry=self._registry) for kind in (Counter, Gauge, Histogram)
        )
        self._requests = counter(
            "rlforge_requests", "Requests by path and status", ["path", "status"]
        )
        self._seconds = histogram(
            "rlforge_request_seconds",
            "Seconds from request to end of answer",
            ["path"],
            buckets=_SECONDS,
        )
        self.first_token = histogram(
            "rlforge_first_token_seconds",
            "Seconds from request to first text of streamed answers",
            buckets=_SECONDS,
        )
        self.under_way = gauge("rlforge_requests_under_way", "Requests being answered")
        self.tokens = counter("rlforge_tokens", "Tokens by kind: prompt, generated", ["kind"])
        self.answers = counter("rlforge_answers", "Answers by version: current, trial", ["arm"])
        self.outcomes = counter("rlforge_outcomes", "Outcomes by whether they counted", ["counted"])
        self._deployments = counter("rlforge_deployments", "Deployments by final phase", ["end"])
        self._current = gauge("rlforge_current_version", "Number of the version served")
        self._share = gauge("rlforge_trial_share", "Share of users with the version on trial")
        self._p_value = gauge("rlforge_trial_p_value", "Always-valid p-value of the trial")
        self._engine = gauge("rlforge_engine", "Counters of the engine since its start", ["what"])

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request that has ended; status 0: without an answer."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def on_phase(self, deployment: Deployment) -> None:
        if deployment.phase in ("live", "rejected", "failed", "rolled_back"):
            self._deployments.labels(deployment.phase).inc()

    def render(self, service: DeploymentService, engine: Engine) -> bytes:
        self._current.set(service.current.number)
        trial = service.trial
        self._share.set(trial.share if trial is not None else 0.0)
        self._p_value.set(trial.test.p_value if trial is not None else 1.0)
        stats = engine.stats()
        for what in _ENGINE:
            self._engine.labels(what).set(getattr(stats, what))
        page: bytes = generate_latest(self._registry)
        return page
