"""Closed forms of the pipeline step over arrays; tests hold them against the simulation.

With ``t_s`` the forward plus backward seconds of one micro-batch on stage ``s`` (all its chunks), the
slowest stage works ``m * max(t)`` seconds, and the first and last micro-batch travel the other stages,
in an interleaved schedule only one chunk's share of them::

    T = m * max(t) + (sum(t) - max(t)) / vpp

which for equal stages is the bubble ``(pp - 1) / (vpp * m)`` of arXiv 2104.04473, section 2.2.3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwise.engine.recipe import SCHEDULES
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
    bubble = np.where(stages > 1, ramp + wait, 0.0)
    return batches * slowest + bubble, bubble


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
    GPipe ``m``, interleaved with ``m < pp`` all ``m*vpp``. Divide by ``vpp`` for whole-stage activations.
    """
    p, v, n, s = (np.asarray(a, np.int64) for a in (pp, vpp, m, stage))
    warmup = np.where(v == 1, p - s - 1, np.where(n < p, n * v, 2 * (p - s - 1) + (v - 1) * p))
    peak = np.minimum(n * v, warmup + 1)
    return np.asarray(np.where(np.asarray(schedule) == SCHEDULES.index("gpipe"), n * v, peak), np.int64)
