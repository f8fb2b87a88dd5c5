"""What a prediction without any physics would say: the yardsticks of cross-validation.

``nearest``: the MFU of the most similar case. ``constant``: the median MFU of the same GPU, precision and
kind of model. Both know only the cases that are not left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwise.engine.efficiency import matrix_peak
from shardwise.engine.fitting import Observation
from shardwise.engine.flops import flops_per_token
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Bools, Floats

_OTHER_GPU, _OTHER_PRECISION, _OTHER_KIND = 4.0, 2.0, 4.0
"""Distances, in factors of e of a size, that another GPU, precision or kind of model counts for."""


def log_mfu(observations: Sequence[Observation]) -> Floats:
    """log of the measured model FLOPs utilisation (n,)."""
    return np.log([o.tokens_per_s_per_gpu * _seconds_at_peak(o.recipe) for o in observations])


def _seconds_at_peak(recipe: Recipe) -> float:
    peak = matrix_peak(recipe.cluster.gpu, recipe.precision)
    return flops_per_token(recipe.model, recipe.seq_len) / peak


def constant(observations: Sequence[Observation], measured: Floats, left_out: Bools) -> Floats:
    """log(predicted / measured) of the cases ``left_out`` by the median MFU of the likest known cases: same
    GPU, precision and kind, else same GPU and kind, else same kind, else all."""
    keys = [(o.recipe.cluster.gpu.name, o.recipe.precision, o.recipe.model.is_moe) for o in observations]
    known = np.flatnonzero(~left_out)
    error = []
    for i in np.flatnonzero(left_out):
        gpu, precision, moe = keys[i]
        tests = (
            lambda k, g=gpu, p=precision, m=moe: k == (g, p, m),
            lambda k, g=gpu, m=moe: (k[0], k[2]) == (g, m),
            lambda k, m=moe: k[2] == m,
            lambda k: True,
        )
        alike = next(found for test in tests if (found := [j for j in known if test(keys[j])]))
        error.append(float(np.median(measured[alike])) - measured[i])
    return np.asarray(error)


def nearest(observations: Sequence[Observation], measured: Floats, left_out: Bools) -> Floats:
    """log(predicted / measured) of the cases ``left_out`` by the MFU of the nearest known case."""
    features = np.log([_features(o.recipe) for o in observations])
    words = [
        [o.recipe.cluster.gpu.name, o.recipe.precision, str(o.recipe.model.is_moe)] for o in observations
    ]
    codes = np.stack([np.unique(column, return_inverse=True)[1] for column in np.transpose(words)], axis=1)
    weights = np.asarray([_OTHER_GPU, _OTHER_PRECISION, _OTHER_KIND])
    known = np.flatnonzero(~left_out)
    error = []
    for i in np.flatnonzero(left_out):
        apart = np.abs(features[known] - features[i]).sum(axis=1)
        apart = apart + (codes[known] != codes[i]) @ weights
        error.append(measured[known[np.argmin(apart)]] - measured[i])
    return np.asarray(error)


def _features(r: Recipe) -> tuple[float, ...]:
    m = r.model
    return (
        float(m.hidden_size),
        float(m.num_layers),
        float(m.num_experts or 1),
        float(r.seq_len),
        float(r.world_size),
        *(float(size) for size in (r.tp, r.pp, r.vpp, r.cp, r.ep, r.mbs)),
        float(max(r.num_microbatches, 1)),
    )
