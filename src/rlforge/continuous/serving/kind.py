"""Services that answer requests with a policy (``rlforge serve``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlforge.config.schema import HardwareConfig
from rlforge.continuous.config.serving import ServingConfig
from rlforge.kinds import RunKind
from rlforge.specs import ActorSpec, engine_node
from rlforge.system.packages import need_packages
from rlforge.types import PolicyRef

if TYPE_CHECKING:
    from rlforge.config.compose import Composed

#: How often dead engines of a service are restarted before it ends.
RESTARTS = 100


class Serving(RunKind[ServingConfig]):
    """A service; it trains nothing, and ``rlforge.continuous.serving.server`` runs it."""

    root = ServingConfig

    def check(self, composed: Composed[ServingConfig], *, keys: bool = True) -> None:
        from rlforge.continuous.preflight.serving import check_service

        if keys:
            need_packages("rlforge serve", "continuous", "fastapi", "uvicorn", "prometheus_client")
        check_service(composed, keys=keys)

    def opponents(self, config: ServingConfig) -> Mapping[str, Sequence[PolicyRef]]:
        from rlforge.league.names import parse_opponent

        rival = config.deployment.holdout_opponent
        if not config.deployment.holdout_games:
            return {}
        return {"deployment.holdout_opponent": [parse_opponent(rival)]}

    def nodes(self, config: ServingConfig, hardware: HardwareConfig) -> tuple[ActorSpec, ...]:
        service = ActorSpec(
            name="service",
            actor=None,
            reads=("deployment", "serve"),
            sends=(
                ("engine", "prompt ids, sampling parameters, policy"),
                ("engine", "adapter version"),
            ),
        )
        engine = engine_node(config, hardware, ("service", "Completion"))
        return dataclasses.replace(engine, restarts=RESTARTS), service


SERVING = Serving()
