"""Continuous training over the actors of a run: comparisons, HTTP, and the loop between them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.loop.performance import POLICY, gains
from rlforge.continuous.loop.policy_side import PolicySide
from rlforge.continuous.loop.trainer import ContinuousTrainer, assembled
from rlforge.continuous.report import changes
from rlforge.continuous.serving.client import PAGE, STATE_DIR
from rlforge.continuous.serving.server import (
    answer_requests,
    found_at,
    http_over,
    listen,
    url_of,
    watched,
)
from rlforge.continuous.serving.tokens import make_tokens
from rlforge.errors import RunError
from rlforge.kinds import kind_of
from rlforge.record.files import RunPaths, read_json, write_json
from rlforge.run.lifecycle import RunContext
from rlforge.system.checkpoint import step_name
from rlforge.system.loops import unless
from rlforge.system.values import json_ready


class ContinuousRun:
    """Continuous training as a ``Controller``."""

    def __init__(self, context: RunContext[ContinuousConfig]) -> None:
        self._context, self._config = context, context.config
        self._paths = RunPaths(root=context.run_dir)
        self._stop = asyncio.Event()
        self._open = contextlib.AsyncExitStack()
        self._parts: ContinuousTrainer | None = None
        self._comparison: dict[str, Any] = {}
        self._last_summary: Mapping[str, Any] = {"objective": -math.inf}

    async def begin(self, *, resume: bool) -> None:
        context = self._context
        parts = await self._open.enter_async_context(assembled(context, self._stop))
        done = [entry.facts["done"] for entry in parts.journal.entries() if entry.phase == "done"]
        # The tracker's files may lack the journal's last window: they are written anew from it.
        await context.actors.tracker.resume_windows.remote(
            [(facts["window"], facts["update"]) for facts in done]
        )
        self._parts = parts
        if expected := kind_of(self._config).forecast(self._config):
            context.note(expected)
        await self._continue_from_deployment(parts)
        await self._open.enter_async_context(_served_over_http(context, parts))

    async def run(self) -> bool:
        """Train until all windows are done; measure the policy before and after."""
        assert self._parts is not None, "begin comes first"
        compared = await unless(self._stop, self._compare("before", self._parts.policy))
        if not compared or self._stop.is_set():
            return False
        windows, measured = self._config.continuous.windows, read_json(self._paths.comparison)
        if "after" in measured and (windows is None or self._parts.journal.done() < windows):
            # More windows follow, so it is measured anew.
            del measured["after"]
            measured.pop("change", None)
            write_json(self._paths.comparison, measured)
        done = await self._parts.run()
        if done:
            after = await unless(self._stop, self._compare("after", self._parts.policy))
            if not after:  # a resumed run does it
                return False
            (self._comparison,) = after
            for change in changes(self._comparison):
                if change.player == POLICY:
                    self._context.note(change.line)
        return done

    def stop(self) -> None:
        """End after the update in hand; a resumed run repeats the rest of its phase."""
        self._stop.set()

    async def close(self) -> None:
        # The summary is asked for once more after the parts are closed.
        self._last_summary, self._parts = self.summary(), None
        await self._open.aclose()

    def summary(self) -> Mapping[str, Any]:
        if self._parts is None:
            return self._last_summary
        journal, policy = self._parts.journal, self._parts.policy
        # The reward measured after training counts, else that of the last window.
        done = [entry for entry in journal.entries() if entry.phase == "done"]
        mean = done[-1].facts["done"]["window"]["policy_reward"] if done else None
        if "after" in self._comparison:
            mean = self._comparison["after"]["players"][POLICY]["avg_reward"]
        return {
            "windows": journal.done(),
            "serving": policy.serving(),
            "comparison": {
                when: {key: one for key, one in part.items() if key != "agents"}
                for when, part in self._comparison.items()
            },
            "objective": -math.inf if mean is None else float(mean),
        }

    async def _continue_from_deployment(self, parts: ContinuousTrainer) -> None:
        learner, policy = parts.learner, parts.policy
        current = policy.service.current
        if policy.service.fell_back:
            self._context.note(policy.service.fell_back)
        start = await learner.begin()
        untouched = policy.serving() == step_name(0)
        if untouched and self._config.learner.initial_adapter and not current.path:
            self._now("checking learner.initial_adapter before it serves")
            # The adapter is checked like any version, because users get its answers.
            # A signal leaves it to the resumed run, as ``run`` does all else.
            for deployed in await unless(self._stop, policy.deploy(start)):
                if deployed.success is False:
                    raise RunError(f"learner.initial_adapter does not serve: {deployed.reason}")
        # The newest checkpoint may have been refused, so learning goes on from what serves.
        own = await learner.restore(policy.serving())
        if (source := policy.foreign().get(current.uid)) is not None:
            self._context.note(
                f"{current.uid} is not of this run ({source}): {own.uid} serves again"
            )
            for deployed in await unless(self._stop, policy.deploy(own)):
                if deployed.success is False:
                    raise RunError(f"{own.uid} does not serve: {deployed.reason}")

    async def _compare(self, when: str, policy: PolicySide) -> dict[str, Any]:
        """Measure what serves now into ``comparison.json``, and return its content."""
        episodes = self._config.continuous.compare_episodes
        if not episodes or policy.trials is None:
            return {}
        content = read_json(self._paths.comparison)
        # A resumed run may have measured it already.
        if when not in content:
            self._now(f"measuring the policy {when} training")
            content[when] = {
                "version": policy.serving(),
                "episodes": episodes,
                **await policy.trials.compare(policy.service.current.policy()),
            }
            if "after" in content:
                content["change"] = gains(content["before"], content["after"])
            content = json_ready(content)
            write_json(self._paths.comparison, content)
        return content

    def _now(self, doing: str) -> None:
        self._context.note(doing)
        self._context.actors.tracker.log_activity.remote(doing)


@contextlib.asynccontextmanager
async def _served_over_http(
    context: RunContext[ContinuousConfig], parts: ContinuousTrainer
) -> AsyncIterator[None]:
    """Answer requests during the block, where ``continuous.http`` is set; else show the page."""
    config, policy = context.config, parts.policy
    if not config.continuous.http:
        async with watched(policy.service, policy.engine, config, policy.metrics, context.note):
            yield
        return
    folder = context.run_dir / STATE_DIR
    app = http_over(
        policy.service,
        policy.engine,
        config,
        make_tokens(folder),
        policy.metrics,
        observer=parts.source.answers,
    )
    over = asyncio.Event()

    with contextlib.closing(listen(config.serve.host, config.serve.port)) as listener:
        context.note(f"serving at {url_of(listener)}/v1")
        if config.serve.page is not None:
            context.note(f"watch it at {url_of(listener)}{PAGE}")
        answering = asyncio.create_task(
            answer_requests(app, listener, over.wait(), drain_s=config.serve.drain_s)
        )
        try:
            with found_at(folder, url_of(listener)):
                yield
        finally:
            over.set()
            await answering
