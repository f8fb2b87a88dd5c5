"""What the device holds besides tensors: its context and the allocator's slack."""

from __future__ import annotations

import numpy as np

from shardwise.engine.lowering import Lowered
from shardwise.engine.table import Floats
from shardwise.engine.units import GIB

_CONTEXT_BYTES = {"nvidia": 0.75 * GIB, "amd": 1.75 * GIB, "other": 1.0 * GIB}
"""Device context, library workspaces and code objects before any tensor, as idle processes show in
nvidia-smi (0.5 to 0.9 GiB) and rocm-smi (1.5 to 2 GiB)."""

_FRAGMENTATION, _EXPANDABLE = 0.04, 0.01
"""Reserved over allocated, of what comes and goes in a step (public Megatron-LM logs print 3 to 6%); with
``expandable_segments`` only the last, partly used pages of each stream's segment are lost."""


def context_bytes(low: Lowered) -> Floats:
    """What the device holds before the first tensor, and what others on it hold (n, 1)."""
    others = low.table.reserved_by_other_gib * GIB
    return np.asarray(_CONTEXT_BYTES[low.table.cluster.gpu.vendor] + others)[:, None]


def fragmentation_bytes(low: Lowered, moving: Floats) -> Floats:
    """What the allocator reserves beyond the tensors; ``moving``: the bytes that come and go (n, S)."""
    return np.where(low.table.expandable_segments, _EXPANDABLE, _FRAGMENTATION)[:, None] * moving
