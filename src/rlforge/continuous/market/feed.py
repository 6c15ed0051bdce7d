"""The social feed: posts, comments and news.

A post reaches the followers of its author, and others with probability ``market.visibility``. A
news account posts a view once, which holds until the market or the trend ends.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from typing import Any

from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.market.accounts import Agent
from rlforge.continuous.market.perpetuals import Perpetual
from rlforge.continuous.market.predictions import PredictionMarket

#: Posts that can still be commented on.
_KEPT = 2000

_SAYINGS = (
    "I hear {what}.",
    "Sources say {what}.",
    "All signs are that {what}.",
    "Our view: {what}.",
)


class Feed:
    """All posts of a market; each agent's own feed is kept with the agent."""

    def __init__(self, config: MarketConfig, rng: random.Random) -> None:
        self._config, self._rng = config, rng
        self._count = 0
        self._posts: deque[dict[str, Any]] = deque()
        self._by_id: dict[str, dict[str, Any]] = {}

    def __contains__(self, post_id: object) -> bool:
        return post_id in self._by_id

    def post(
        self,
        author: str,
        content: str,
        minute: float,
        agents: Iterable[Agent],
        *,
        reply_to: str | None = None,
        about: str | None = None,
        stance: str | None = None,
    ) -> dict[str, Any]:
        """Publish a post; about, stance: the market or ticker and the view of a news account."""
        self._count += 1
        replied = self._by_id[reply_to]["userId"] if reply_to is not None else None
        post: dict[str, Any] = {
            "id": f"post-{self._count}",
            "userId": author,
            "content": content,
            "minute": minute,
            "replyTo": reply_to,
            "about": about,
            "stance": stance,
        }
        self._posts.append(post)
        self._by_id[post["id"]] = post
        if len(self._posts) > _KEPT:
            del self._by_id[self._posts.popleft()["id"]]
        for agent in agents:
            # Drawn for every agent, so that following an account changes no other draw.
            lucky = agent.rng.random() < self._config.visibility
            if agent.id != author and (lucky or author in agent.follows or agent.id == replied):
                agent.feed.append(post)
                agent.unread += 1
        return post

    def report(
        self,
        predictions: Iterable[PredictionMarket],
        perpetuals: Iterable[Perpetual],
        minute: float,
        agents: Iterable[Agent],
    ) -> None:
        """One tick of the news accounts, in random order."""
        news: list[tuple[str, str, str, str]] = []
        known: list[tuple[str, str, dict[str, Any]]]
        known = [(one.id, "ends", one.unreported) for one in predictions]
        known += [(one.ticker, "is going", one.unreported) for one in perpetuals]
        for about, does, unreported in known:
            views = self._ready(unreported)
            news += [(account, about, view, f"{about} {does} {view}") for account, view in views]
        self._rng.shuffle(news)
        for account, about, stance, what in news:
            content = self._rng.choice(_SAYINGS).format(what=what)
            self.post(account, content, minute, agents, about=about, stance=stance)

    def _ready(self, unreported: dict[str, Any]) -> list[tuple[str, Any]]:
        """Views that are posted in this tick; each is posted once."""
        ready = [account for account in unreported if self._rng.random() < self._config.news_rate]
        return [(account, unreported.pop(account)) for account in ready]
