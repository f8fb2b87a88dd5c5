"""Simulated collective times: where a group lies, what its links give, what each algorithm makes of them."""

from shardwise.engine.collectives.network import Network
from shardwise.engine.collectives.placement import Group, place
from shardwise.engine.collectives.routing import Spread, dispatch_spread

__all__ = ["Group", "Network", "Spread", "dispatch_spread", "place"]
