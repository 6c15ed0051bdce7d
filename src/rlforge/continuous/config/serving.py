"""The configuration of deployments and of the HTTP service (groups ``deployment``, ``serve``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Literal

from rlforge.config.rules import (
    Count,
    Group,
    Length,
    NotNegative,
    Number,
    Positive,
    Probability,
    Problem,
    Range,
    Share,
    Text,
    Whole,
)
from rlforge.config.schema import GamesConfig


@dataclass
class AbTestConfig(Group):
    """Trial of a new version on a share of the users, for ``strategy: ab_test``."""

    #: Shares of users that get the new version, one after the other.
    shares: Annotated[list[Probability], Length(1, inf)] = field(
        default_factory=lambda: [0.1, 0.25, 0.5]
    )
    #: Outcomes of both versions after which the next share holds.
    step_outcomes: Count = 500
    #: Probability of a verdict where there is no difference, over all looks at the data.
    alpha: Probability = 0.05
    #: Outcomes of both versions after which an undecided test ends.
    max_outcomes: Count = 40000
    #: After an undecided test ``keep`` the current version or ``promote`` the new one.
    undecided: Literal["keep", "promote"] = "keep"

    def clashes(self) -> Iterator[Problem]:
        # Else a user with the new version would lose it again.
        if self.shares != sorted(self.shares):
            yield "shares", "must rise from the smallest to the largest"


@dataclass
class DeploymentConfig(Group):
    """From an adapter to a version that is served (group ``deployment``)."""

    #: ``replace`` for all users at once, or ``ab_test`` with a share of the users first.
    strategy: Literal["replace", "ab_test"] = "replace"
    #: Share of the probes whose answer must have the format of ``model.action_extraction``.
    min_format: Share = 0.9
    #: Games, or episodes in a market, played with the new and with the current version; 0, or
    #: without games and market: versions are not compared.
    holdout_games: Whole = 200
    #: Opponent in those games: a scripted player, ``base``, ``hf:ORG/MODEL`` or ``hf:FOLDER``.
    holdout_opponent: Text = "random_legal"
    #: Loss of mean reward that is acceptable.
    margin: NotNegative = 0.25
    #: Probability of accepting a version that is worse by more than ``margin``.
    alpha: Probability = 0.05
    #: Test of the paired differences: ``t``, ``wilcoxon`` or ``sign``.
    test: Literal["t", "wilcoxon", "sign"] = "t"
    #: Refuse a version that exploits the reward: whose profit in held-out markets does not rise
    #: with its rewards, which puts money at stake much less often, or whose answers are refused
    #: more often. Without a market nothing is checked.
    check_conduct: bool = True
    #: Time-out in seconds of each step of a deployment, held-out games included.
    timeout_s: Positive = 600.0
    #: Previous versions kept on disk for a rollback.
    keep: Count = 5
    #: Serve the base model where no trained version can be served, as when its files are damaged;
    #: else that is an error. A rollback that is asked for may always end there.
    fall_back_to_base: bool = False
    #: Trials of ``strategy: ab_test``.
    ab: AbTestConfig = field(default_factory=AbTestConfig)

    def clashes(self) -> Iterator[Problem]:
        # One difference has no deviation to test against.
        if self.holdout_games == 1:
            yield "holdout_games", "must be 0, or 2 or more"


@dataclass
class ServeConfig(Group):
    """The HTTP service (group ``serve``)."""

    #: Address to listen on; anything but loopback needs the token.
    host: Text = "127.0.0.1"
    #: Port; 0 takes a free one.
    port: Annotated[int, Range(0, 65535)] = 8000
    #: The page that shows a service: at /watch where requests are answered, else, in a continuous
    #: run, at this port of 127.0.0.1; 0 takes a free one. null: none.
    page: Annotated[int, Range(0, 65535)] | None = 0
    #: Require the token on loopback, too (behind a proxy all requests come from there).
    require_token: bool = False
    #: Folder of the service's state; null: RUN/deployments, or deployments/ without a run.
    state_dir: Text | None = None
    #: Seconds within which a request must be answered.
    request_timeout_s: Positive = 120.0
    #: Requests answered at once; further ones get status 429.
    max_concurrent: Count = 64
    #: Least reward that a client may report (``POST /v1/outcomes``).
    outcome_low: Number = -1.0
    #: Largest reward that a client may report.
    outcome_high: Number = 1.0
    #: Seconds for running requests to finish when the service stops.
    drain_s: Positive = 30.0

    def clashes(self) -> Iterator[Problem]:
        # Equal bounds would leave only one reward to report.
        if not self.outcome_low < self.outcome_high:
            yield "outcome_low", f"must be below serve.outcome_high={self.outcome_high:g}"


@dataclass
class ServingConfig(GamesConfig):
    """A service: the model and engine of an experiment, and how it is served and replaced."""

    kind = "serve"
    primary = "serving"
    command = "serve"
    about = "a service"

    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
