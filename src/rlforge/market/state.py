"""``GameState`` as JSON: all that an agent knows when it decides. Amounts are in dollars.

Parts are shared between states and never changed once shown, so that a state can be kept.
"""

from __future__ import annotations

from typing import Any

from rlforge.config.market import MarketConfig
from rlforge.market.accounts import Agent, Perp, Shares
from rlforge.market.exchange import Exchange
from rlforge.market.money import dollars


def game_state(agent: Agent, exchange: Exchange, config: MarketConfig) -> dict[str, Any]:
    """The state of one agent now; newest posts, actions and notes last."""
    tick, minutes = exchange.tick, config.tick_minutes
    to_funding = config.funding_interval - tick % config.funding_interval
    positions = [_shares(lot, exchange, minutes) for lot in agent.shares.values()]
    positions += [_perp(perp, exchange, config) for perp in agent.perps.values()]
    return {
        "portfolio": {
            "balance": dollars(agent.balance),
            "positions": positions,
            "lifetimePnL": dollars(agent.lifetime),
        },
        "markets": {
            "predictions": [m.to_json(tick, minutes) for m in exchange.predictions.values()],
            "perpetuals": [p.to_json(to_funding) for p in exchange.perpetuals.values()],
        },
        "social": {"feed": list(agent.feed), "unreadMessages": agent.unread},
        "agent": {
            "recentActions": list(agent.recent),
            "memory": [*agent.tips.values(), *agent.notes],
            "following": sorted(agent.follows),
            "minute": tick * minutes,
        },
    }


def _shares(lot: Shares, exchange: Exchange, minutes: float) -> dict[str, Any]:
    value = int(lot.units * exchange.predictions[lot.market_id].price(lot.outcome))
    return {
        "id": lot.id,
        "kind": "shares",
        "marketId": lot.market_id,
        "outcome": lot.outcome,
        "shares": lot.units / 100,
        "cost": dollars(lot.basis),
        "value": dollars(value),
        "pnl": dollars(value - lot.basis),
        "minutesHeld": (exchange.tick - lot.opened) * minutes,
    }


def _perp(perp: Perp, exchange: Exchange, config: MarketConfig) -> dict[str, Any]:
    worth = exchange.perp_worth(perp)
    # Where margin plus profit meets the maintenance margin, the effect of closing left out.
    room = perp.margin / perp.size - config.maintenance_margin
    return {
        "id": perp.id,
        "kind": "perpetual",
        "ticker": perp.ticker,
        "side": perp.side,
        "size": dollars(perp.size),
        "leverage": perp.leverage,
        "entryPrice": dollars(perp.entry),
        "liquidationPrice": round(max(0.0, perp.entry * (1 - perp.sign * room)) / 100, 2),
        "margin": dollars(perp.margin),
        "value": dollars(worth),
        "pnl": dollars(worth - perp.paid),
        "minutesHeld": (exchange.tick - perp.opened) * config.tick_minutes,
    }
