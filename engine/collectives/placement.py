"""Where a process group lies.

A group is given by its size and the stride of its members in rank order (Megatron-Core's default order
tp-cp-ep-dp-pp), from which follows how many members share one scale-up domain and one pod. All groups of a
kind work at once, one per GPU of a domain at most, so that each member counts on its own share of the NICs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.engine.cluster import Cluster
from shardwise.engine.table import Bools, Floats


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Process groups, one per row: (n,) arrays."""

    size: Floats
    local: Floats
    """Members inside one scale-up domain."""
    podded: Floats
    """Members below one set of leaf switches; all of them when the network does not block."""
    neighbours: Bools
    """Whether the members inside a domain are consecutive GPUs."""

    @property
    def domains(self) -> Floats:
        """Scale-up domains that the group spans."""
        return np.asarray(self.size / self.local)


def place(cluster: Cluster, size: np.ndarray, stride: np.ndarray) -> Group:
    """Where ``size`` ranks, ``stride`` apart, land: how many share a domain, how many a pod."""
    local = _within(cluster.scale_up_size, size, stride)
    pod = cluster.pod_size
    podded = np.asarray(size, dtype=np.float64) if pod is None else _within(pod, size, stride)
    return Group(
        np.asarray(size, dtype=np.float64),
        local,
        np.maximum(podded, local),
        np.broadcast_to(np.asarray(stride) == 1, local.shape),
    )


def _within(span: int, size: np.ndarray, stride: np.ndarray) -> Floats:
    """Members inside ``span`` consecutive ranks. What does not fill whole spans is spread evenly."""
    inside = np.clip(span // np.maximum(stride, 1), 1, size)
    return np.asarray(np.ceil(size / np.ceil(size / inside)), dtype=np.float64)
