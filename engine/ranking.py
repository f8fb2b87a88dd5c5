"""Whether the engine orders recipes as the measurements do, which is what a search lives by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from shardwise.engine.fitting import Observation
from shardwise.engine.table import Floats

_APART = 0.03
"""Pairs closer than this in measured throughput are not asked for."""

_SWEEP = 5
"""Cases that make a layout sweep."""


def pairs_in_order(observations: Sequence[Observation], errors: Floats, measured: Floats) -> dict[str, float]:
    """Share of pairs of the same model, GPUs and sequence length, more than 3% apart, that ``errors`` (log
    predicted over measured) leaves in the measured order; each group of cases has one vote.

    Keys ``pairs``, ``groups``, ``right_pct``; the last is NaN without a pair.
    """
    shares, pairs = [], 0
    for members in _groups(observations, _same_model):
        actual, predicted = measured[members], measured[members] + errors[members]
        above = np.triu(np.ones((len(members), len(members)), dtype=bool), 1)
        gap = actual[:, None] - actual[None, :]
        asked = above & (np.abs(gap) > np.log1p(_APART))
        if asked.any():
            right = np.sign(predicted[:, None] - predicted[None, :]) == np.sign(gap)
            shares.append(float(right[asked].mean()))
            pairs += int(asked.sum())
    return {
        "pairs": pairs,
        "groups": len(shares),
        "right_pct": 100 * float(np.mean(shares)) if shares else float("nan"),
    }


def sweeps(observations: Sequence[Observation], errors: Floats, measured: Floats) -> dict[str, float]:
    """Over groups of at least five cases that differ in their recipe only: the median of Kendall's tau and
    of how far, in percent, the measured throughput of our pick lies under the measured best."""
    taus, gaps = [], []
    for members in _groups(observations, _same_sweep):
        if len(members) < _SWEEP:
            continue
        actual, predicted = measured[members], measured[members] + errors[members]
        above = np.triu(np.ones((len(members), len(members)), dtype=bool), 1)
        agree = np.sign(actual[:, None] - actual[None, :]) * np.sign(predicted[:, None] - predicted[None, :])
        taus.append(float(agree[above].mean()))
        gaps.append(100 * -float(np.expm1(actual[int(np.argmax(predicted))] - actual.max())))
    return {
        "sweeps": len(taus),
        "median_tau": float(np.median(taus)) if taus else float("nan"),
        "median_gap_pct": float(np.median(gaps)) if gaps else float("nan"),
        "p90_gap_pct": float(np.percentile(gaps, 90)) if gaps else float("nan"),
    }


def _same_model(o: Observation) -> Hashable:
    r = o.recipe
    return o.group, r.model, r.cluster.world_size, r.seq_len


def _same_sweep(o: Observation) -> Hashable:
    return _same_model(o), o.recipe.gbs, o.recipe.software_year


def _groups(
    observations: Sequence[Observation], key: Callable[[Observation], Hashable]
) -> Iterator[list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for i, o in enumerate(observations):
        found[key(o)].append(i)
    yield from (members for members in found.values() if len(members) > 1)
