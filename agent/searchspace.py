"""The space of one search: every legal recipe around the baseline, and which of them fit.

Legality and memory are closed forms over tables and cost no oracle call, so the whole space is known
before the first score. What is fixed stays fixed in every row.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from shardwise.agent.baseline import Baseline, construct
from shardwise.agent.features import Coding
from shardwise.agent.request import TuneRequest
from shardwise.agent.surrogate import Points
from shardwise.agent.trial import Fields, recipe_of
from shardwise.engine.errors import ConfigError
from shardwise.engine.recipe import Recipe
from shardwise.engine.space import Axes, default_axes, legal_chunks
from shardwise.engine.table import Bools, Table
from shardwise.memory_filter import filter_table

MAX_ROWS = 1_500_000
"""Recipes that a search holds at once (a row is about 350 bytes)."""
_DISPENSABLE = (
    "pipeline_split", "tp_comm_overlap", "overlap_moe_expert_parallel_comm", "moe_token_dispatcher",
    "dp_sharding", "cp",
)  # fmt: skip
# Axes left at the baseline's value when a space is too large, in that order.


class SearchSpace:
    """Legal recipes of a request, their memory verdicts and codes; computed when first asked for."""

    def __init__(self, request: TuneRequest, baseline: Baseline) -> None:
        self._request = request
        self._baseline = baseline

    def table_of(self, recipes: list[Fields]) -> Table:
        """The given recipes as a table."""
        return Table.of([recipe_of(self._request, fields) for fields in recipes])

    def fits(self, fields: Fields) -> bool:
        """Whether this legal recipe leaves the margin free."""
        return bool(filter_table(self.table_of([fields]), self._request.margin).keep[0])

    @cached_property
    def anchor(self) -> Fields | None:
        """Where sweeps start: the baseline when it fits, else the constructed recipe that does, else None."""
        if self.fits(self._baseline.fields):
            return self._baseline.fields
        built = construct(self._request, self._baseline.fields).fields
        return built if self.fits(built) else None

    @cached_property
    def legal(self) -> Table:
        """Every legal recipe, fitting or not, in the space's own order.

        A space of more than :data:`MAX_ROWS` recipes is searched without its least important axes.
        """
        base = recipe_of(self._request, self.anchor if self.anchor is not None else self._baseline.fields)
        names = None
        for dropped in range(len(_DISPENSABLE) + 1):
            axes = default_axes(
                base, names=names, fixed=self._request.fixed, precisions=self._request.allow_precision
            )
            table = _gathered(base, axes)
            if table is not None:
                return table
            names = [axis for axis in axes.names if axis not in _DISPENSABLE[: dropped + 1]]
        raise ConfigError(
            f"the space holds more than {MAX_ROWS} recipes even without {', '.join(_DISPENSABLE)}; "
            "fix a field, e.g. fixed tp or pp",
            field="fixed",
        )

    @cached_property
    def keep(self) -> Bools:
        """(legal rows,) whether each leaves the margin free."""
        return filter_table(self.legal, self._request.margin).keep

    @cached_property
    def coding(self) -> Coding:
        """The axes of the space."""
        return Coding.of(self.legal)

    @cached_property
    def legal_codes(self) -> npt.NDArray[np.int16]:
        """(legal rows, axes)."""
        return self.coding.codes(self.legal)

    @cached_property
    def fitting(self) -> Table:
        """The legal recipes that fit: what a proposer chooses from."""
        return self.legal.take(self.keep)

    @cached_property
    def points(self) -> Points:
        """:attr:`fitting` as the surrogate sees it."""
        return Points.of(self.fitting, self.coding)


def _gathered(base: Recipe, axes: Axes) -> Table | None:
    """The legal recipes of the space, or None when there are more than :data:`MAX_ROWS`."""
    pieces: list[Table] = []
    rows = 0
    for piece in legal_chunks(base, axes):
        rows += len(piece)
        if rows > MAX_ROWS:
            return None
        pieces.append(piece)
    return Table.stacked(pieces) if pieces else Table.of([base]).take(np.zeros(0, dtype=np.int64))
