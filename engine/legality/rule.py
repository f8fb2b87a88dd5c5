"""A rule of legality: a name, its source, and two functions, one over tables and one over a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.engine.recipe import Recipe
from shardwise.engine.results import Violation
from shardwise.engine.table import Bools, Table

Broken = Callable[[Table], Bools]
"""For each row, shape (n,), whether it breaks the rule."""
Fix = tuple[str, dict[str, Any]]
"""A message, and the changes (field -> value) after which the rule holds; no changes where there are none."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One named reason for which a framework would refuse, hang on, or crash with a recipe."""

    name: str
    source: str
    """The framework's file that demands it."""
    fields: tuple[str, ...]
    """Every column of :class:`Table` that ``broken`` reads, the ones to change first."""
    broken: Broken
    explain: Callable[[Recipe], Fix]
    """Of a recipe that breaks the rule: what is wrong, and what to change."""
    framework: str = "megatron-core"

    def violation(self, recipe: Recipe) -> Violation:
        """The rule as broken by ``recipe``."""
        message, nearest = self.explain(recipe)
        return Violation(self.name, message, self.fields, self.framework, nearest)


def everywhere(table: Table, value: bool) -> Bools:
    """``value`` for every row: a condition on the model or the cluster alone."""
    return np.full(len(table), value)


def world_divides(table: Table) -> Bools:
    """Whether tp*pp*cp divides the world, so that ``table.dp`` is exact."""
    return np.asarray(table.cluster.world_size % (table.tp * table.pp * table.cp) == 0)


def batch_divides(table: Table) -> Bools:
    """Whether mbs*dp divides gbs as well, so that ``table.num_microbatches`` is exact."""
    return np.asarray(world_divides(table) & (table.gbs % (table.mbs * table.dp) == 0))


def divisors(number: int) -> list[int]:
    """All divisors of ``number`` (at least 1), ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def common_divisors(*numbers: int) -> list[int]:
    """Numbers that divide each of ``numbers``, ascending."""
    return divisors(int(np.gcd.reduce(np.array(numbers, dtype=np.int64))))
