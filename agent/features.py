"""What the surrogate sees of a recipe: which word or number it chose on each axis, and a few numbers.

An *axis* is one column of the table, or several that move together (recomputation; ``tp`` with
sequence parallelism). Axes are found, not listed: whatever varies in the space is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwise.agent import napkin
from shardwise.engine.memory import recomputed_share_of_model
from shardwise.engine.pipeline_layout import chunk_layers
from shardwise.engine.recipe import PIPELINE_SPLIT, RECOMPUTE_DETAILS
from shardwise.engine.table import COLUMNS, METHODS, Bools, Floats, Ints, Table

JOINT: dict[str, tuple[str, ...]] = {
    "recompute": ("recompute", *RECOMPUTE_DETAILS),
    "tp": ("tp", "sequence_parallel"),
    "dp_sharding": ("dp_sharding", "dp_shard_size", "fsdp_reshard_after_forward"),
    "pipeline_split": PIPELINE_SPLIT,
}
"""Axis -> the columns that move together on it."""
_JOINED = {column for columns in JOINT.values() for column in columns}
AXES: dict[str, tuple[str, ...]] = {
    **JOINT,
    **{name: (name,) for name in COLUMNS if name not in _JOINED and name not in ("gbs", "seq_len")},
}
"""Every axis a search may move, with its columns."""

LOGS = ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs")


@dataclass(frozen=True, slots=True, eq=False)
class _Choices:
    """The choices of one axis: combinations of its columns' levels, ascending."""

    levels: tuple[Floats, ...]
    """Per column its distinct values, ascending."""
    combinations: Ints
    """Mixed-radix numbers of level indices, ascending."""

    @classmethod
    def of(cls, table: Table, columns: tuple[str, ...]) -> _Choices:
        levels = tuple(np.unique(_meaning(table, name)) for name in columns)
        number, _ = _number(table, columns, levels)
        return cls(levels, np.unique(number))

    def codes(self, table: Table, columns: tuple[str, ...]) -> Ints:
        number, known = _number(table, columns, self.levels)
        place = np.minimum(np.searchsorted(self.combinations, number), len(self.combinations) - 1)
        return np.where(known & (self.combinations[place] == number), place, -1)

    def __len__(self) -> int:
        return len(self.combinations)


@dataclass(frozen=True, slots=True, eq=False)
class Coding:
    """The axes that vary in a space, and for each its choices: a row's code is the index of its choice."""

    axes: tuple[str, ...]
    choices: tuple[_Choices, ...]

    @classmethod
    def of(cls, table: Table) -> Coding:
        """The coding of every axis on which ``table`` has more than one choice."""
        if not len(table):
            return cls((), ())
        found = {axis: _Choices.of(table, columns) for axis, columns in AXES.items()}
        kept = {axis: choices for axis, choices in found.items() if len(choices) > 1}
        return cls(tuple(kept), tuple(kept.values()))

    def codes(self, table: Table) -> npt.NDArray[np.int16]:
        """(rows, axes) codes; -1 for a choice that the space does not have."""
        out = np.full((len(table), len(self.axes)), -1, dtype=np.int16)
        for i, (axis, choices) in enumerate(zip(self.axes, self.choices, strict=True)):
            out[:, i] = choices.codes(table, AXES[axis])
        return out

    def identity(self, codes: npt.NDArray[np.int16]) -> Ints:
        """(rows,) one number per row, the same for rows of equal codes."""
        out = np.zeros(len(codes), dtype=np.int64)
        for i, choices in enumerate(self.choices):
            out = out * (len(choices) + 1) + codes[:, i] + 1
        return out


def numbers(table: Table) -> Floats:
    """(rows, 10) figures that a choice acts through: the reckoned log time, the pipeline bubble, the
    recomputed share, log2 of the sizes.

    The bubble is that of a uniform pipeline, log(1 + (pp-1)/(vpp*m)) with m micro-batches (Narayanan et
    al. 2021, section 2.2); the recomputed share is that of the layers whose forward pass runs twice.
    """
    bubble = np.log1p((table.pp - 1) / (table.vpp * table.num_microbatches))
    logs = [np.log2(getattr(table, name).astype(np.float64)) for name in LOGS]
    return np.stack([napkin.log_time(table), bubble, recomputed_share_of_model(table), *logs], axis=1)


def _number(table: Table, columns: tuple[str, ...], levels: tuple[Floats, ...]) -> tuple[Ints, Bools]:
    number = np.zeros(len(table), dtype=np.int64)
    known = np.ones(len(table), dtype=np.bool_)
    for name, values in zip(columns, levels, strict=True):
        column = _meaning(table, name)
        place = np.minimum(np.searchsorted(values, column), len(values) - 1)
        known &= values[place] == column
        number = number * len(values) + place
    return number, known


def _meaning(table: Table, name: str) -> Floats:
    """The column, with counts of layers read as the choice behind them: it is the share of a chunk that is
    recomputed, or that a stage differs at all, which carries over from one pipeline size to another."""
    column = getattr(table, name).astype(np.float64)
    if name == "recompute_num_layers":
        block = table.recompute_method == METHODS.index("block")
        share = np.round(4.0 * column / np.maximum(chunk_layers(table), 1)) / 4.0
        return np.asarray(np.where(block, share, column))
    if name in ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"):
        return np.asarray(column > 0, dtype=np.float64)
    return np.asarray(column)


def differing(codes: npt.NDArray[np.int16], one: npt.NDArray[np.int16]) -> Ints:
    """(rows,) on how many axes each row differs from ``one``; a choice outside the space always does."""
    return np.asarray(((codes != one) | (one < 0)).sum(axis=1), dtype=np.int64)


def axis_columns(axis: str) -> tuple[str, ...]:
    """The recipe fields that move on ``axis``."""
    return AXES[axis]
