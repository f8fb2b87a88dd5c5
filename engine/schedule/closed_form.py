"""Closed forms of the pipeline step over arrays; tests hold them against the simulation.

With ``t_s`` the forward plus backward seconds of one micro-batch on stage ``s`` (all its chunks), the
slowest stage works ``m * max(t)`` seconds, and the first and last micro-batch travel the other stages,
in an interleaved schedule only one chunk's share of them::

    T = m * max(t) + (sum(t) - max(t)) / vpp

which for equal stages is the bubble ``(pp - 1) / (vpp * m)`` of arXiv 2104.04473, section 2.2.3. Schedules
with split backwards fill part of that ramp; how much is simulated, once for every pipeline.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwise.engine.errors import ConfigError
from shardwise.engine.recipe import SCHEDULES
from shardwise.engine.schedule.orders import instruction_order
from shardwise.engine.schedule.simulate import held, simulate
from shardwise.engine.table import Floats, Ints


def pipeline_seconds(
    pp: npt.ArrayLike,
    vpp: npt.ArrayLike,
    m: npt.ArrayLike,
    sum_all: npt.ArrayLike,
    max_stage: npt.ArrayLike,
    schedule: npt.ArrayLike = 0,
) -> tuple[Floats, Floats]:
    """Seconds of a step's pipeline and of the slowest stage's idle time in it, both (n,).

    All arguments broadcast along (n,): ``sum_all`` is the sum over stages of one micro-batch's forward
    plus backward seconds including all chunks and transfers, ``max_stage`` the same of the slowest stage,
    ``schedule`` the index into :data:`~shardwise.engine.recipe.SCHEDULES`.

    Exact for equal stages under GPipe, 1F1B (any ``m``) and interleaved 1F1B with ``m`` a multiple of
    ``pp`` or below it. With fewer micro-batches than stages an interleaved rank waits, once per chunk
    after the first, for its first micro-batch to come round: ``sum_all - m*max_stage`` seconds per round
    of ``vpp`` chunks, which is the last term. For uneven stages whose backward is a fixed multiple
    of their forward: exact under GPipe, never below 1F1B, and below interleaved 1F1B by less than one
    ``max_stage`` (docs/schedules.md).
    """
    stages = np.asarray(pp, float)
    chunks = np.where(np.asarray(schedule) == SCHEDULES.index("gpipe"), 1.0, np.asarray(vpp, float))
    total, slowest, batches = (np.asarray(a, float) for a in (sum_all, max_stage, m))
    ramp = (total - slowest) / chunks
    wait = np.where(
        batches < stages, np.maximum(total - batches * slowest, 0.0) * (chunks - 1.0) / chunks, 0.0
    )
    share = _ramp_share(*(np.asarray(a, np.int64) for a in (schedule, pp, vpp, m)))
    bubble = np.where(stages > 1, np.where(np.isnan(share), ramp + wait, (total - slowest) * share), 0.0)
    return batches * slowest + bubble, bubble


def _ramp_share(schedule: Ints, pp: Ints, vpp: Ints, m: Ints) -> Floats:
    """Idle time of schedules with split backwards over plain 1F1B's ramp; NaN for the other schedules.

    Simulated for equal stages whose forward, gradients of inputs and gradients of weights take equally long,
    which a layer's matrix products do; once for every distinct pipeline.
    """
    rows = np.stack(np.broadcast_arrays(schedule, pp, vpp, m), axis=-1)
    share = np.full(rows.shape[:-1], np.nan)
    split = (rows[..., 0] > SCHEDULES.index("gpipe")) & (rows[..., 1] > 1)
    if split.any():
        kinds, inverse = np.unique(rows[split], axis=0, return_inverse=True)
        found = np.asarray([_simulated_share(*(int(x) for x in kind)) for kind in kinds])
        share[split] = found[inverse.reshape(-1)]
    return share


@lru_cache(maxsize=4096)
def _simulated_share(schedule: int, pp: int, vpp: int, m: int) -> float:
    try:
        chunk = np.full((pp, vpp), 1.0)
        timeline = simulate(SCHEDULES[schedule], m, chunk, 2 * chunk)
    except ConfigError:
        # No legal recipe; priced as 1F1B.
        return 1.0
    return timeline.bubble_s / (3.0 * vpp * (pp - 1))


@lru_cache(maxsize=16384)
def _held(schedule: int, pp: int, vpp: int, m: int, rank: int) -> int:
    try:
        return held(instruction_order(SCHEDULES[schedule], pp, vpp, m, rank))
    except ConfigError:
        return m * vpp


def in_flight(
    pp: npt.ArrayLike,
    vpp: npt.ArrayLike,
    m: npt.ArrayLike,
    stage: npt.ArrayLike,
    schedule: npt.ArrayLike = 0,
) -> Ints:
    """Peak number of chunk activations a rank holds, in units of one micro-batch of *one chunk*.

    Arguments broadcast; ``stage`` is the pipeline rank, ``schedule`` the index into
    :data:`~shardwise.engine.recipe.SCHEDULES`. One more than the warm-up forwards of Megatron-Core:
    1F1B ``min(m, pp - stage)``, interleaved ``min(m*vpp, 2*(pp - stage - 1) + (vpp - 1)*pp + 1)``,
    GPipe ``m``, interleaved with ``m < pp`` all ``m*vpp``; schedules with split backwards as their orders
    say. Divide by ``vpp`` for whole-stage activations.
    """
    p, v, n, s = (np.asarray(a, np.int64) for a in (pp, vpp, m, stage))
    warmup = np.where(v == 1, p - s - 1, np.where(n < p, n * v, 2 * (p - s - 1) + (v - 1) * p))
    peak = np.minimum(n * v, warmup + 1)
    peak = np.where(np.asarray(schedule) == SCHEDULES.index("gpipe"), n * v, peak)
    rows = np.stack(np.broadcast_arrays(np.asarray(schedule), p, v, n, s), axis=-1)
    split = rows[..., 0] > SCHEDULES.index("gpipe")
    if split.any():
        kinds, inverse = np.unique(rows[split], axis=0, return_inverse=True)
        peak = np.broadcast_to(peak, rows.shape[:-1]).copy()
        peak[split] = np.asarray([_held(*(int(x) for x in kind)) for kind in kinds])[inverse.reshape(-1)]
    return np.asarray(peak, np.int64)
