"""The search space: every legal combination of the axes' settings, as tables, and the steps between them.

The product is built axis by axis. A rule of legality is applied as soon as the last axis that touches
one of its fields is in, so an illegal prefix never grows; and a table that would grow past a bound is
cut into pieces that grow one after the other. The order is that of the axes, always.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.engine.axes import Axes, Axis, Derived, axis_names, default_axes, one_axis
from shardwise.engine.errors import ConfigError
from shardwise.engine.legality import RULES, Rule, legal_mask
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import COLUMNS, Bools, Ints, Table

__all__ = [
    "Axes", "Axis", "Derived", "axis_names", "default_axes", "legal_chunks", "legal_space", "neighbours",
    "one_axis",
]  # fmt: skip

CHUNK_ROWS = 200_000
"""Rows that one step may grow to before it is cut (a row is about 350 bytes)."""
MAX_ROWS = 4_000_000
"""Rows that :func:`legal_space` holds at once; larger spaces go through :func:`legal_chunks`."""


def legal_space(base: Recipe, axes: Axes, *, max_rows: int = MAX_ROWS) -> Table:
    """Every legal point of the space around ``base``, in the axes' order; all else is as in ``base``.

    The size of the whole product is ``axes.size``. Raises :class:`ConfigError` when more than ``max_rows``
    points are legal.
    """
    pieces, rows = [], 0
    for piece in legal_chunks(base, axes):
        rows += len(piece)
        if rows > max_rows:
            raise ConfigError(
                f"axes = {', '.join(axes.names)}: more than {max_rows} legal recipes; "
                "fix a field or drop an axis",
                field="axes",
            )
        pieces.append(piece)
    return Table.stacked(pieces) if pieces else Table.of([base]).take(np.zeros(0, dtype=np.int64))


def legal_chunks(base: Recipe, axes: Axes, *, rows: int = CHUNK_ROWS) -> Iterator[Table]:
    """The same points in the same order as :func:`legal_space`, as tables of at most about ``rows`` rows."""
    steps = [_Step.of(base, axis) for axis in axes]
    start = Table.of([base])
    due = _rules_due(axes)
    if any(rule.broken(start)[0] for rule in due[0]):
        return
    yield from _grow(start, steps, due[1:], rows)


def neighbours(recipe: Recipe, axes: Axes) -> list[Recipe]:
    """Legal recipes one step along each axis, in the axes' order, without ``recipe`` and repetitions.

    Along an axis of sizes, the next legal value either way; along any other, every value. Values
    derived from other fields follow them. A step that is illegal as it is, is tried again with what
    hangs on it (virtual stages, the pipeline's split, overlaps) reset.
    """
    start = Table.of([recipe])
    steps = [_Step.of(recipe, axis) for axis in axes]
    here = np.array([step.position(start) for step in steps], dtype=np.int64)
    tries = [
        (number, direction, variant)
        for number, step in enumerate(steps)
        for direction in step.directions(int(here[number]))
        for setting in direction
        for variant in _variants(steps, here, number, setting)
    ]
    if not tries:
        return []
    table = start.take(np.zeros(len(tries), dtype=np.int64))
    for number, step in enumerate(steps):
        table = step.apply(table, np.array([variant[number] for _, _, variant in tries], dtype=np.int64))
    legal = legal_mask(table) & _differs(table, start)

    found: list[int] = []
    served: set[tuple[int, tuple[int, ...] | int]] = set()
    for row, (number, direction, variant) in enumerate(tries):
        # One answer per direction of an ordered axis, one per setting of any other.
        goal = (number, direction if steps[number].axis.ordered else int(variant[number]))
        if legal[row] and goal not in served:
            served.add(goal)
            found.append(row)
    told = {tuple(getattr(table, name)[row].item() for name in COLUMNS): row for row in reversed(found)}
    return [table.recipe(row) for row in sorted(told.values())]


@dataclass(frozen=True, slots=True)
class _Step:
    """An axis with its settings encoded as the columns of a table hold them."""

    axis: Axis
    codes: tuple[np.ndarray, ...]
    """For each field the codes of all settings; those of derived values are not to be used."""

    @classmethod
    def of(cls, base: Recipe, axis: Axis) -> _Step:
        codes = []
        for i, name in enumerate(axis.fields):
            own = getattr(base, name)
            values = [own if isinstance(s[i], Derived) else s[i] for s in axis.settings]
            codes.append(getattr(Table.product(base, {name: values}), name))
        return cls(axis, tuple(codes))

    def __len__(self) -> int:
        return len(self.axis.settings)

    def apply(self, table: Table, choice: Ints) -> Table:
        """``table`` with row i set to setting ``choice[i]``; a negative choice leaves the row alone."""
        columns: dict[str, Any] = {}
        for i, name in enumerate(self.axis.fields):
            old = getattr(table, name)
            new = np.where(choice < 0, old, self.codes[i][choice])
            for k, setting in enumerate(self.axis.settings):
                if isinstance(setting[i], Derived):
                    new = np.where(choice == k, setting[i].of(table), new)
            columns[name] = new.astype(old.dtype)
        return replace(table, **columns)

    def grow(self, table: Table) -> Table:
        """Every row with every setting, a row's settings together; equal settings of a row once."""
        n, m = len(table), len(self)
        grown = self.apply(table.take(np.repeat(np.arange(n), m)), np.tile(np.arange(m), n))
        if any(isinstance(value, Derived) for setting in self.axis.settings for value in setting):
            grown = grown.take(~self._repeats(grown, m))
        return grown

    def _repeats(self, grown: Table, m: int) -> Bools:
        """Rows that say the same as an earlier setting of their group of ``m``."""
        columns = [getattr(grown, name).reshape(-1, m) for name in self.axis.fields]
        repeats = np.zeros((len(grown) // m, m), dtype=np.bool_)
        for later in range(1, m):
            for earlier in range(later):
                same = [column[:, later] == column[:, earlier] for column in columns]
                repeats[:, later] |= np.logical_and.reduce(same)
        return repeats.reshape(-1)

    def position(self, row: Table) -> int:
        """The setting that a table of one row has, or -1."""
        everything = self.apply(row.take(np.zeros(len(self), dtype=np.int64)), np.arange(len(self)))
        same = ~_differs(everything, row)
        return int(np.argmax(same)) if same.any() else -1

    def directions(self, here: int) -> list[tuple[int, ...]]:
        """Settings to try from setting ``here``, nearest first: one list per direction."""
        if not self.axis.ordered or here < 0:
            return [tuple(k for k in range(len(self)) if k != here)]
        return [tuple(range(here - 1, -1, -1)), tuple(range(here + 1, len(self)))]


def _grow(table: Table, steps: list[_Step], due: list[list[Rule]], rows: int) -> Iterator[Table]:
    if not steps:
        yield table
        return
    step = steps[0]
    piece = max(rows // len(step), 1)
    for start in range(0, len(table), piece):
        grown = step.grow(table.take(np.arange(start, min(start + piece, len(table)))))
        legal = np.ones(len(grown), dtype=np.bool_)
        for rule in due[0]:
            legal &= ~rule.broken(grown)
        if legal.any():
            yield from _grow(grown.take(legal), steps[1:], due[1:], rows)


def _rules_due(axes: Axes) -> list[list[Rule]]:
    """Rules decided before any axis, after the first, after the second, ..."""
    due: list[list[Rule]] = [[] for _ in range(len(axes) + 1)]
    for rule in RULES:
        touching = [i + 1 for i, axis in enumerate(axes) if set(axis.fields) & set(rule.fields)]
        due[max(touching, default=0)].append(rule)
    return due


_RESET: dict[str, object] = {
    "vpp": 1,
    "overlap_moe_expert_parallel_comm": False,
    "tp_comm_overlap": False,
    "moe_token_dispatcher": "alltoall",
}
"""Settings that are legal with almost anything, for what may hang on another axis' value."""


def _variants(steps: list[_Step], here: Ints, number: int, setting: int) -> Iterator[Ints]:
    """Choices of all axes that put axis ``number`` to ``setting``, the least changed first."""
    plain = here.copy()
    plain[number] = setting
    yield plain
    reset = plain.copy()
    split = None
    for other, step in enumerate(steps):
        if other == number:
            continue
        if step.axis.name == "pipeline_split":
            split = other
        elif (wanted := (_RESET.get(step.axis.name),)) in step.axis.settings:
            reset[other] = step.axis.settings.index(wanted)
    yield reset
    if split is not None:
        for k in range(len(steps[split])):
            moved = reset.copy()
            moved[split] = k
            yield moved


def _differs(table: Table, row: Table) -> Bools:
    """Which rows of ``table`` are not the single row of ``row``."""
    differs = np.zeros(len(table), dtype=np.bool_)
    for name in COLUMNS:
        differs |= getattr(table, name) != getattr(row, name)[0]
    return differs
