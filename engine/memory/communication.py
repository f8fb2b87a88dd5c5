"""Buffers of communicators, dispatchers and pipeline transfers."""

from __future__ import annotations

import numpy as np

from shardwise.engine.lowering import Lowered
from shardwise.engine.memory.saved import residual_bytes
from shardwise.engine.precisions import HALF, saved_input_bytes
from shardwise.engine.table import Floats
from shardwise.engine.units import GIB

_COMMUNICATOR_BYTES = 0.3 * GIB
"""Buffers of one NCCL or RCCL communicator: 32 channels of 4 MiB or so, both directions."""

_DEEPEP_BYTES = 1.0 * GIB
"""DeepEP's NVLink and RDMA buffers at its default configuration."""


def library_buffers(low: Lowered) -> Floats:
    """What communication libraries allocate by themselves, outside torch's allocator (n, S)."""
    table = low.table
    groups = sum(
        (size > 1).astype(np.float64)
        for size in (table.tp, table.pp, table.cp, table.ep, table.dp * table.cp)
    )
    deepep = table.is_word("moe_token_dispatcher", "deepep", "hybridep") & (table.ep > 1)
    need = groups * _COMMUNICATOR_BYTES + np.where(deepep, _DEEPEP_BYTES, 0.0)
    return np.broadcast_to(np.asarray(need)[:, None], low.stages.shape)


def tensor_buffers(low: Lowered) -> Floats:
    """Tensors that hold what is on its way: pipeline transfers and user buffers (n, S)."""
    table = low.table
    pipeline = np.where(table.pp > 1, 4 * residual_bytes(low), 0.0)
    buffers = np.where(table.tp_comm_overlap & (table.tp > 1), _user_buffers(low), 0.0)
    return np.broadcast_to(np.asarray(pipeline + buffers)[:, None], low.stages.shape)


def _user_buffers(low: Lowered) -> Floats:
    """Buffers of ``tp_comm_overlap``, each a layer's whole input, shared by all layers (n,): by default
    six for all-gathers, in the linears' precision, and four for reduce-scatters (``initialize_ub``)."""
    return np.asarray(low.tokens * low.table.model.hidden_size * (6 * saved_input_bytes(low) + 4 * HALF))
