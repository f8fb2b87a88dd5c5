"""Keeps the rows of a table whose fullest pipeline stage fits, and tells of any other why it does not.

A row is kept when ``peak <= capacity * (1 - margin)``: the peak is the analytic one of
:mod:`shardwise.engine.memory`, itemised per stage; the capacity is what the device reports as its total.
The margin covers what the analysis cannot know (fragmentation of the day, a library's workspace).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import overload

import numpy as np

from shardwise.engine.errors import ConfigError
from shardwise.engine.memory import memory_table, usable_bytes
from shardwise.engine.recipe import Recipe
from shardwise.engine.results import DEFAULT_MARGIN, MEMORY_ITEMS
from shardwise.engine.table import Bools, Floats, Ints, Table
from shardwise.engine.units import GIB

CHUNK_ROWS = 16_384
"""Rows analysed at a time, so that the intermediate arrays stay in the cache."""


_THREADS = os.cpu_count() or 1


class Reasons(Sequence["str | None"]):
    """Why each row was rejected, None for the kept ones; a sentence is only built when it is asked for."""

    def __init__(self, result: FilterResult) -> None:
        self._result = result

    def __len__(self) -> int:
        return len(self._result.keep)

    @overload
    def __getitem__(self, index: int) -> str | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[str | None]: ...
    def __getitem__(self, index: int | slice) -> str | list[str | None] | None:
        if isinstance(index, slice):
            return [self._result.reason(row) for row in range(*index.indices(len(self)))]
        return self._result.reason(range(len(self))[index])


@dataclass(frozen=True, slots=True, eq=False)
class FilterResult:
    """The verdicts over a table of n rows. Bytes throughout."""

    keep: Bools
    """(n,) whether the row fits with the margin."""
    peak_bytes: Floats
    """(n,) memory of the fullest stage."""
    capacity_bytes: int
    """What the device reports as its total."""
    margin: float
    """Share of the capacity that had to stay free."""
    peak_stage: Ints
    """(n,) the fullest stage."""
    largest_item: Ints
    """(n,) index into ``MEMORY_ITEMS`` of that stage's largest item."""
    largest_bytes: Floats
    """(n,) size of that item."""

    @property
    def usable_bytes(self) -> float:
        """The capacity less the margin."""
        return usable_bytes(self.capacity_bytes, self.margin)

    @property
    def reasons(self) -> Reasons:
        """For each row the sentence that says why it was rejected, or None."""
        return Reasons(self)

    def reason(self, row: int) -> str | None:
        """Why ``row`` was rejected: the stage, what it needs and has, and its largest item; None if kept."""
        if self.keep[row]:
            return None
        usable, capacity = _gib(self.usable_bytes), _gib(self.capacity_bytes)
        item, size = MEMORY_ITEMS[self.largest_item[row]], _gib(self.largest_bytes[row])
        return (
            f"stage {self.peak_stage[row]} needs {_gib(self.peak_bytes[row])} of {usable} usable "
            f"(capacity {capacity} less {self.margin:.0%} margin); largest item: {item} {size}"
        )


def filter_table(table: Table, margin: float = DEFAULT_MARGIN) -> FilterResult:
    """Judge every row of ``table``, whose rows must be legal.

    Raises :class:`ConfigError` when ``margin`` is not in [0, 1).
    """
    if not 0.0 <= margin < 1.0:
        raise ConfigError(f"margin = {margin}: must be at least 0 and below 1", field="margin")
    n = len(table)
    peak, largest = np.zeros(n), np.zeros(n)
    stage, item = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)

    def judge(start: int) -> None:
        rows = slice(start, min(start + CHUNK_ROWS, n))
        memory = memory_table(table.take(np.arange(rows.start, rows.stop)))
        worst = memory.total.argmax(axis=1)[:, None]
        items = np.stack([np.take_along_axis(memory.items[name], worst, 1)[:, 0] for name in MEMORY_ITEMS])
        peak[rows] = memory.peak_bytes
        stage[rows] = memory.peak_stage
        item[rows] = items.argmax(axis=0)
        largest[rows] = items.max(axis=0)

    starts = range(0, n, CHUNK_ROWS)
    # NumPy lets go of the interpreter inside its loops, so threads share the chunks; each has its own rows.
    if len(starts) > 1:
        with ThreadPoolExecutor(min(_THREADS, len(starts))) as pool:
            list(pool.map(judge, starts))
    elif starts:
        judge(0)
    capacity = table.cluster.gpu.memory_bytes
    keep = peak <= usable_bytes(capacity, margin)
    return FilterResult(keep, peak, capacity, margin, stage, item, largest)


def filter_recipe(recipe: Recipe, margin: float = DEFAULT_MARGIN) -> FilterResult:
    """Judge one legal recipe: a result of one row."""
    return filter_table(Table.of([recipe]), margin)


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
