"""Scores the whole legal space around a recipe: memory first, then a projection of everything that fits.

The space is enumerated in tables (:mod:`shardwise.engine.space`) and goes through in chunks that stay in
cache. Of each chunk only the best rows are kept, so memory does not grow with the space.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.engine.errors import ConfigError
from shardwise.engine.memory import memory_table, usable_bytes
from shardwise.engine.projection import project_table
from shardwise.engine.recipe import Recipe
from shardwise.engine.recipe_io import dump_recipe
from shardwise.engine.results import DEFAULT_MARGIN
from shardwise.engine.space import Axes, default_axes, legal_chunks
from shardwise.engine.table import Table
from shardwise.engine.units import GIB

CHUNK = 8192
"""Rows scored at once: large enough to amortise NumPy's overhead, small enough for the cache."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One recipe of a sweep with its figures."""

    recipe: Recipe
    tokens_per_s_per_gpu: float
    peak_bytes: float

    def as_json(self) -> dict[str, Any]:
        return {
            "recipe": dump_recipe(self.recipe),
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "peak_mem_gib": self.peak_bytes / GIB,
        }


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep found, best first."""

    space: int
    """Combinations of all settings of all axes, legal or not."""
    legal: int
    fits: int
    """Legal ones whose peak leaves the margin free; these were projected."""
    seconds: float
    """Wall-clock of the whole sweep."""
    scoring_seconds: float
    """Wall-clock of the projections alone."""
    best: tuple[Scored, ...]

    @property
    def projections_per_s(self) -> float:
        """Projections per second of scoring; 0 when nothing fits."""
        return self.fits / self.scoring_seconds if self.fits and self.scoring_seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "space": self.space,
            "legal": self.legal,
            "fits": self.fits,
            "seconds": self.seconds,
            "projections_per_s": self.projections_per_s,
            "best": [row.as_json() for row in self.best],
        }


def sweep(
    base: Recipe,
    axes: Sequence[str] | None = None,
    *,
    fixed: Collection[str] = (),
    precisions: Sequence[str] = (),
    margin: float = DEFAULT_MARGIN,
    top: int = 10,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[int], None] | None = None,
) -> SweepResult:
    """Score every legal recipe around ``base`` that fits.

    Args:
        base: model, cluster, batch and sequence, and the value of every field that is not swept.
        axes: names of the axes to sweep; None = all that are worth it for the model and cluster.
        fixed: recipe fields that keep the base's value.
        precisions: precisions to try besides the base's.
        margin: share of the device's memory that must stay free, in [0, 1).
        top: how many of the best to keep, at least 1. Ties keep the order of the space.
        clock: seconds, monotonic.
        progress: called with the number of legal recipes seen so far.

    Raises:
        ConfigError: an unknown axis, field or precision; a margin or ``top`` out of range.
    """
    if not 0.0 <= margin < 1.0:
        raise ConfigError(f"margin = {margin:g}: must be at least 0 and below 1", field="margin")
    if top < 1:
        raise ConfigError(f"top = {top}: must be at least 1", field="top")
    start = clock()
    space = default_axes(base, names=axes, fixed=fixed, precisions=precisions)
    legal = fits = 0
    scoring = 0.0
    best: list[tuple[float, int, float, Recipe]] = []
    for table in _chunks(base, space):
        memory = memory_table(table)
        peaks = memory.peak_bytes
        kept = np.flatnonzero(peaks <= usable_bytes(memory.capacity_bytes, margin))
        if len(kept):
            before = clock()
            tokens = project_table(table.take(kept)).tokens_per_s_per_gpu
            scoring += clock() - before
            found = _best(tokens, kept, peaks, table, at=legal, top=top)
            best = sorted([*best, *found], key=lambda row: (-row[0], row[1]))[:top]
        legal += len(table)
        fits += len(kept)
        if progress is not None:
            progress(legal)
    return SweepResult(
        space=space.size,
        legal=legal,
        fits=fits,
        seconds=clock() - start,
        scoring_seconds=scoring,
        best=tuple(Scored(recipe, tokens, peak) for tokens, _, peak, recipe in best),
    )


def _chunks(base: Recipe, space: Axes) -> Iterator[Table]:
    for table in legal_chunks(base, space):
        for start in range(0, len(table), CHUNK):
            yield table.take(np.arange(start, min(start + CHUNK, len(table))))


def _best(
    tokens: np.ndarray, kept: np.ndarray, peaks: np.ndarray, table: Table, *, at: int, top: int
) -> list[tuple[float, int, float, Recipe]]:
    """The best rows of a chunk as (throughput, position in the space, peak, recipe)."""
    order = np.lexsort((kept, -tokens))[:top]
    return [
        (float(tokens[i]), at + int(kept[i]), float(peaks[kept[i]]), table.recipe(int(kept[i])))
        for i in order
    ]
