"""What the device holds besides tensors: its context and the allocator's slack."""

from __future__ import annotations

from shardwise.engine.lowering import Lowered
from shardwise.engine.table import Floats
from shardwise.engine.units import GIB

_CONTEXT_BYTES = {"nvidia": 0.75 * GIB, "amd": 1.75 * GIB, "other": 1.0 * GIB}
"""Device context, library workspaces and code objects before any tensor, as idle processes show in
nvidia-smi (0.5 to 0.9 GiB) and rocm-smi (1.5 to 2 GiB)."""

_FRAGMENTATION = 0.04
"""Reserved over allocated, of what comes and goes in a step (public Megatron-LM logs print 3 to 6%)."""


def context_bytes(low: Lowered) -> float:
    """Before the first tensor."""
    return _CONTEXT_BYTES[low.table.cluster.gpu.vendor]


def fragmentation_bytes(low: Lowered, moving: Floats) -> Floats:
    """What the allocator reserves beyond the tensors; ``moving``: the bytes that come and go (n, S)."""
    return _FRAGMENTATION * moving
