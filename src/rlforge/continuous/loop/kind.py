"""Runs that train for ever, on one window of decisions after another (``rlforge continuous``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlforge.config.schema import HardwareConfig
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.errors import ConfigError, command_line
from rlforge.kinds import Asked, Controller, RunKind
from rlforge.specs import ActorSpec, engine_node, learner_node, tracker_node
from rlforge.system.packages import need_packages
from rlforge.types import PolicyRef

if TYPE_CHECKING:
    from rlforge.config.compose import Composed

#: Modules that the extra ``continuous`` brings.
PACKAGES = ("fastapi", "uvicorn", "httpx", "prometheus_client", "sklearn", "llguidance")

#: Models that rlforge makes, and those of them that know markets.
_TINY, _OF_MARKETS = ("tiny", "tiny_market", "tiny_social"), ("tiny_market", "tiny_social")
#: Learning rates below and above which those of tiny models and of others are unusual.
_TINY_RATE, _MODEL_RATE = 1e-4, 1e-3

#: Decisions that are searched for one of the model.
_SEARCHED = 64


class Continuous(RunKind[ContinuousConfig]):
    """Windows of agents' decisions, or of episodes and requests."""

    root = ContinuousConfig
    # The driver holds market, store and scorer.
    host_bytes = 1150 * 2**20
    unit = "window"
    recorded = "rlforge.continuous.loop.journal:RecordedWindows"
    report = "rlforge.continuous.report:page"
    results = "rlforge.continuous.report:results"
    progress = "rlforge.continuous.view:window_sections"

    def check(self, composed: Composed[ContinuousConfig], *, keys: bool = True) -> None:
        from rlforge.continuous.preflight.continuous import check_continuous

        if keys:
            need_packages("rlforge continuous", "continuous", *PACKAGES)
        check_continuous(composed, keys=keys)

    def check_prompts(self, config: ContinuousConfig) -> None:
        from rlforge.continuous.preflight.continuous import check_answers

        # Without a market the prompts are not known before the run.
        if config.has_market:
            check_answers(config, config.market)

    def opponents(self, config: ContinuousConfig) -> Mapping[str, Sequence[PolicyRef]]:
        from rlforge.league.names import parse_opponent

        return {"market.traders": [*map(parse_opponent, config.model_traders)]}

    def notes(self, composed: Composed[ContinuousConfig]) -> Iterator[str]:
        config, rate = composed.config, composed.said("learner.learning_rate")
        tiny = config.model.kind in _TINY
        if tiny and config.learner.learning_rate < _TINY_RATE:
            yield (
                f"{rate} is for language models: in a hundred windows the policy of a model of "
                f"model.kind={config.model.kind} will hardly move; learner=tiny_window has a rate "
                "for it"
            )
        elif not tiny and config.learner.learning_rate > _MODEL_RATE:
            yield (
                f"{rate} is for tiny models, and moves a language model far in each window; "
                "learner=window_grpo has the document's values"
            )

    def forecast(self, config: ContinuousConfig) -> str | None:
        fast = config.model.kind in _OF_MARKETS and config.learner.learning_rate >= _TINY_RATE
        learns = "the tiny model's mean reward rises within some eight windows" if fast else ""
        return "; ".join(filter(None, (learns, config.growth))) or None

    def nodes(self, config: ContinuousConfig, hardware: HardwareConfig) -> tuple[ActorSpec, ...]:
        def part(name: str, read: tuple[str, ...], *sends: tuple[str, str]) -> ActorSpec:
            return ActorSpec(name=name, actor=None, reads=read, sends=sends)

        # Parts without an actor of their own are shown in plans, and not started.
        read = ("store", "window", "decision_reward")
        store = part("store", read, ("scorer", "TrainingWindow"), ("learner", "TrainBatch"))
        asked = ("engine", "prompt ids, sampling parameters, policy")
        deployment = part(
            "deployment", ("deployment", "serve"), asked, ("engine", "adapter version")
        )
        of_agent, of_user = (("deployment", f"prompt ids, {who}") for who in ("agent", "user"))
        made, decided = ("store", "Decision"), ("store", "Decision, Outcome")
        asking = {
            "market": (part("market", ("market", "traders", "continuous"), of_agent, decided),),
            "episodes": (part("episodes", ("episodes", "continuous"), of_agent, made),),
            "requests": (part("clients", ("requests", "serve"), of_user, decided),),
            "store": (),
        }[config.continuous.source]
        return (
            tracker_node("rlforge.continuous.tracker:WindowTrackerActor"),
            learner_node(
                config, hardware, ("deployment", "Checkpoint"), ("tracker", "metrics of the window")
            ),
            engine_node(
                config, hardware, *((node.name, "Completion") for node in asking or (deployment,))
            ),
            *asking,
            store,
            part("scorer", ("ruler",), ("learner", "Scores")),
            deployment,
        )

    def controller(self, config: ContinuousConfig) -> Callable[[Any], Controller]:
        from rlforge.continuous.loop.run import ContinuousRun

        return ContinuousRun

    def check_resumable(self, config: ContinuousConfig, run_dir: Path) -> None:
        from rlforge.continuous.loop.journal import check_windows_left

        check_windows_left(run_dir, config.continuous.windows)

    def longer(self, config: ContinuousConfig, more: int) -> ContinuousConfig:
        windows = config.continuous.windows
        if windows is None:
            raise ConfigError("--more: the run has no last window; resume it without")
        settings = dataclasses.replace(config.continuous, windows=windows + more)
        return dataclasses.replace(config, continuous=settings)

    def saved(self, run_dir: Path) -> str:
        return "with the finished phases of its windows saved; go on with"

    def next_steps(self, config: ContinuousConfig, run_dir: Path) -> list[str]:
        return [command_line("serve", run_dir), command_line("windows", "list", run_dir)]

    def learned(self, config: ContinuousConfig, policy: str) -> str:
        return "its own decisions in a market with scripted traders"

    def asked(self, config: ContinuousConfig, run_dir: Path, policy: str) -> Iterator[Asked]:
        from rlforge.continuous.decisions.store import StoreReader, store_folder
        from rlforge.rollout.lineup import form_of

        folder = store_folder(config.store, run_dir)
        if not folder.is_dir():
            return
        for decision in StoreReader(folder).newest(_SEARCHED, complete=True):
            made = decision.completion
            if made is not None and made.prompt_token_ids:
                ids, form = made.prompt_token_ids, form_of(config.model)
                yield Asked(ids, form, decision.observation)

    def samples(self, config: ContinuousConfig, run_dir: Path, update: int | None) -> Any:
        raise ConfigError(
            f"{run_dir} learns from decisions in windows of time: rlforge windows decisions RUN "
            "WINDOW"
        )


CONTINUOUS = Continuous()
