"""Simulated collective times: latency plus bytes over the slowest tier's bandwidth.

A *group* is given by its size and the stride of its members in rank order (Megatron-Core's default
order tp-cp-ep-dp-pp), from which follows how many members share one scale-up domain. Ring algorithms
run at the smaller of the fabric's and the node's joint NIC bandwidth: each member in the node brings
its own NIC (rail).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.engine.cluster import Cluster
from shardwise.engine.efficiency import Efficiency
from shardwise.engine.table import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Process groups, one per row: (n,) arrays."""

    size: Floats
    local: Floats
    """Members inside one scale-up domain."""

    @property
    def domains(self) -> Floats:
        """Scale-up domains that the group spans."""
        return np.asarray(self.size / self.local)


def place(cluster: Cluster, size: np.ndarray, stride: np.ndarray) -> Group:
    """Where ``size`` ranks, ``stride`` apart, land: how many share a domain."""
    domain = cluster.scale_up_size
    local = np.clip(domain // np.maximum(stride, 1), 1, size)
    # Members that do not fill domains evenly are spread as evenly as whole domains allow.
    spread = np.ceil(size / np.ceil(size / local))
    return Group(np.asarray(size, dtype=np.float64), np.asarray(spread, dtype=np.float64))


@dataclass(frozen=True, slots=True)
class Network:
    """The cluster's links at their achievable bandwidth (bytes/s, one direction, per GPU)."""

    cluster: Cluster
    efficiency: Efficiency

    def fabric(self, group: Group) -> Floats:
        """Scale-up bandwidth of one member. In a mesh only the links to fellow members count."""
        fabric = self.cluster.fabric
        full = fabric.bandwidth_bytes_per_s * self.efficiency.fabric
        if fabric.kind == "mesh":
            return np.asarray(full * np.maximum(group.local - 1, 1) / max(fabric.domain_size - 1, 1))
        return np.full(group.size.shape, full)

    def nic(self, group: Group) -> Floats:
        """Scale-out bandwidth of one member, less the spine's oversubscription once it leaves a pod."""
        full = self.cluster.nic.bandwidth_bytes_per_s * self.efficiency.nic
        pod = self.cluster.pod_size
        if pod is None or self.cluster.oversubscription == 1.0:
            return np.full(group.size.shape, full)
        # Ranks of a group are spread over the whole rank range that it spans.
        leaves = group.domains * self.cluster.scale_up_size > pod
        return np.where(leaves, full / self.cluster.oversubscription, full)

    def ring_bandwidth(self, group: Group) -> Floats:
        """Bus bandwidth of a ring over the group."""
        inside = np.where(group.local > 1, self.fabric(group), np.inf)
        between = np.where(group.domains > 1, self.nic(group) * group.local, np.inf)
        return np.asarray(np.minimum(inside, between))

    def _latency(self, group: Group, steps_between: Floats) -> Floats:
        fabric, nic = self.cluster.fabric.latency_s, self.cluster.nic.latency_s
        hops = (group.local - 1) * fabric + steps_between * nic
        return np.where(group.size > 1, self.efficiency.collective_launch_s + hops, 0.0)

    def all_gather(self, total_bytes: Floats, group: Group) -> Floats:
        """Ring all-gather to ``total_bytes`` on every member (seconds)."""
        moved = total_bytes * (group.size - 1) / group.size
        return np.asarray(self._latency(group, group.domains - 1) + moved / self.ring_bandwidth(group))

    def reduce_scatter(self, total_bytes: Floats, group: Group) -> Floats:
        """Ring reduce-scatter of ``total_bytes`` on every member (seconds)."""
        return self.all_gather(total_bytes, group)

    def all_reduce(self, total_bytes: Floats, group: Group) -> Floats:
        """All-reduce: ring inside a domain; between domains latency grows as a tree's."""
        moved = 2 * total_bytes * (group.size - 1) / group.size
        steps = 2 * np.ceil(np.log2(np.maximum(group.domains, 1)))
        return np.asarray(self._latency(group, steps) + moved / self.ring_bandwidth(group))

    def all_to_all(
        self,
        sent_bytes: Floats,
        group: Group,
        *,
        tokens_once_per_domain: Floats | float = 1.0,
        fused: np.ndarray | bool = False,
    ) -> Floats:
        """Each member sends ``sent_bytes`` spread evenly over the group.

        Traffic inside the domain and between domains runs side by side. ``tokens_once_per_domain``
        scales the latter where a token travels once per domain rather than once per expert (DeepEP,
        arXiv:2412.19437, section 3.2.2); ``fused``: DeepEP-like kernels instead of library all-to-all.
        """
        eff = self.efficiency
        share = np.where(fused, eff.deepep, eff.all_to_all)
        inside = sent_bytes * (group.local - 1) / group.size / (self.fabric(group) * share)
        between = sent_bytes * (group.size - group.local) / group.size * tokens_once_per_domain
        between = between / (self.nic(group) * share)
        peers = (group.local - 1) * self.cluster.fabric.latency_s + (
            group.domains - 1
        ) * self.cluster.nic.latency_s
        latency = np.where(group.size > 1, eff.collective_launch_s + peers, 0.0)
        return np.asarray(latency + np.maximum(inside, between))

    def point_to_point(self, sent_bytes: Floats, crosses_domain: np.ndarray) -> Floats:
        """One message to one peer over one fabric link (mesh), the fabric (switch) or the NIC."""
        fabric = self.cluster.fabric
        links = max(fabric.domain_size - 1, 1) if fabric.kind == "mesh" else 1
        inside = fabric.latency_s + sent_bytes / (
            fabric.bandwidth_bytes_per_s * self.efficiency.fabric / links
        )
        outside = self.cluster.nic.latency_s + sent_bytes / (
            self.cluster.nic.bandwidth_bytes_per_s * self.efficiency.nic
        )
        return np.asarray(np.where(crosses_domain, outside, inside))
