"""The page that shows a service in a browser, and rolls it back.

It has the deployments, and of the run that holds the service's state the windows and newest
decisions, drawn as in the run's report. It is no part of the run: what cannot be read is a line on
it, and its failures go to the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.security import HTTPBasic

from rlforge.config.roots import kind_of_run, read_run
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.config.serving import ServeConfig
from rlforge.continuous.decisions.records import Decision
from rlforge.continuous.decisions.store import StoreReader, store_folder
from rlforge.continuous.report import (
    WINDOW_HEADS,
    check_windows,
    decision_row,
    results,
    tiles,
    window_row,
)
from rlforge.continuous.serving.client import PAGE
from rlforge.continuous.serving.errors import RequestError
from rlforge.continuous.serving.records import Deployment
from rlforge.continuous.serving.service import DeploymentService
from rlforge.continuous.serving.tokens import ADMIN_FILE, ADMIN_VARIABLE, Tokens
from rlforge.errors import RlforgeError, first_line
from rlforge.record.files import RunPaths, read_json
from rlforge.show.report.data import RunData, load_run
from rlforge.show.report.page import render
from rlforge.system.network import is_loopback
from rlforge.types import value

log = logging.getLogger(__name__)

#: Most deployments, windows and decisions on the page, and decisions among which the model's are.
_DEPLOYMENTS, _WINDOWS, _DECISIONS, _LOOKED_AT = 20, 12, 12, 200

#: Most charts: the first of the report's, of the reward above the control, profits and rewards.
_CHARTS = 3

#: Phases of versions that are not served.
_ENDED = ("rejected", "rolled_back", "failed", "interrupted")

_BASIC = HTTPBasic(auto_error=False, realm="rlforge: the password is a token of the service")

T = TypeVar("T")


@value
class Served:
    """Facts of a service at one moment.

    shares: versions served, with their shares of the users. leaving, back_to: the version that a
    rollback takes away, and the one served after it; None where there is none. trial: how it
    stands.
    """

    shares: Sequence[tuple[Deployment, float]]
    history: Sequence[Deployment]
    leaving: str
    back_to: str | None
    trial: str

    @classmethod
    def of(cls, service: DeploymentService) -> Served:
        current, trial = service.current, service.trial
        if trial is not None:
            share = trial.share
            return cls(
                shares=[(current, 1 - share), (trial.deployment, share)],
                history=service.history(),
                leaving=trial.deployment.uid,
                back_to=current.uid,
                trial=str(trial),
            )
        former = service.stack()[1:]
        return cls(
            shares=[(current, 1.0)],
            history=service.history(),
            leaving=current.uid,
            back_to=former[0].uid if former else None,
            trial="",
        )


class Page:
    """The page of a service; config: who may look."""

    def __init__(
        self, service: DeploymentService, tokens: Tokens, config: ServeConfig, name: str
    ) -> None:
        self._service, self._tokens, self._name = service, tokens, name
        self._loopback = is_loopback(config.host)
        self._needs_token = config.require_token or not self._loopback
        self._drawing = asyncio.Lock()
        self._known: tuple[object, RunData] | None = None

    def mount(self, app: FastAPI) -> None:
        for method, path, endpoint in (
            ("GET", "/", self.find),
            ("GET", PAGE, self.show),
            ("POST", PAGE, self.roll_back),
        ):
            app.add_api_route(
                path,
                endpoint,
                methods=[method],
                response_model=None,
                dependencies=[Depends(self.visitor)],
            )

    async def visitor(self, request: Request) -> None:
        """Refuse who may not look: as of requests, with the token as a browser's password."""
        check_host(request, loopback=self._loopback)
        if not self._needs_token:
            return
        given = await _BASIC(request)
        if given is None or not self._tokens.allow(given.password, admin=False):
            # A browser asks for a password then.
            headers = _BASIC.make_not_authenticated_error().headers
            raise RequestError("a token is needed, as password", status=401, headers=headers)

    async def find(self) -> Response:
        return RedirectResponse(PAGE)

    async def show(self) -> Response:
        return await self._answer()

    async def roll_back(self, request: Request) -> Response:
        """Roll back for who knows the administrators' token and has seen what is served."""
        origin = request.headers.get("origin")
        # Browsers name the site whose form it is; other programs need not.
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            return await self._answer(403, "Nothing was done: another site sent the form.")
        # As headers are decoded, which is what ``allow`` compares.
        form = parse_qs((await request.body()).decode("latin-1"), encoding="latin-1")
        token, leaving = (form.get(name, [""])[0].strip() for name in ("token", "leaving"))
        if not self._tokens.allow(token, admin=True):
            return await self._answer(
                401, "Nothing was done: this is not the administrators' token."
            )
        now = Served.of(self._service)
        if leaving != now.leaving:
            said = f"Nothing was done: {now.leaving} is there by now. Look again before you decide."
            return await self._answer(409, said)
        try:
            await self._service.rollback("rolled back on the page")
        except (RlforgeError, OSError, TimeoutError) as error:
            return await self._answer(409, f"It could not be rolled back: {error}.")
        # A reload of what follows would else send the token again.
        return RedirectResponse(PAGE, status_code=303)

    # ------------------------------------------------------------ what is shown

    async def _answer(self, status: int = 200, problem: str = "") -> Response:
        nonce = secrets.token_urlsafe(16)
        try:
            served = Served.of(self._service)
            # One at a time, however many look; and agents are answered meanwhile.
            async with self._drawing:
                text = await asyncio.to_thread(self._drawn, served, problem, nonce)
        # The page is no part of the run, whose log has what is wrong with it.
        except Exception as error:
            log.error("the page cannot be drawn", exc_info=error)
            said = f"The page cannot be drawn ({first_line(error)}); the log says where.\n"
            return PlainTextResponse(said, 500)
        sources = f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'"
        headers = {
            "content-security-policy": f"default-src 'none'; img-src data:; {sources}; "
            "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
            "referrer-policy": "same-origin",
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
        }
        # A surrogate in an answer of a model has no UTF-8.
        return HTMLResponse(text.encode(errors="replace"), status, headers)

    def _drawn(self, served: Served, problem: str, nonce: str) -> str:
        problems = list[str]()

        def read(facts: Callable[[], T], otherwise: T) -> T:
            try:
                return facts()
            except (RlforgeError, OSError) as error:
                problems.append(f"{error}.")
                return otherwise

        run = read(self._run, None)
        found = list[Decision]()
        decisions = read(self._decisions, found)
        activity = read(self._activity, "")
        figures = {"serving": " and ".join(one.uid for one, _ in served.shares)}
        name, status, command = self._name, "serving", ""
        if run is not None:
            name, command = run.name, run.command
            status = "running" if run.status == "running" else status
            problems += [f"{each}." for each in run.damage]
            figures = {**figures, **tiles(run), **figures} if run.windows else figures
        return render(
            "continuous/page.html.jinja",
            nonce=nonce,
            problem=problem,
            head={"name": name, "status": status, "command": command, "warnings": problems},
            tiles=figures,
            activity=activity,
            served=served,
            history=served.history[: -_DEPLOYMENTS - 1 : -1],
            charts=[] if run is None else [one for one in results(run) if one.shown][:_CHARTS],
            rows=[] if run is None else run.windows[: -_WINDOWS - 1 : -1],
            decisions=[decision_row(one, _state(one)) for one in decisions],
            ENDED=_ENDED,
            WINDOW_HEADS=WINDOW_HEADS,
            window_row=window_row,
            token_at=(f"{self._service.folder.name}/{ADMIN_FILE}", ADMIN_VARIABLE),
            now=moment(time.time()),
            moment=moment,
            json=json,
        )

    @cached_property
    def _paths(self) -> RunPaths | None:
        """The run that holds the service's state."""
        paths = RunPaths(root=self._service.folder.parent)
        return paths if paths.is_run() else None

    @cached_property
    def _store(self) -> Path | None:
        if self._paths is None or kind_of_run(self._paths.root) is not ContinuousConfig:
            return None
        config = read_run(self._paths.root, ContinuousConfig, gone=True)
        return store_folder(config.store, self._paths.root)

    def _run(self) -> RunData | None:
        """The records of the run, read again where they have changed."""
        if self._paths is None:
            return None
        files = (self._paths.windows, self._paths.metrics, self._paths.summary)
        marks = [(at.st_mtime_ns, at.st_size) for at in (f.stat() for f in files if f.exists())]
        if self._known is None or self._known[0] != marks:
            run = load_run(self._paths.root)
            check_windows(run)
            self._known = marks, run
        return self._known[1]

    def _decisions(self) -> list[Decision]:
        """The newest decisions of the model, the last one first."""
        if self._store is None or not self._store.is_dir():
            return []
        newest = StoreReader(self._store).newest(_LOOKED_AT)[::-1]
        return [one for one in newest if one.completion and one.metadata.learns][:_DECISIONS]

    def _activity(self) -> str:
        return "" if self._paths is None else str(read_json(self._paths.progress).get("activity"))


def moment(stamp: float) -> str:
    """Seconds since 1970 as a day and a time in UTC.

    Example:
        >>> moment(1731492000.0)
        '2024-11-13 10:00:00'
    """
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(stamp))


def check_host(request: Request, *, loopback: bool) -> None:
    """Refuse names of other machines where the service is on loopback."""
    # DNS rebinding makes a browser send other sites' requests here.
    if loopback and not _names_this_machine(request.headers.get("host", "")):
        message = "this service answers to names of this machine only"
        raise RequestError(message, code="forbidden_host", status=403)


@lru_cache(maxsize=64)
def _names_this_machine(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        # An invalid header names no machine.
        return False


def _state(decision: Decision) -> str:
    if decision.refused:
        return "refused"
    return "settled" if decision.complete else "open"
