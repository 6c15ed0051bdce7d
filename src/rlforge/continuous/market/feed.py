"""The social feed: posts, comments and news.

A post reaches the followers of its author, and others with probability ``market.visibility``. A
news account posts each of its views once.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from rlforge.continuous.market.books import Books

# Only the newest posts can be commented on: all of a long run would fill the memory.
_KEPT = 2000

_SAYINGS = (
    "I hear {what}.",
    "Sources say {what}.",
    "All signs are that {what}.",
    "Our view: {what}.",
)


class Feed:
    """All posts of a market; each agent keeps those that reached it."""

    def __init__(self, books: Books, rng: random.Random) -> None:
        self._books, self._rng = books, rng
        self._count = 0
        self._posts: deque[dict[str, Any]] = deque()
        self._by_id: dict[str, dict[str, Any]] = {}

    def __contains__(self, post_id: object) -> bool:
        return post_id in self._by_id

    def post(
        self,
        author: str,
        content: str,
        *,
        reply_to: str | None = None,
        about: str | None = None,
        stance: str | None = None,
    ) -> None:
        """Publish a post. about, stance: the market or ticker, and the view of a news account."""
        self._count += 1
        replied = self._by_id[reply_to]["userId"] if reply_to is not None else None
        post: dict[str, Any] = {
            "id": f"post-{self._count}",
            "userId": author,
            "content": content,
            "minute": self._books.minute,
            "replyTo": reply_to,
            "about": about,
            "stance": stance,
        }
        self._posts.append(post)
        self._by_id[post["id"]] = post
        if len(self._posts) > _KEPT:
            del self._by_id[self._posts.popleft()["id"]]
        for agent in self._books.agents.values():
            # Drawn for every agent, so that following an account changes no other draw.
            lucky = agent.rng.random() < self._books.config.visibility
            if agent.id != author and (lucky or author in agent.follows or agent.id == replied):
                agent.feed.append(post)
                agent.unread += 1

    def report(self) -> None:
        """Let the news accounts post for one tick, in random order."""
        books, rate = self._books, self._books.config.news_rate
        known: list[tuple[str, str, dict[str, Any]]]
        known = [(one.id, "ends", one.unreported) for one in books.predictions.values()]
        known += [(one.ticker, "is going", one.unreported) for one in books.perpetuals.values()]
        news: list[tuple[str, str, str, str]] = []
        for about, does, unreported in known:
            for account in [name for name in unreported if self._rng.random() < rate]:
                view = unreported.pop(account)
                news.append((account, about, view, f"{about} {does} {view}"))
        self._rng.shuffle(news)
        for account, about, stance, what in news:
            content = self._rng.choice(_SAYINGS).format(what=what)
            self.post(account, content, about=about, stance=stance)
