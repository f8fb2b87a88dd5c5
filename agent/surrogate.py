"""A cheap surrogate of the oracle, learned from the trials of this run alone.

Log step time is modelled as a Gaussian process: an additive part over axis choices and physical
figures with weak priors, plus a smooth part over the number of differing axes for what does not add
up (interactions). It ranks recipes that were never scored; it never replaces a score.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwise.agent.features import LOGS, Coding, numbers
from shardwise.engine.table import Floats, Table

Codes = npt.NDArray[np.int16]

# Prior over log time. The reckoned time (first figure) is taken at its word (coefficient 1) and corrected: by
# one choice's own effect, by each figure of ``features.numbers``, and by what does not add up.
_CHOICE_SD = 0.15
_NUMBER_MEAN = np.array([1.0, *[0.0] * (2 + len(LOGS))])
_NUMBER_SD = np.array([0.15, 0.30, 0.15, *[0.05] * len(LOGS)])
_OFFSET_SD = 1.0
_INTERACTION_SD = 0.12
_SIZE_REACH = 1.5
"""Doublings over which an interaction of sizes is felt."""
_WORD_REACH = 3.0
"""Differing axes over which an interaction is felt."""
_SIZES = slice(3, 3 + len(LOGS))
_NOISE_SD = 0.004


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Rows as the surrogate sees them."""

    codes: Codes
    numbers: Floats

    @classmethod
    def of(cls, table: Table, coding: Coding) -> Points:
        return cls(coding.codes(table), numbers(table))

    def take(self, rows: npt.ArrayLike) -> Points:
        index = np.asarray(rows)
        return Points(self.codes[index], self.numbers[index])

    def joined(self, other: Points) -> Points:
        return Points(
            np.concatenate([self.codes, other.codes]), np.concatenate([self.numbers, other.numbers])
        )

    def __len__(self) -> int:
        return len(self.codes)


class Surrogate:
    """Posterior over log time, given scored points."""

    def __init__(self, points: Points, log_times: Floats) -> None:
        """``log_times``: (points,) natural log of the step time (any common unit)."""
        assert len(points) == len(log_times) > 0
        self._points = points
        self._centre = float(log_times.mean())
        kernel = _kernel(points, points) + _NOISE_SD**2 * np.eye(len(points))
        self._factor = np.linalg.cholesky(kernel)
        residual = log_times - self._centre - points.numbers @ _NUMBER_MEAN
        self._weights = np.linalg.solve(kernel, residual)

    def additive(self, points: Points) -> Floats:
        """(rows,) the additive part of the mean only: fast enough for a whole space."""
        out = self._centre + points.numbers @ self._number_weights()
        for axis in range(points.codes.shape[1]):
            trained = self._points.codes[:, axis]
            size = int(max(points.codes[:, axis].max(initial=0), trained.max(initial=0))) + 1
            effect = np.zeros(size + 1)
            np.add.at(effect, np.where(trained < 0, size, trained), _CHOICE_SD**2 * self._weights)
            effect[size] = 0.0
            out += effect[points.codes[:, axis]]
        return np.asarray(out)

    def mean_and_sd(self, points: Points) -> tuple[Floats, Floats]:
        """Posterior mean and standard deviation of log time, each (rows,)."""
        cross = _kernel(points, self._points)
        mean = self._centre + points.numbers @ _NUMBER_MEAN + cross @ self._weights
        half = np.linalg.solve(self._factor, cross.T)
        variance = _variance(points) - (half**2).sum(axis=0)
        return mean, np.sqrt(np.maximum(variance, 1e-12))

    def _number_weights(self) -> Floats:
        return np.asarray(_NUMBER_MEAN + _NUMBER_SD**2 * (self._points.numbers.T @ self._weights))


def _kernel(a: Points, b: Points) -> Floats:
    same = np.zeros((len(a), len(b)))
    for axis in range(a.codes.shape[1]):
        left, right = a.codes[:, axis, None], b.codes[None, :, axis]
        same += (left == right) & (left >= 0)
    linear = _OFFSET_SD**2 + _CHOICE_SD**2 * same + (a.numbers * _NUMBER_SD**2) @ b.numbers.T
    sizes_a, sizes_b = a.numbers[:, _SIZES], b.numbers[:, _SIZES]
    squared = (sizes_a**2).sum(axis=1)[:, None] + (sizes_b**2).sum(axis=1) - 2.0 * sizes_a @ sizes_b.T
    apart = np.maximum(squared, 0.0) / (2.0 * _SIZE_REACH**2) + (a.codes.shape[1] - same) / _WORD_REACH
    return np.asarray(linear + _INTERACTION_SD**2 * np.exp(-apart))


def _variance(points: Points) -> Floats:
    known = (points.codes >= 0).sum(axis=1)
    linear = _OFFSET_SD**2 + _CHOICE_SD**2 * known + (points.numbers**2) @ _NUMBER_SD**2
    unknown = points.codes.shape[1] - known
    return np.asarray(linear + _INTERACTION_SD**2 * np.exp(-unknown / _WORD_REACH))
