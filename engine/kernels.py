"""Simulated kernel times: a roofline with tile and wave quantisation, achievable rates, launch floor.

All arguments are scalars or arrays that broadcast; all results are seconds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwise.engine.table import Floats

Number = npt.ArrayLike

_TILE_ROWS = np.array([256.0, 128.0, 64.0])
_TILE_COLUMNS = np.array([128.0, 128.0, 64.0])
_TILE_RATE = np.array([1.0, 0.95, 0.65])
"""Output tiles and their rate over the largest one's. A smaller tile reads more operand bytes per FLOP;
the ratios are those of CUTLASS' published tile sweeps, rounded."""

_K_PROLOGUE = 128.0
"""Depth of K that filling and draining the tile pipeline costs, in elements (three stages of 32 to 64)."""


def gemm_seconds(
    m: Number,
    n: Number,
    k: Number,
    *,
    rate: Number,
    bandwidth: float,
    compute_units: int,
    launch_s: float,
    groups: Number = 1.0,
    element_bytes: Number = 2.0,
) -> Floats:
    """``groups`` products of (m x k) by (k x n).

    ``rate``: sustained FLOP/s of a large product; ``bandwidth``: achievable HBM bytes/s. The best tile
    is taken: padding to whole tiles and a partly filled last wave cost what they cost.
    """
    m, n, k, groups = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (m, n, k, groups)))
    # Tiles along a new first axis.
    rows, columns, relative = (x.reshape(-1, *(1,) * m.ndim) for x in (_TILE_ROWS, _TILE_COLUMNS, _TILE_RATE))
    waves = groups * np.ceil(m / rows) * np.ceil(n / columns) / compute_units
    # Split-K and stream-K scheduling recover part of a bad last wave, hence the half-way rounding.
    filled = np.where(waves > 1, (np.ceil(waves) + waves) / 2, 1.0)
    per_wave = compute_units * 2.0 * rows * columns / relative
    math = (filled * per_wave).min(axis=0) * (k + _K_PROLOGUE) / np.asarray(rate)
    moved = groups * (m * k + k * n + m * n) * np.asarray(element_bytes)
    return np.asarray(np.maximum(math, moved / bandwidth) + launch_s)


def attention_seconds(
    flops: Number, *, rate: Number, head_dim: float, bytes_moved: Number, bandwidth: float, launch_s: float
) -> Floats:
    """Fused attention. ``rate``: sustained FLOP/s at head dimension 128.

    Below 128 the softmax, which does not shrink with the head dimension, weighs more: at 64 the
    published kernels reach about 0.75 of their rate at 128 (FlashAttention-2, table of figure 5).
    """
    shape = min(1.0, 0.5 + 0.5 * head_dim / 128.0)
    return np.asarray(
        np.maximum(np.asarray(flops) / (np.asarray(rate) * shape), np.asarray(bytes_moved) / bandwidth)
        + launch_s
    )


def streaming_seconds(
    bytes_moved: Number, *, bandwidth: float, launch_s: float, kernels: float = 1.0
) -> Floats:
    """Element-wise work: bytes over bandwidth, never less than its kernels take to launch."""
    return np.asarray(np.asarray(bytes_moved) / bandwidth + kernels * launch_s)
