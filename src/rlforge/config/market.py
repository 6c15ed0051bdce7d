"""The configuration of the market (group ``market``).

Amounts are in dollars, shares of something between 0 and 1, times in ticks of the market's clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from rlforge.config.rules import (
    Count,
    Distinct,
    Group,
    Length,
    NotNegative,
    Pattern,
    Positive,
    Probability,
    Problem,
    Range,
    Share,
    Whole,
)

TraderKind = Literal["noise", "momentum", "value", "insider"]
"""Kinds of scripted traders, from the least to the most skilled."""

AccountName = Annotated[str, Pattern("[a-z]+", "be named in small letters")]
Fee = Annotated[float, Range(0, 1, open=")")]
Ticker = Annotated[str, Pattern("[A-Z]{1,8}", "be a word of up to 8 capitals")]


@dataclass
class MarketConfig(Group):
    """A market: what is traded, who reports on it, and who trades there (group ``market``)."""

    #: Simulated minutes between two rounds of decisions.
    tick_minutes: Positive = 5.0
    #: Ticks of an episode: at its end all positions are settled and balances are reset.
    episode_ticks: Count = 24
    #: Balance of every agent at the start of an episode.
    starting_balance: Positive = 1000.0
    #: Prediction markets that are open at a time.
    predictions: Whole = 6
    #: Shortest life of a prediction market in ticks; the episode's end may cut it.
    min_lifetime: Count = 6
    #: Longest life of a prediction market in ticks.
    max_lifetime: Count = 14
    #: Liquidity b of the scoring rule: buying b shares moves a price of 0.50 to 0.73.
    liquidity: Positive = 4000.0
    #: Fee on buying and selling shares, of the amount.
    prediction_fee: Fee = 0.01
    #: Tickers of the perpetual futures.
    tickers: Annotated[
        list[Annotated[str, Pattern("[A-Z]{1,8}", "be a word of up to 8 capitals")]], Distinct()
    ] = field(default_factory=lambda: ["ACME", "BOLT", "CRUX"])
    #: Price that every ticker starts from.
    initial_price: Positive = 100.0
    #: Relative change of an index price per tick of a trend.
    drift: NotNegative = 0.006
    #: Standard deviation of an index price's noise in a tick.
    volatility: NotNegative = 0.008
    #: Mean length of a trend in ticks.
    trend_ticks: Count = 8
    #: Net open interest that would move a mark price by a factor of e.
    depth: Positive = 200000.0
    #: Fee on opening and closing perpetual positions, of their size.
    perpetual_fee: Fee = 0.001
    #: Largest leverage; its inverse is the initial margin.
    max_leverage: Annotated[float, Range(1)] = 10.0
    #: A position whose margin and profit fall below this share of its size is liquidated.
    maintenance_margin: NotNegative = 0.05
    #: Fee of a liquidation, of the size, as far as the margin covers it.
    liquidation_fee: Fee = 0.01
    #: Ticks between two funding payments.
    funding_interval: Count = 4
    #: Funding rate per payment, relative to how far the mark price is from the index.
    funding_factor: NotNegative = 0.5
    #: Largest funding rate per payment.
    max_funding_rate: NotNegative = 0.01
    #: Balance of the vault, the counterparty of all perpetual positions, at an episode's start.
    vault: Positive = 100000.0
    #: News accounts and the share of posts in which each is right; entries are added to these, and
    #: null leaves an account out. Compact text names them by the letters A to E.
    news: Annotated[dict[AccountName, Share | None], Length(0, 5)] = field(
        default_factory=lambda: {"wire": 0.9, "daily": 0.7, "rumor": 0.55}
    )
    #: Chance per tick that an account posts about a market on which it has not posted yet.
    news_rate: Share = 0.3
    #: Chance that a post reaches an agent that does not follow its author.
    visibility: Share = 0.6
    #: Posts that an agent sees.
    feed_length: Count = 24
    #: Notes that an agent sees: on its settled trades, and those that its actions made.
    memory_length: Count = 6
    #: Own latest actions that an agent sees.
    recent_actions: Count = 5
    #: Most characters in a post, comment or note.
    max_post_length: Count = 280
    #: Most characters of a state in a prompt in prose: what matters least is left out. null: all,
    #: and in a continuous run as much as fits the model's context.
    prompt_chars: Annotated[int, Range(200)] | None = None
    #: Chance that an insider learns how a market ends or which way a ticker trends.
    tip_chance: Share = 0.8
    #: Number of scripted traders of each kind.
    traders: dict[TraderKind, Whole] = field(
        default_factory=lambda: {"noise": 8, "momentum": 2, "value": 2, "insider": 1}
    )
    #: Stakes of the compact actions, of the starting balance.
    stakes: Annotated[list[Probability], Length(3)] = field(
        default_factory=lambda: [0.02, 0.05, 0.1]
    )
    #: Leverage of the compact actions.
    compact_leverage: Positive = 3.0
    #: Ticks after which closing a perpetual position is compared with having kept it.
    hindsight_ticks: Count = 6
    #: Profit, of the starting balance, that a game scores with tanh(1) = 0.76.
    reward_scale: Positive = 1.0

    @property
    def accounts(self) -> dict[str, float]:
        """The accounts of ``news`` that are not left out."""
        return {account: right for account, right in self.news.items() if right is not None}

    def clashes(self) -> Iterator[Problem]:
        if self.max_lifetime < self.min_lifetime:
            yield "max_lifetime", "is below min_lifetime"
        if not self.predictions and not self.tickers:
            yield "predictions", "leaves nothing to trade without market.tickers"
        if self.maintenance_margin * self.max_leverage >= 1:
            margin = 1 / self.max_leverage
            yield (
                "maintenance_margin",
                f"must be below the initial margin, 1 / max_leverage = {margin:g}",
            )
        if self.compact_leverage > self.max_leverage:
            yield "compact_leverage", "is above max_leverage"
        if self.stakes != sorted(self.stakes):
            yield "stakes", "must rise from the smallest to the largest"
        if self.stakes[0] * self.starting_balance < 1:
            yield "stakes", "must come to 1.00 or more of starting_balance"
        size = self.stakes[2] * self.starting_balance * self.compact_leverage
        room = 1 / self.compact_leverage - self.maintenance_margin
        if math.expm1(min(size / self.depth, 100.0)) >= room:
            yield (
                "depth",
                "is so shallow that the largest compact stake would be liquidated at once; "
                "raise it",
            )
