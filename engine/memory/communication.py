"""Buffers of communicators, dispatchers and pipeline transfers."""

from __future__ import annotations

import numpy as np

from shardwise.engine.lowering import Lowered
from shardwise.engine.memory.saved import residual_bytes
from shardwise.engine.precisions import HALF, saved_input_bytes
from shardwise.engine.table import Floats
from shardwise.engine.units import GIB

_COMMUNICATOR_BYTES, _LARGE_COMMUNICATOR_BYTES = 0.3 * GIB, 1.0 * GIB
"""One NCCL or RCCL communicator in use: channels with their buffers for every peer and protocol. From Hopper
on NVLink SHARP needs buffers too: of the 6.25 GiB between reserved and device total that a Megatron-LM log
prints for 64 H100 (pull request 6429: PP4 EP16) the context leaves 5.5 to its five communicators; on A100
the 0.3 of 32 channels of 4 MiB, both directions, agree with BLOOM's device totals."""

_SMALL_COMMUNICATORS = ("volta", "ampere", "ada")

_DEEPEP_BYTES = 1.0 * GIB
"""DeepEP's NVLink and RDMA buffers at its default configuration."""


def library_buffers(low: Lowered) -> Floats:
    """What communication libraries allocate by themselves, outside torch's allocator (n, S)."""
    table = low.table
    groups = np.zeros(len(table))
    for size in (table.tp, table.pp, table.cp, table.ep, table.dp * table.cp):
        groups = groups + (size > 1)
    # The gradient norm is summed over the model-parallel group, and everyone meets in the world's.
    groups = groups + (table.tp * table.pp > 1) + (table.cluster.world_size > 1)
    small = table.cluster.gpu.architecture in _SMALL_COMMUNICATORS
    each = _COMMUNICATOR_BYTES if small else _LARGE_COMMUNICATOR_BYTES
    deepep = table.is_word("moe_token_dispatcher", "deepep", "hybridep") & (table.ep > 1)
    need = groups * each + np.where(deepep, _DEEPEP_BYTES, 0.0)
    return np.broadcast_to(np.asarray(need)[:, None], low.stages.shape)


def tensor_buffers(low: Lowered) -> Floats:
    """Tensors that hold what is on its way: pipeline transfers and user buffers (n, S)."""
    table = low.table
    pipeline = np.where(table.pp > 1, 4 * residual_bytes(low), 0.0)
    buffers = np.where(table.tp_comm_overlap & (table.tp > 1), _user_buffers(low), 0.0)
    return np.asarray((pipeline + buffers)[:, None] + _gathered_sequence(low))


def _gathered_sequence(low: Lowered) -> Floats:
    """Megatron's global buffer in which its own column-parallel linears gather the sequence: the output
    head's, and of Megatron's own layers (``local``) every one's (``GlobalMemoryBuffer``) (n, S)."""
    table = low.table
    gathers = table.sequence_parallel & table.is_word("framework", "megatron-core")
    size = np.where(gathers, HALF * low.tokens * table.model.hidden_size, 0.0)
    everywhere = table.is_word("transformer_impl", "local")[:, None]
    return np.asarray(size[:, None] * (everywhere | low.last))


def _user_buffers(low: Lowered) -> Floats:
    """Buffers of ``tp_comm_overlap``, each a layer's whole input, shared by all layers (n,): by default
    six for all-gathers, in the linears' precision, and four for reduce-scatters (``initialize_ub``)."""
    return np.asarray(low.tokens * low.table.model.hidden_size * (6 * saved_input_bytes(low) + 4 * HALF))
