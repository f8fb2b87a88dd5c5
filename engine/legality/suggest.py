"""The nearest legal choice: candidates are tried against the rule itself, so no advice breaks it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import numpy as np

from shardwise.engine.legality.rule import Broken, Fix
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Table

_MOST_COMBINATIONS = 50_000


def change(what: str, **changes: Any) -> Fix:
    """``what`` is wrong, and these ``changes`` mend it (known without trying)."""
    return f"{what}; nearest legal: {_spell(changes)}", changes


def nearest(what: str, broken: Broken, recipe: Recipe, candidates: Mapping[str, Sequence[int]]) -> Fix:
    """``what`` is wrong; mend it by changing one field as little as possible (in ratio), else several.

    ``candidates`` gives for each field the values worth trying. Ties go to the earlier field and to the
    smaller value.
    """
    options = []
    for name, values in candidates.items():
        options += _single(broken, recipe, name, values)
    if options:
        _, name, value = min(options, key=lambda option: option[0])
        near = [v for _, n, v in options if n == name]
        listed = " or ".join(f"{name}={v}" for v in sorted(near))
        return f"{what}; nearest legal: {listed}", {name: value}
    changes = _joint(broken, recipe, candidates)
    return change(what, **changes) if changes else (what, {})


def multiples(unit: int, value: int) -> list[int]:
    """The multiples of ``unit`` next to ``value``, at least ``unit`` itself."""
    below = max(value // unit, 1) * unit
    return [below, below + unit]


def _single(broken: Broken, recipe: Recipe, name: str, values: Sequence[int]) -> list[tuple[float, str, int]]:
    """The best legal value of ``name`` below and above the current one, with the cost of each."""
    current = getattr(recipe, name) or 1
    tried = sorted({v for v in values if v != current})
    if not tried:
        return []
    fine = ~broken(Table.product(recipe, {name: tried}))
    legal = [v for v, ok in zip(tried, fine.tolist(), strict=True) if ok]
    below, above = [v for v in legal if v < current][-1:], [v for v in legal if v > current][:1]
    return [(abs(log(v / current)), name, v) for v in (*below, *above)]


def _joint(broken: Broken, recipe: Recipe, candidates: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The legal combination of all candidates with the smallest total change; empty when there is none."""
    values = {name: sorted(set(options)) for name, options in candidates.items() if options}
    if len(values) < 2 or np.prod([len(v) for v in values.values()]) > _MOST_COMBINATIONS:
        return {}
    table = Table.product(recipe, values)
    fine = np.flatnonzero(~broken(table))
    if not fine.size:
        return {}
    cost = sum(np.abs(np.log(getattr(table, name)[fine] / (getattr(recipe, name) or 1))) for name in values)
    row = fine[int(np.argmin(cost))]
    picked = {name: int(getattr(table, name)[row]) for name in values}
    return {name: value for name, value in picked.items() if value != getattr(recipe, name)}


def _spell(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in changes.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(str(item) for item in value) + "]"
    return "unset" if value is None else str(value)
