"""``GameState`` as JSON: all that an agent knows when it decides. Amounts are in dollars.

States share parts, which never change afterwards, so that a state can be kept.
"""

from __future__ import annotations

from typing import Any

from rlforge.market.accounts import Agent, Perp, Shares, dollars
from rlforge.market.books import Books
from rlforge.market.positions import PerpDesk
from rlforge.market.shares import ShareDesk


def game_state(agent: Agent, books: Books, shares: ShareDesk, perps: PerpDesk) -> dict[str, Any]:
    """The current state of one agent; newest posts, actions and notes last."""
    config, tick = books.config, books.tick
    minutes = config.tick_minutes
    to_funding = config.funding_interval - tick % config.funding_interval
    positions = [
        _shares(lot, shares.worth(lot), (tick - lot.opened) * minutes)
        for lot in agent.shares.values()
    ]
    positions += [
        _perp(perp, perps.worth(perp), (tick - perp.opened) * minutes, config.maintenance_margin)
        for perp in agent.perps.values()
    ]
    return {
        "portfolio": {
            "balance": dollars(agent.balance),
            "positions": positions,
            "lifetimePnL": dollars(agent.lifetime),
        },
        "markets": {
            "predictions": [m.to_json(tick, minutes) for m in books.predictions.values()],
            "perpetuals": [p.to_json(to_funding) for p in books.perpetuals.values()],
        },
        "social": {"feed": list(agent.feed), "unreadMessages": agent.unread},
        "agent": {
            "recentActions": list(agent.recent),
            "memory": [*agent.tips.values(), *agent.notes],
            "following": sorted(agent.follows),
            "minute": tick * minutes,
        },
    }


def _shares(lot: Shares, worth: int, minutes_held: float) -> dict[str, Any]:
    return {
        "id": lot.id,
        "kind": "shares",
        "marketId": lot.market_id,
        "outcome": lot.outcome,
        "shares": lot.units / 100,
        "cost": dollars(lot.basis),
        "value": dollars(worth),
        "pnl": dollars(worth - lot.basis),
        "minutesHeld": minutes_held,
    }


def _perp(perp: Perp, worth: int, minutes_held: float, maintenance: float) -> dict[str, Any]:
    # The price at which margin plus profit equals the maintenance margin, before impact of closing.
    room = perp.margin / perp.size - maintenance
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
        "minutesHeld": minutes_held,
    }
