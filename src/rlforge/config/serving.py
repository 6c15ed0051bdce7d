"""The configuration of deployments and of the HTTP service (groups ``deployment``, ``serve``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlforge.config.rules import Group
from rlforge.config.schema import GamesConfig

TESTS = ("t", "wilcoxon", "sign")


@dataclass
class AbTestConfig(Group):
    """How a new version is tried beside the current one; only ``strategy: ab_test`` reads it."""

    #: Shares of users that get the new version, one after the other.
    shares: list[float] = field(default_factory=lambda: [0.1, 0.25, 0.5])
    #: Outcomes of the new version after which the next share holds.
    step_outcomes: int = 100
    #: Chance of a decision where there is no difference, however often one looks.
    alpha: float = 0.05
    #: Difference of mean rewards that the test is best at finding (sd of the normal mixture).
    effect: float = 0.1
    #: Outcomes of each version before the test may decide.
    min_outcomes: int = 50
    #: Outcomes of the new version after which an undecided test ends.
    max_outcomes: int = 2000
    #: What an undecided test ends in: ``keep`` the current version or ``promote`` the new one.
    undecided: str = "keep"


@dataclass
class DeploymentConfig(Group):
    """From an adapter to a version that is served (group ``deployment``)."""

    #: ``replace`` (everybody at once) or ``ab_test`` (a share of the users first).
    strategy: str = "replace"
    #: Prompts that a new version must answer, at least 1.
    probes: int = 8
    #: Share of the probes whose answer must have the format of ``model.action_extraction``.
    min_format: float = 0.9
    #: Most tokens in the answer to a probe.
    probe_tokens: int = 256
    #: Games played with the new and with the current version; 0: versions are not compared.
    holdout_games: int = 200
    #: Opponent in those games: a scripted player or ``base``.
    holdout_opponent: str = "random_legal"
    #: Loss of mean reward that is accepted.
    margin: float = 0.25
    #: Chance of letting a version pass that is worse than that.
    alpha: float = 0.05
    #: Test of the paired differences: ``t``, ``wilcoxon`` or ``sign``.
    test: str = "t"
    #: Seconds for each step of a deployment, the games of the comparison among them.
    timeout_s: float = 600.0
    #: Former versions kept on disk to roll back to.
    keep: int = 5
    #: Trials of ``strategy: ab_test``.
    ab: AbTestConfig = field(default_factory=AbTestConfig)


@dataclass
class ServeConfig(Group):
    """The HTTP service (group ``serve``)."""

    #: Address to listen on; anything but loopback needs the token in every request.
    host: str = "127.0.0.1"
    #: Port; 0 takes a free one.
    port: int = 8000
    #: Ask for the token on loopback, too (behind a proxy all requests come from there).
    require_token: bool = False
    #: Folder of the service's state; null: RUN/deployments, or deployments/ without a run.
    state_dir: str | None = None
    #: Name of the model in requests; null: ``name`` of the experiment.
    model_name: str | None = None
    #: Bytes of a request's body.
    max_body_bytes: int = 1048576
    #: Seconds within which a body must have arrived.
    body_timeout_s: float = 10.0
    #: Seconds within which a request must be answered.
    request_timeout_s: float = 120.0
    #: Requests answered at once; more are told to try again.
    max_concurrent: int = 64
    #: Most tokens of an answer whose request names no limit.
    default_max_tokens: int = 256
    #: Seconds that requests under way get when the service stops.
    drain_s: float = 30.0
    #: How often dead engines are restarted before the service ends.
    max_engine_restarts: int = 100


@dataclass
class ServingConfig(GamesConfig):
    """A service: the model and engine of an experiment, and how it is served and replaced."""

    primary = "serving"
    command = "serve"
    about = "a service"

    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
