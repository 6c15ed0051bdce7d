"""The configuration of the market (group ``market``); amounts are in dollars."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from rlforge.config.rules import (
    DISTINCT,
    Count,
    Group,
    Length,
    NotNegative,
    OneOf,
    Positive,
    Probability,
    Problem,
    Range,
    Share,
    Whole,
    pattern,
)

TraderKind = Literal["noise", "momentum", "value", "insider"]
"""Kinds of scripted traders, from the least to the most skilled."""

MODELS = ("hf:", "openai:", "openrouter:", "litellm:")
"""Beginnings of the names of traders that are language models, other than the run's own."""

ModelName = Annotated[str, pattern(f"({'|'.join(MODELS)}).+", "name a model")]
TraderName = Annotated[
    TraderKind | ModelName,
    OneOf(
        "noise, momentum, value, insider, or a model: openai:MODEL, openrouter:MODEL, "
        "litellm:PROVIDER/MODEL, hf:ORG/MODEL or hf:FOLDER"
    ),
]

AccountName = Annotated[str, pattern("[a-z]+", "be named in small letters")]
Ticker = Annotated[str, pattern("[A-Z]{1,8}", "be a word of up to 8 capitals")]

#: Balance of every agent at the start of an episode.
STARTING_BALANCE = 1000.0
#: A position whose margin and profit fall below this share of its size is liquidated.
MAINTENANCE_MARGIN = 0.05
#: Leverage of the compact actions.
COMPACT_LEVERAGE = 3.0


@dataclass
class MarketConfig(Group):
    """A market: what is traded, who reports on it, and who trades there (group ``market``)."""

    #: Simulated minutes between two rounds of decisions.
    tick_minutes: Positive = 5.0
    #: Ticks of an episode: at its end positions are settled and balances reset.
    episode_ticks: Count = 24
    #: Prediction markets that are open at a time.
    predictions: Whole = 6
    #: Shortest life of a prediction market in ticks; the episode's end may cut it.
    min_lifetime: Count = 6
    #: Longest life of a prediction market in ticks.
    max_lifetime: Count = 14
    #: Liquidity b of the scoring rule: buying b shares moves a price of 0.50 to 0.73.
    liquidity: Positive = 4000.0
    #: Tickers of the perpetual futures.
    tickers: Annotated[list[Ticker], DISTINCT] = field(
        default_factory=lambda: ["ACME", "BOLT", "CRUX"]
    )
    #: Relative change of an index price per tick of a trend.
    drift: NotNegative = 0.006
    #: Standard deviation of an index price's noise in a tick.
    volatility: NotNegative = 0.008
    #: Net open interest that would move a mark price by a factor of e.
    depth: Positive = 200000.0
    #: Balance of the vault, the counterparty of all perpetual positions, at an episode's start.
    vault: Positive = 100000.0
    #: News accounts and the share of posts in which each is right; entries are added to these, and
    #: null leaves an account out. Compact text names them by the letters A to E.
    news: Annotated[dict[AccountName, Share | None], Length(0, 5)] = field(
        default_factory=lambda: {"wire": 0.9, "daily": 0.7, "rumor": 0.55}
    )
    #: Chance per tick that an account posts its view of a market.
    news_rate: Share = 0.3
    #: Chance that a post reaches an agent that does not follow its author.
    visibility: Share = 0.6
    #: Posts that an agent sees.
    feed_length: Count = 24
    #: Most characters of a state in a prompt in prose: what matters least is left out. null: all,
    #: in a continuous run as much as fits the model's context.
    prompt_chars: Annotated[int, Range(200)] | None = None
    #: Number of scripted traders of each kind, and of traders that are a language model, by its
    #: name, as ``openai:MODEL``: these trade in continuous runs (group ``traders``).
    traders: dict[TraderName, Whole] = field(
        default_factory=lambda: {"noise": 8, "momentum": 2, "value": 2, "insider": 1}
    )
    #: Stakes of the compact actions, as shares of the starting balance.
    stakes: Annotated[list[Probability], Length(3)] = field(
        default_factory=lambda: [0.02, 0.05, 0.1]
    )
    #: Compact text has words for what agents say to each other: an agent may say which way a market
    #: will go, agree, follow an agent, and reads what those say that it follows.
    social: bool = False

    @property
    def accounts(self) -> dict[str, float]:
        """The accounts of ``news`` that are not left out."""
        return {account: right for account, right in self.news.items() if right is not None}

    @property
    def scripted(self) -> dict[str, int]:
        """The scripted traders of ``traders``."""
        return {name: count for name, count in self.traders.items() if ":" not in name}

    @property
    def models(self) -> dict[str, int]:
        """The traders of ``traders`` that are language models."""
        return {name: n for name, n in self.traders.items() if ":" in name and n > 0}

    def clashes(self) -> Iterator[Problem]:
        if self.max_lifetime < self.min_lifetime:
            yield "max_lifetime", "is below min_lifetime"
        # Scripted traders choose among offers, and fail without any.
        if not self.predictions and not self.tickers:
            yield "predictions", "leaves nothing to trade without market.tickers"
        # The compact words 1, 2 and 3 mean small to large.
        if self.stakes != sorted(self.stakes):
            yield "stakes", "must rise from the smallest to the largest"
        # A smaller stake could buy no share after the fee.
        if self.stakes[0] * STARTING_BALANCE < 1:
            yield "stakes", "must come to 1.00 or more of the starting balance"
        # Opening moves the price, at this size so far that a position is liquidated at once.
        size = self.stakes[2] * STARTING_BALANCE * COMPACT_LEVERAGE
        room = 1 / COMPACT_LEVERAGE - MAINTENANCE_MARGIN
        if math.expm1(min(size / self.depth, 100.0)) >= room:
            yield (
                "depth",
                "is so shallow that the largest compact stake would be liquidated at once; "
                "raise it",
            )
