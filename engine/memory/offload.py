"""Saved activations of some layers on the host (Megatron-Core's ``cpu_offloading_num_layers``).

A layer's activations leave while the next layers run forward and come back ahead of its backward; one
layer is always on its way (Transformer Engine's ``AsyncDoubleBufferGroupOffloadHandler``).
"""

from __future__ import annotations

import numpy as np

from shardwise.engine.cluster import GPU
from shardwise.engine.lowering import Lowered
from shardwise.engine.memory.saved import layer_saved
from shardwise.engine.table import Floats

_HOST_LINK_BYTES_PER_S = {"volta": 12e9, "ampere": 25e9, "ada": 25e9}
_PCIE5_BYTES_PER_S, _GRACE_BYTES_PER_S = 55e9, 400e9
"""One direction, per GPU: 55 and 56 GB/s are measured on MI300X (PCIe 5 x16), half and a quarter of it for
PCIe 4 and 3; GB200 and GB300 reach their Grace CPU by NVLink-C2C, of whose 450 GB/s 0.9 is taken."""


def host_link(gpu: GPU) -> float:
    """Bytes/s between the GPU and its host's memory, one direction."""
    if gpu.name.startswith("gb"):
        return _GRACE_BYTES_PER_S
    return _HOST_LINK_BYTES_PER_S.get(gpu.architecture, _PCIE5_BYTES_PER_S)


def offloaded_share(low: Lowered) -> Floats:
    """Share of a stage's saved activations that is on the host when the backward pass begins (n,)."""
    layers = max(low.table.model.num_layers, 1)
    return np.asarray(np.maximum(low.table.cpu_offloading_num_layers - 1, 0) / layers)


def exposed_seconds(low: Lowered, forward: Floats, backward: Floats) -> Floats:
    """Seconds per micro-batch that transfers outlast the layers beside them (n,); ``forward``, ``backward``:
    of one micro-batch through all layers."""
    table = low.table
    share = table.cpu_offloading_num_layers / max(table.model.num_layers, 1)
    saved = sum((count.max(axis=1) * layer_saved(low, kind)[1] for kind, count in low.layers.items()), 0.0)
    moving = share * np.asarray(saved) / host_link(table.cluster.gpu)
    late = np.maximum(moving - share * forward, 0.0) + np.maximum(moving - share * backward, 0.0)
    return np.asarray(late)
