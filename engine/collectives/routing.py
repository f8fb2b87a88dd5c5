"""How many copies of a token a deduplicating dispatch sends: the distinct domains and ranks of its experts.

Experts are drawn without replacement, evenly; with group-limited routing first ``group_topk`` of ``groups``
groups of consecutive experts are drawn, then the experts among theirs (DeepSeek-V3, arXiv:2412.19437,
section 2.1.2: node-limited routing).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb

import numpy as np

from shardwise.engine.collectives.placement import Group
from shardwise.engine.model import Model
from shardwise.engine.table import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Copies over one copy per expert, (n,) each."""

    domains: Floats
    """Copies that leave the sender's domain."""
    ranks: Floats
    """Copies that ranks receive."""


def dispatch_spread(model: Model, group: Group) -> Spread:
    """The copies of ``model``'s tokens over the expert-parallel ``group``."""
    choice = (
        model.num_experts or 1,
        model.moe_router_topk,
        model.moe_router_num_groups or 1,
        model.moe_router_group_topk or 1,
    )
    domains = _per_value(np.ceil(group.domains), choice)
    ranks = _per_value(group.size, choice)
    away = np.asarray((group.size - group.local) / group.size)
    return Spread(domains * away / model.moe_router_topk, ranks / model.moe_router_topk)


def _per_value(parts: Floats, choice: tuple[int, int, int, int]) -> Floats:
    whole = parts.astype(np.int64)
    lookup = np.zeros(int(whole.max(initial=0)) + 1)
    for value in np.flatnonzero(np.bincount(whole)):
        lookup[value] = distinct_parts(int(value), *choice)
    return np.asarray(lookup[whole])


@lru_cache(maxsize=4096)
def distinct_parts(parts: int, experts: int, topk: int, groups: int = 1, group_topk: int = 1) -> float:
    """Expected number of parts, of ``parts`` equal and consecutive ones, that hold a chosen expert."""
    each, group = experts / parts, experts / groups
    drawn = group_topk * group
    if each <= group:
        missed = _missed(drawn, each, topk)
        chosen = group_topk / groups
        return parts * chosen * (1 - missed)
    # A part holds several groups, of which ``found`` are among those drawn.
    held = min(round(each / group), groups)
    none = sum(
        comb(held, found)
        * comb(groups - held, group_topk - found)
        / comb(groups, group_topk)
        * _missed(drawn, found * group, topk)
        for found in range(min(held, group_topk) + 1)
    )
    return parts * (1 - none)


def _missed(pool: float, part: float, draws: int) -> float:
    """Probability that ``draws`` experts of a ``pool``, without replacement, all avoid ``part`` of it."""
    missed = 1.0
    for drawn in range(draws):
        missed *= max(pool - part - drawn, 0.0) / max(pool - drawn, 1.0)
    return missed
