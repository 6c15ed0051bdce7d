"""The configuration of the market (group ``market``), and the presets that ship with rlforge.

Amounts are in dollars, shares of something between 0 and 1, times in ticks of the market's clock.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from rlforge.config.rules import Group, read
from rlforge.errors import ConfigError, nearest

#: Kinds of scripted traders, from the least to the most skilled.
TRADER_KINDS = ("noise", "momentum", "value", "insider")

_POSITIVE = (
    "tick_minutes",
    "episode_ticks",
    "starting_balance",
    "min_lifetime",
    "liquidity",
    "initial_price",
    "trend_ticks",
    "depth",
    "funding_interval",
    "vault",
    "feed_length",
    "memory_length",
    "recent_actions",
    "max_post_length",
    "hindsight_ticks",
    "reward_scale",
    "compact_leverage",
)

#: News accounts that the compact text has letters for.
_MOST_ACCOUNTS = 5


@dataclass
class MarketConfig(Group):
    """A market: what is traded, who reports on it, and who trades there (group ``market``)."""

    #: Simulated minutes between two rounds of decisions.
    tick_minutes: float = 5.0
    #: Ticks of an episode: at its end all is settled and everybody starts again from the balance.
    episode_ticks: int = 24
    #: What every agent has at the start of an episode.
    starting_balance: float = 1000.0
    #: Prediction markets that are open at a time.
    predictions: int = 6
    #: Shortest life of a prediction market; shorter only where the episode ends.
    min_lifetime: int = 6
    #: Longest life of a prediction market.
    max_lifetime: int = 14
    #: Liquidity b of the scoring rule: buying b shares moves a price of 0.50 to 0.73.
    liquidity: float = 4000.0
    #: Fee on buying and selling shares, of the amount.
    prediction_fee: float = 0.01
    #: Tickers of the perpetual futures.
    tickers: list[str] = field(default_factory=lambda: ["ACME", "BOLT", "CRUX"])
    #: Price that every ticker starts from.
    initial_price: float = 100.0
    #: What a trend adds to or takes from an index price in a tick.
    drift: float = 0.006
    #: Standard deviation of an index price's noise in a tick.
    volatility: float = 0.008
    #: Mean length of a trend.
    trend_ticks: int = 8
    #: Net open interest that would move a mark price by a factor of e.
    depth: float = 200000.0
    #: Fee on opening and closing perpetual positions, of their size.
    perpetual_fee: float = 0.001
    #: Largest leverage; its inverse is the initial margin.
    max_leverage: float = 10.0
    #: A position whose margin and profit fall below this share of its size is liquidated.
    maintenance_margin: float = 0.05
    #: Fee of a liquidation, of the size, as far as the margin covers it.
    liquidation_fee: float = 0.01
    #: Ticks between two funding payments.
    funding_interval: int = 4
    #: Funding rate per payment, relative to how far the mark price is from the index.
    funding_factor: float = 0.5
    #: Largest funding rate per payment.
    max_funding_rate: float = 0.01
    #: What the vault, the counterparty of all perpetual positions, has at the start of an episode.
    vault: float = 100000.0
    #: News accounts: how often each is right. The first five letters name them in compact text.
    news: dict[str, float] = field(
        default_factory=lambda: {"wire": 0.9, "daily": 0.7, "rumor": 0.55}
    )
    #: Chance that an account posts what it believes about a market in a tick, until it has.
    news_rate: float = 0.3
    #: Chance that a post reaches somebody who does not follow its author.
    visibility: float = 0.6
    #: Posts that an agent sees.
    feed_length: int = 24
    #: Notes on its own settled trades that an agent keeps.
    memory_length: int = 6
    #: Own actions that an agent is shown.
    recent_actions: int = 5
    #: Most characters in a post or comment.
    max_post_length: int = 280
    #: Chance that an insider is told how a market will end, or which way a ticker goes.
    tip_chance: float = 0.8
    #: Scripted traders of each kind that trade beside the agents.
    traders: dict[str, int] = field(
        default_factory=lambda: {"noise": 8, "momentum": 2, "value": 2, "insider": 1}
    )
    #: Stakes of the compact actions, of the starting balance.
    stakes: list[float] = field(default_factory=lambda: [0.02, 0.05, 0.1])
    #: Leverage of the compact actions.
    compact_leverage: float = 3.0
    #: Ticks after which closing a perpetual position is judged against having kept it.
    hindsight_ticks: int = 6
    #: Profit, of the starting balance, that a game scores with tanh(1) = 0.76.
    reward_scale: float = 1.0


def check_market(config: MarketConfig) -> None:
    """Raises ``ConfigError`` for the first value that no market can have."""
    for key in _POSITIVE:
        _require(config, key, getattr(config, key) > 0, "must be above 0")
    for key in ("predictions", "drift", "volatility", "funding_factor", "max_funding_rate"):
        _require(config, key, getattr(config, key) >= 0, "must not be negative")
    for key in ("prediction_fee", "perpetual_fee", "liquidation_fee"):
        _require(config, key, 0 <= getattr(config, key) < 1, "must lie in [0, 1)")
    for key in ("news_rate", "visibility", "tip_chance"):
        _require(config, key, 0 <= getattr(config, key) <= 1, "must lie in [0, 1]")
    _require(
        config, "max_lifetime", config.max_lifetime >= config.min_lifetime, "is below min_lifetime"
    )
    _require(
        config,
        "predictions",
        bool(config.predictions or config.tickers),
        "leaves nothing to trade without market.tickers",
    )
    _require(
        config,
        "tickers",
        len(set(config.tickers)) == len(config.tickers)
        and all(re.fullmatch(r"[A-Z]{1,8}", ticker) for ticker in config.tickers),
        "must be different words of up to 8 capitals",
    )
    _require(config, "max_leverage", config.max_leverage >= 1, "must be 1 or more")
    _require(
        config,
        "maintenance_margin",
        0 <= config.maintenance_margin < 1 / config.max_leverage,
        f"must be below the initial margin, 1 / max_leverage = {1 / config.max_leverage:g}",
    )
    _require(
        config,
        "compact_leverage",
        config.compact_leverage <= config.max_leverage,
        "is above max_leverage",
    )
    _require(
        config,
        "news",
        len(config.news) <= _MOST_ACCOUNTS
        and all(re.fullmatch(r"[a-z]+", name) for name in config.news)
        and all(0 <= right <= 1 for right in config.news.values()),
        f"must be up to {_MOST_ACCOUNTS} names in small letters, each with a share of 0 to 1",
    )
    for kind, count in config.traders.items():
        known = kind in TRADER_KINDS
        mend = nearest(kind, TRADER_KINDS) if not known else ""
        _require(
            config,
            "traders",
            known and count >= 0,
            f"wants a number of {', '.join(TRADER_KINDS)}{mend}",
        )
    _require(
        config,
        "stakes",
        len(config.stakes) == 3
        and 0 < config.stakes[0] <= config.stakes[1] <= config.stakes[2] < 1,
        "must be three shares of the balance, from the smallest to the largest",
    )
    size = config.stakes[2] * config.starting_balance * config.compact_leverage
    room = 1 / config.compact_leverage - config.maintenance_margin
    _require(
        config,
        "depth",
        math.expm1(min(size / config.depth, 100.0)) < room,
        "is so shallow that the largest compact stake would be liquidated at once; raise it",
    )
    smallest = config.stakes[0] * config.starting_balance
    _require(config, "stakes", smallest >= 1, "must come to 1.00 or more of starting_balance")


def market_ids() -> list[str]:
    """The presets as games name them: ``market`` for the default, ``market-NAME`` for others."""
    names = sorted(path.stem for path in _folder().glob("*.yaml"))
    return sorted("market" if name == "default" else f"market-{name}" for name in names)


@functools.cache
def load_market(market_id: str) -> MarketConfig:
    """The preset behind an id of ``market_ids``: one object for all, so never to be changed.

    Raises ``ConfigError`` when there is none.
    """
    if market_id not in market_ids():
        raise ConfigError(
            f"market {market_id!r} is unknown{nearest(market_id, market_ids())}; there are "
            f"{', '.join(market_ids())}"
        )
    # Here, so that learners beside no configuration need no OmegaConf.
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    path = _folder() / f"{market_id.removeprefix('market').lstrip('-') or 'default'}.yaml"
    try:
        loaded = OmegaConf.load(path)
        config = read(MarketConfig, loaded)
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}") from None
    check_market(config)
    return config


def _folder() -> Path:
    from rlforge.config.compose import conf_dir

    return conf_dir() / "market"


def _require(config: MarketConfig, key: str, holds: bool, problem: str) -> None:
    if not holds:
        raise ConfigError(f"market.{key}={getattr(config, key)}: {problem}")
