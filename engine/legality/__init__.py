"""Every reason for which a training framework would refuse a recipe, one named rule each.

Rules are Megatron-Core's unless their ``framework`` says otherwise; what another framework would refuse
on top is the business of its own exporter. Rules run over tables, so a search prunes with the very code
that explains a single recipe.
"""

from __future__ import annotations

import numpy as np

from shardwise.engine.legality import (
    batch,
    dimensions,
    experts,
    groups,
    pipeline,
    precision,
    recompute,
    sequence,
    sharding,
)
from shardwise.engine.legality.rule import Rule
from shardwise.engine.recipe import Recipe
from shardwise.engine.results import Violation
from shardwise.engine.table import Bools, Table

__all__ = ["RULES", "Rule", "broken", "check", "legal_mask"]

RULES: tuple[Rule, ...] = (
    *groups.RULES,
    *batch.RULES,
    *dimensions.RULES,
    *pipeline.RULES,
    *sequence.RULES,
    *experts.RULES,
    *recompute.RULES,
    *sharding.RULES,
    *precision.RULES,
)
"""All rules, in the order in which they are reported."""


def broken(table: Table) -> dict[str, Bools]:
    """For each rule that any row breaks, by name: which rows do, shape (n,)."""
    found = ((rule.name, rule.broken(table)) for rule in RULES)
    return {name: rows for name, rows in found if rows.any()}


def legal_mask(table: Table) -> Bools:
    """Which rows break no rule, shape (n,)."""
    legal = np.ones(len(table), dtype=np.bool_)
    for rule in RULES:
        legal &= ~rule.broken(table)
    return legal


def check(recipe: Recipe) -> tuple[Violation, ...]:
    """The rules that ``recipe`` breaks, each with the nearest legal choice; empty when it is legal."""
    table = Table.of([recipe])
    return tuple(rule.violation(recipe) for rule in RULES if rule.broken(table)[0])
