"""From a configuration to a running service, and back to nothing when it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from rlforge.config.compose import to_yaml
from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.config.serving import ServeConfig, ServingConfig
from rlforge.engines.base import Engine
from rlforge.errors import ConfigError, DeploymentError, RunError
from rlforge.preflight.serving import check_deployment, check_room, check_serve
from rlforge.serving.client import ADDRESS_FILE
from rlforge.serving.guard import App, is_loopback, make_token
from rlforge.serving.metrics import Metrics
from rlforge.serving.records import Deployment
from rlforge.serving.service import DeploymentService
from rlforge.system.files import atomic_write
from rlforge.system.hardware import detect, prepare_ray, resolve_hardware
from rlforge.system.locks import RunLock, claim_gpus
from rlforge.train.graph import build_graph

Say = Callable[[str], None]

_NEVER_SERVED = ("rejected", "failed", "interrupted")


def serve(config: ServingConfig, state_dir: Path, source: Path | None, say: Say) -> None:
    """Serve until SIGINT or SIGTERM; requests under way are finished then.

    source: the run or adapter that a service without a past begins with; None: the base model.
    say: told what takes time, and the address. Raises ConfigError before anything is started,
    DeploymentError when there is nothing that can be served, and RunError when the engines are
    dead for good.
    """
    check_serve(config.serve)
    check_deployment(config.deployment)
    check_room(config.engine, config.deployment)
    hardware = resolve_hardware(
        config.hardware, detect(), config.engine.num_engines, config.learner.num_learners
    )
    prepare_ray(hardware)
    cards = math.ceil(config.engine.num_engines * hardware.engine_gpus)
    with claim_gpus(hardware, cards) as hardware:
        _serve_on(config, hardware, state_dir.absolute(), source, say)


def _serve_on(
    config: ServingConfig,
    hardware: HardwareConfig,
    state_dir: Path,
    source: Path | None,
    say: Say,
) -> None:
    """Prepare the state, the address and the model, then Ray."""
    state_dir.mkdir(parents=True, exist_ok=True)
    with RunLock(state_dir):  # let go again at once: the service itself takes it
        token = make_token(state_dir)
        (state_dir / "config.yaml").write_text(to_yaml(config))
    with contextlib.closing(listen(config.serve.host, config.serve.port)) as listener:
        # Ray is imported late: what can be wrong before does not wait for it.
        from rlforge.actors.cluster import ray_started
        from rlforge.models.load import resolve_model

        resolve_model(config.model, say)
        with ray_started(hardware, build_graph(config, detect()).num_cpus):
            asyncio.run(_serve(config, hardware, state_dir, token, listener, source, say))


async def _serve(
    config: ServingConfig,
    hardware: HardwareConfig,
    state_dir: Path,
    token: str,
    listener: socket.socket,
    source: Path | None,
    say: Say,
) -> None:
    """Start the engines, take up the state, answer until told to stop."""
    from rlforge.actors.cluster import reason
    from rlforge.serving.engine import start_engine
    from rlforge.tracking.files import open_log

    open_log("service", str(state_dir))
    say("starting the engine")
    restarts = config.serve.max_engine_restarts
    try:
        engine = await start_engine(config, hardware, str(state_dir), max_restarts=restarts)
    except Exception as error:  # Ray wraps what a constructor raised
        raise RunError(f"the engine could not be started: {reason(error)}") from error
    try:
        async with assembled(config, state_dir, token, engine, ready=lambda: engine.ready) as (
            service,
            app,
        ):
            await _begin(service, source, say)
            say(f"serving {service.current.uid} at {url_of(listener)}/v1, state in {state_dir}")
            if config.serve.require_token or not is_loopback(config.serve.host):
                say("every request needs the token: see rlforge serve --help")
            with found_at(state_dir, url_of(listener)):
                told = await answer_requests(
                    app, listener, drain_s=config.serve.drain_s, failed=engine.gone()
                )
    finally:
        await engine.close()
    if not told:
        raise RunError(
            f"an engine died more than serve.max_engine_restarts={restarts} times; see "
            f"{state_dir}/logs"
        )
    say("stopped")


@contextlib.asynccontextmanager
async def assembled(
    config: ServingConfig,
    state_dir: Path,
    token: str,
    engine: Engine,
    *,
    ready: Callable[[], bool] = lambda: True,
    on_phase: Callable[[Deployment], None] = lambda deployment: None,
) -> AsyncIterator[tuple[DeploymentService, App]]:
    """The deployments in ``state_dir`` over ``engine``, and the HTTP application over them.

    Probes and held-out games are those of the environments of evaluation. ready: whether the
    engine answers. on_phase: told of every step of a deployment. Raises as
    ``DeploymentService.open`` does.
    """
    from rlforge.models.load import load_tokenizer, stop_token_ids
    from rlforge.serving.game_checks import GameHoldout, game_probes

    tokenizer = load_tokenizer(config.model)
    stops = stop_token_ids(config.model, tokenizer)
    settings, metrics = config.deployment, Metrics()

    def tell(deployment: Deployment) -> None:
        metrics.on_phase(deployment)
        on_phase(deployment)

    service = await DeploymentService.open(
        state_dir,
        engine,
        settings,
        config.model,
        game_probes(
            config, tokenizer, stops, number=settings.probes, max_tokens=settings.probe_tokens
        ),
        holdout=GameHoldout(config, engine, tokenizer, stops) if settings.holdout_games else None,
        on_phase=tell,
    )
    try:
        yield service, http_over(service, engine, config, config.serve, token, metrics, ready=ready)
    finally:
        await service.close()


def http_over(
    service: DeploymentService,
    engine: Engine,
    config: PolicyConfig,
    serve: ServeConfig,
    token: str,
    metrics: Metrics,
    *,
    ready: Callable[[], bool] = lambda: True,
) -> App:
    """The HTTP application over a service that is open, for ``listener.answer_requests``.

    metrics: whose ``on_phase`` the service was opened with, where deployments are to be counted.
    """
    from rlforge.models.load import load_model_config, load_tokenizer, stop_token_ids
    from rlforge.serving.answering import Answering, Limits
    from rlforge.serving.app import make_app

    tokenizer = load_tokenizer(config.model)
    described = load_model_config(config.model).get_text_config()
    positions = getattr(described, "max_position_embeddings", None) or config.engine.max_model_len
    limits = Limits(
        model_len=min(config.engine.max_model_len, positions),
        vocab_size=described.vocab_size,
        default_max_tokens=min(serve.default_max_tokens, config.engine.max_tokens),
        temperature=config.engine.temperature,
        top_p=config.engine.top_p,
    )
    stops = stop_token_ids(config.model, tokenizer)
    answering = Answering(service, tokenizer, stops, limits, serve.model_name or config.name)
    return make_app(service, engine, answering, serve, token, metrics, ready=ready)


async def _begin(service: DeploymentService, source: Path | None, say: Say) -> None:
    """The first start deploys ``source``; later ones go on with what they find."""
    past = service.history()[1:]
    if source is not None and all(d.phase in _NEVER_SERVED for d in past):
        say(f"deploying {source}")
        first = await service.deploy(source)
        if not first.succeeded:
            raise DeploymentError(f"{source} is not served: {first.reason}")
    for staged in await service.deploy_staged():
        say(f"staged {staged.source}: {staged.phase} {staged.reason}".rstrip())


@contextlib.contextmanager
def found_at(state_dir: Path, url: str) -> Iterator[None]:
    """Tell clients in ``state_dir`` where the service is, for as long as it is there."""
    address = state_dir / ADDRESS_FILE
    atomic_write(address, json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    try:
        yield
    finally:
        address.unlink(missing_ok=True)


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; ConfigError where the address is taken or not ours."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"serve.host={host} serve.port={port}: cannot listen there: {error.strerror}; choose "
            "another, or serve.port=0 for a free one"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where clients find it."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def answer_requests(
    app: App, listener: socket.socket, *, drain_s: float, failed: Coroutine[Any, Any, None]
) -> bool:
    """Answer until SIGINT, SIGTERM or the end of ``failed``; then finish what is under way.

    drain_s: seconds that it has to end. Returns whether it was told to stop by a signal.
    """
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=max(1, round(drain_s)),
        )
    )
    watch = asyncio.create_task(failed)
    answering = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.wait((watch, answering), return_when=asyncio.FIRST_COMPLETED)
        told = answering.done()
        server.should_exit = True
        await answering
    finally:
        watch.cancel()
    return told


class _Server(uvicorn.Server):
    """uvicorn raises the signals that it caught again at its end; here they are done with."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
