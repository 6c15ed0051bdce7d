"""Starts and stops the HTTP service: configuration, engines, socket."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import math
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.types import ASGIApp

from rlforge.config.compose import run_yaml
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.config.serving import ServingConfig
from rlforge.continuous.serving import kind
from rlforge.continuous.serving.client import ADDRESS_FILE, PAGE
from rlforge.continuous.serving.metrics import Metrics
from rlforge.continuous.serving.records import AnswerObserver, Deployment, Holdout, Probe
from rlforge.continuous.serving.service import DeploymentService
from rlforge.continuous.serving.setup import ServiceSetup
from rlforge.continuous.serving.tokens import AnswerIds, Tokens, make_tokens
from rlforge.engines.base import Engine
from rlforge.errors import ConfigError, DeploymentError, RunError, first_line
from rlforge.kinds import Say
from rlforge.preflight.plan import RunPlan, make_plan
from rlforge.preflight.surroundings import require
from rlforge.system import signals
from rlforge.system.files import atomic_write
from rlforge.system.hardware import detect, prepare_ray
from rlforge.system.locks import RunLock, claim_gpus
from rlforge.system.loops import Interrupts, wait_for
from rlforge.system.network import is_loopback
from rlforge.types import value

if TYPE_CHECKING:
    from rlforge.run.actors.session import RayProcesses

log = logging.getLogger(__name__)

_NEVER_SERVED = ("rejected", "failed", "interrupted")


@value
class Checks:
    probes: Sequence[Probe]
    holdout: Holdout | None


MakeChecks = Callable[[Engine, Any], Checks]
"""Makes the checks of new versions, for the engine that answers and its tokenizer."""


def serve(setup: ServiceSetup, say: Say, checks: MakeChecks | None = None) -> None:
    """Serve until a signal, which raises KeyboardInterrupt once requests under way are finished.

    checks: checks of new versions; None: games of the configuration. Raises ConfigError before
    anything starts, DeploymentError when no version can be served, RunError when an engine died too
    often.
    """
    from rlforge.models.load import check_source, resolve_model

    for note in require(setup.config, setup.state_dir):
        say(f"note: {note}")
    plan = make_plan(setup.config, detect())
    config = plan.config
    check_source(config.model)
    prepare_ray(plan.hardware)
    cards = math.ceil(config.engine.num_engines * plan.hardware.engine_gpus)
    state_dir = setup.state_dir.absolute()
    with (
        signals.warned_by(config.hardware.warning_signal),
        claim_gpus(plan.hardware, cards) as claimed,
    ):
        # Other runs may hold some of the cards, so the plan may change.
        plan = make_plan(setup.config, detect(), claimed=claimed)
        with signals.held():  # which leaves no half of a folder
            state_dir.mkdir(parents=True, exist_ok=True)
            # The lock is released again, because the service acquires it itself.
            with RunLock(state_dir):
                tokens = make_tokens(state_dir)
                atomic_write(state_dir / "config.yaml", run_yaml(config))
        # Before the engine, which takes minutes, because the address may be taken.
        with contextlib.closing(listen(config.serve.host, config.serve.port)) as listener:
            # Imported late: Ray takes seconds, and the errors above should not wait for it.
            from rlforge.run.actors.session import ray_started

            resolve_model(config.model, say)
            with ray_started(plan.hardware, plan.num_cpus) as ray_processes:
                setup = dataclasses.replace(setup, state_dir=state_dir)
                interrupts = Interrupts()
                serving = _serve(
                    setup, plan, ray_processes, tokens, listener, say, checks, interrupts
                )
                wait_for(serving, interrupts.heard)
    raise KeyboardInterrupt("as it served; the service has stopped")


async def _serve(
    setup: ServiceSetup,
    plan: RunPlan[ServingConfig],
    ray_processes: RayProcesses,
    tokens: Tokens,
    listener: socket.socket,
    say: Say,
    checks: MakeChecks | None,
    interrupts: Interrupts,
) -> None:
    from rlforge.record.files import open_log
    from rlforge.run.actors.cluster import start_actors
    from rlforge.run.actors.ends import reason
    from rlforge.run.actors.engine_client import REPORT_POLL_S, RemoteEngine

    config, state_dir = plan.config, setup.state_dir
    open_log("service", str(state_dir))
    say("starting the engine")
    try:
        starting = start_actors(plan, state_dir)
        actors = await ray_processes.during(starting)
        for line in await actors.about_engines():
            say(line)
    except Exception as error:
        # Ray wraps what a constructor raised.
        why = reason(error, state_dir, ray_processes.memory)
        raise RunError(f"the engine could not be started: {why}") from error
    engine = RemoteEngine(
        actors.engines,
        "service",
        timeout_s=config.engine.request_timeout_s,
        poll_s=REPORT_POLL_S,
        elastic=config.hardware.elastic,
    )
    try:
        async with assembled(
            config, state_dir, tokens, engine, checks=checks, ready=lambda: engine.ready
        ) as (service, app):
            await _begin(service, setup.source, say)
            say(f"serving {service.current.uid} at {url_of(listener)}/v1, state in {state_dir}")
            if config.serve.page is not None:
                say(f"watch it at {url_of(listener)}{PAGE}")
            if config.serve.require_token or not is_loopback(config.serve.host):
                say("every request needs the token: see rlforge serve --help")
            stop = asyncio.Event()
            interrupts.connect(stop.set)
            ends = stop.wait(), engine.gone(), ray_processes.gone()
            with found_at(state_dir, url_of(listener)):
                await answer_requests(app, listener, *ends, drain_s=config.serve.drain_s)
    finally:
        await engine.close()
        await actors.come_home()
    if not stop.is_set():
        if (death := engine.death) is None:
            raise ray_processes.ended() or RunError("Ray has ended")
        why = reason(death, state_dir, ray_processes.memory)
        raise RunError(
            f"an engine died more than {kind.RESTARTS} times: {why}; see {state_dir}/logs"
        )


@contextlib.asynccontextmanager
async def assembled(
    config: ServingConfig,
    state_dir: Path,
    tokens: Tokens,
    engine: Engine,
    *,
    checks: MakeChecks | None = None,
    ready: Callable[[], bool] = lambda: True,
    on_phase: Callable[[Deployment], None] = lambda deployment: None,
) -> AsyncIterator[tuple[DeploymentService, ASGIApp]]:
    """The deployments in ``state_dir`` over ``engine``, and the HTTP application over them."""
    from rlforge.continuous.serving.game_checks import GameHoldout, game_probes
    from rlforge.models.load import load_tokenizer, stop_token_ids

    tokenizer = load_tokenizer(config.model)
    stops = stop_token_ids(config.model, tokenizer)
    settings, metrics = config.deployment, Metrics()
    if checks is None:
        games = GameHoldout(config, engine, tokenizer, stops) if settings.holdout_games else None
        tests = Checks(probes=game_probes(config, tokenizer, stops), holdout=games)
    else:
        tests = checks(engine, tokenizer)

    def count(deployment: Deployment) -> None:
        metrics.on_phase(deployment)
        on_phase(deployment)

    service = await DeploymentService.open(
        state_dir,
        engine,
        settings,
        config.model,
        tests.probes,
        holdout=tests.holdout,
        on_phase=count,
        rewards=(config.serve.outcome_low, config.serve.outcome_high),
    )
    try:
        yield service, http_over(service, engine, config, tokens, metrics, ready=ready)
    finally:
        await service.close()


def http_over(
    service: DeploymentService,
    engine: Engine,
    config: ServingConfig | ContinuousConfig,
    tokens: Tokens,
    metrics: Metrics,
    *,
    ready: Callable[[], bool] = lambda: True,
    observer: AnswerObserver | None = None,
    clients: bool = True,
) -> ASGIApp:
    """The HTTP application over an open service, whose ``on_phase`` is that of ``metrics``.

    clients: whether it answers requests of clients.
    """
    from rlforge.continuous.serving.answering import Answering
    from rlforge.continuous.serving.app import Api, make_app
    from rlforge.continuous.serving.page import Page

    answering = None
    if clients:
        answering = Answering(service, config, AnswerIds(tokens.admin), observer)
    api = Api(service, engine, answering, config.serve, tokens, metrics, ready)
    shown = config.serve.page is not None
    page = Page(service, tokens, config.serve, config.name) if shown else None
    return make_app(api, metrics.count_request, page)


async def _begin(service: DeploymentService, source: Path | None, say: Say) -> None:
    if service.fell_back:
        say(service.fell_back)
    past = service.history()[1:]
    # A later start serves what was served last, whatever the run has learned since.
    if source is not None and all(d.phase in _NEVER_SERVED for d in past):
        say(f"deploying {source}")
        first = await service.deploy(source)
        if not first.succeeded:
            raise DeploymentError(f"{source} is not served: {first.reason}")
    for staged in await service.deploy_staged():
        say(f"staged {staged.source}: {staged.phase} {staged.reason}".rstrip())


@contextlib.contextmanager
def found_at(state_dir: Path, url: str) -> Iterator[None]:
    """Write the address of the service into ``state_dir`` during the block."""
    address = state_dir / ADDRESS_FILE
    atomic_write(address, json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    try:
        yield
    finally:
        address.unlink(missing_ok=True)


def listen(host: str, port: int, key: str = "serve.port") -> socket.socket:
    """A listening socket; ConfigError where the address is taken or not of this machine.

    key: of the configuration, has the port.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            # Else a service that was just stopped could not start again at its address.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"serve.host={host} {key}={port}: cannot listen there: {error.strerror}; choose "
            f"another, or {key}=0 for a free one"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@contextlib.asynccontextmanager
async def watched(
    service: DeploymentService, engine: Engine, config: ContinuousConfig, metrics: Metrics, say: Say
) -> AsyncIterator[None]:
    """Show the page of a service without clients, and take admin calls, during the block.

    They are at ``serve.page``, and no part of the run: their failures are said.
    """
    if config.serve.page is None:
        yield
        return
    over = asyncio.Event()
    local = dataclasses.replace(config.serve, host="127.0.0.1", port=config.serve.page)

    async def show() -> None:
        try:
            at, tokens = dataclasses.replace(config, serve=local), make_tokens(service.folder)
            app = http_over(service, engine, at, tokens, metrics, clients=False)
            with contextlib.closing(listen(local.host, local.port, "serve.page")) as listener:
                say(f"watch it at {url_of(listener)}{PAGE}")
                with found_at(service.folder, url_of(listener)):
                    await answer_requests(app, listener, over.wait(), drain_s=1.0)
        except Exception as error:
            log.warning("no page", exc_info=error)
            say(f"no page to watch it: {first_line(error)}")

    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        over.set()
        await showing


async def answer_requests(
    app: ASGIApp, listener: socket.socket, *ends: Coroutine[Any, Any, object], drain_s: float
) -> None:
    """Answer until the end of one of ``ends``.

    Requests under way have ``drain_s`` seconds to finish.
    """
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            # Else clients could invent their addresses, and vote more than once.
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=max(1, round(drain_s)),
        )
    )
    watching = [asyncio.create_task(each) for each in ends]
    answering = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.wait((*watching, answering), return_when=asyncio.FIRST_COMPLETED)
        # uvicorn finishes requests under way before it ends.
        server.should_exit = True
        await answering
    finally:
        for watch in watching:
            watch.cancel()


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
