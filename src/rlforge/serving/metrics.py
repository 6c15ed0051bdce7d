"""Numbers of the service in the form that Prometheus reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rlforge.engines.base import Engine
from rlforge.serving.records import Deployment
from rlforge.serving.service import DeploymentService

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """What is counted; one registry per service, so that several fit in a process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "rlforge_requests", "Requests by path and status", ["path", "status"], registry=registry
        )
        self._seconds = Histogram(
            "rlforge_request_seconds",
            "Seconds from request to end of answer",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.first_token = Histogram(
            "rlforge_first_token_seconds",
            "Seconds from request to first text of streamed answers",
            buckets=_SECONDS,
            registry=registry,
        )
        self.under_way = Gauge(
            "rlforge_requests_under_way", "Requests being answered", registry=registry
        )
        self.tokens = Counter(
            "rlforge_tokens", "Tokens by kind: prompt, generated", ["kind"], registry=registry
        )
        self.answers = Counter(
            "rlforge_answers",
            "Answers by who gave them: current, trial",
            ["arm"],
            registry=registry,
        )
        self.outcomes = Counter(
            "rlforge_outcomes", "Outcomes by whether they counted", ["counted"], registry=registry
        )
        self._deployments = Counter(
            "rlforge_deployments", "Deployments by what they ended in", ["end"], registry=registry
        )
        self._current = Gauge(
            "rlforge_current_version", "Number of the version served", registry=registry
        )
        self._share = Gauge(
            "rlforge_trial_share", "Share of users with the version on trial", registry=registry
        )
        self._p_value = Gauge(
            "rlforge_trial_p_value", "Always-valid p-value of the trial", registry=registry
        )
        self._engine = Gauge(
            "rlforge_engine", "Counters of the engine since its start", ["what"], registry=registry
        )

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """A request has ended; status 0: without an answer."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def on_phase(self, deployment: Deployment) -> None:
        """Counts deployments that ended."""
        if deployment.phase in ("live", "rejected", "failed", "rolled_back"):
            self._deployments.labels(deployment.phase).inc()

    def render(self, service: DeploymentService, engine: Engine) -> bytes:
        """The page, with what is true now."""
        self._current.set(service.current.number)
        trial = service.trial
        self._share.set(trial.share if trial is not None else 0.0)
        self._p_value.set(trial.test.p_value if trial is not None else 1.0)
        stats = engine.stats()
        for what in (
            "queued",
            "running",
            "requests",
            "prompt_tokens",
            "generated_tokens",
            "busy_s",
        ):
            self._engine.labels(what).set(getattr(stats, what))
        page: bytes = generate_latest(self._registry)
        return page
