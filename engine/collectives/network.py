"""Seconds of each collective over a group, from its links and its library.

Every group's figures (bandwidth of its ring, latency of each algorithm) are worked out once, so that one
call is a handful of array operations: ``min over algorithms of (latency + bytes / bandwidth)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shardwise.engine.cluster import Cluster
from shardwise.engine.collectives.libraries import (
    NVLS_CHUNK_S,
    NVLS_LATENCY_S,
    NVLS_LEAST,
    NVLS_PIPELINE_BYTES,
    NVLS_SPEEDUP,
    PAT_HOP_S,
    PAT_RANK_S,
    PAT_SHARE,
    PCIE_SHARE,
    PEER_S,
    Library,
    Protocol,
    library,
)
from shardwise.engine.collectives.placement import Group
from shardwise.engine.collectives.routing import Spread, dispatch_spread
from shardwise.engine.efficiency import Efficiency
from shardwise.engine.model import Model
from shardwise.engine.table import Bools, Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """What one group's links and algorithms cost; latencies in seconds, zero where the group is one rank."""

    ring: Floats
    """Seconds per byte that every member ends up with, all-gathered by a ring."""
    rings: tuple[tuple[Floats, Floats | float], ...]
    """For each protocol its latency and its seconds per byte over ``ring``: all-gather, reduce-scatter."""
    reductions: tuple[tuple[Floats, Floats | float], ...]
    """The same for all-reduce, seconds over a ring's ``2 ring``: protocols of small messages, and trees."""
    pat: Floats | None
    """With one member a domain; None where there is no such group."""
    large: tuple[Floats, Floats | float]
    """All-reduce's best algorithm for large messages."""
    in_switch: Bools | None
    """Whose all-reduce the switches do; None when nobody's."""


@dataclass(frozen=True, slots=True)
class Network:
    """The cluster's links at their achievable bandwidth (bytes/s, one direction, per GPU)."""

    cluster: Cluster
    efficiency: Efficiency
    _paths: dict[Group, _Path] = field(default_factory=dict)
    _spreads: dict[Group, Spread] = field(default_factory=dict)
    """Of the one model that the groups' table has."""

    @property
    def library(self) -> Library:
        """NCCL or RCCL."""
        return library(self.cluster.gpu)

    def fabric(self, group: Group) -> Floats:
        """Scale-up bandwidth of one member. In a mesh only the links to fellow members count."""
        fabric = self.cluster.fabric
        share = self.efficiency.fabric * (PCIE_SHARE if fabric.kind == "pcie" else 1.0)
        full = fabric.bandwidth_bytes_per_s * share
        if fabric.kind == "mesh":
            found = full * np.maximum(group.local - 1, 1) / max(fabric.domain_size - 1, 1)
        else:
            found = np.full(group.size.shape, full)
        for members, bandwidth in fabric.neighbour_bandwidth_bytes_per_s.items():
            # A bridge is a link of its own: it does not pass through the host.
            near = group.neighbours & (group.local > 1) & (group.local <= members)
            found = np.where(near, np.maximum(found, bandwidth * self.efficiency.fabric), found)
        return np.asarray(found)

    def nic(self, group: Group) -> Floats:
        """Scale-out bandwidth of one member."""
        return np.full(group.size.shape, self.cluster.nic.bandwidth_bytes_per_s * self.efficiency.nic)

    def ring_bandwidth(self, group: Group) -> Floats:
        """Bus bandwidth of a ring over the group: the smaller of the fabric's and the joint NICs', as rings
        of several channels leave a domain at every member. Of a pod's members only one domain's send
        upwards at a time, so an oversubscribed spine is felt where a pod holds few of the group."""
        inside = np.where(group.local > 1, self.fabric(group), np.inf)
        between = np.where(group.domains > 1, self.nic(group) * group.local, np.inf)
        crowd = self.cluster.oversubscription * group.local / group.podded
        between = np.where(group.size > group.podded, between / np.maximum(crowd, 1.0), between)
        return np.asarray(np.minimum(inside, between))

    def _path(self, group: Group) -> _Path:
        if group not in self._paths:
            self._paths[group] = self._worked_out(group)
        return self._paths[group]

    def _worked_out(self, group: Group) -> _Path:
        lib, fabric, nic = self.library, self.cluster.fabric, self.cluster.nic
        size, local, domains = group.size, group.local, group.domains
        several, apart = size > 1, domains > 1
        across = bool(apart.any())
        launch = self.efficiency.collective_launch_s
        up = np.ceil(np.log2(domains)) if across else domains - 1

        def latency(base: float, hops: Floats) -> Floats:
            return np.where(several, launch + base + hops, 0.0)

        def ring(protocol: Protocol) -> Floats:
            network = nic.latency_s + protocol.ring_net_s
            return np.asarray((size - domains) * protocol.hop(fabric) + (domains - 1) * network)

        def tree(protocol: Protocol) -> Floats:
            network = nic.latency_s + protocol.tree_net_s
            return np.asarray(2 * ((local - 1) * protocol.hop(fabric) + up * network))

        def cost(protocol: Protocol) -> Floats | float:
            if protocol.inside == protocol.between or not across:
                return 1 / protocol.inside
            return np.where(apart, 1 / protocol.between, 1 / protocol.inside)

        nvlink = fabric.kind != "pcie"
        protocols = [lib.ll, lib.simple] + ([lib.ll128] if lib.ll128 and nvlink else [])
        reductions = [(latency(lib.ll.base_s, np.minimum(tree(lib.ll), 2 * ring(lib.ll))), cost(lib.ll))]
        if lib.ll128 and nvlink:
            reductions.append((latency(lib.ll128.base_s, 2 * ring(lib.ll128)), cost(lib.ll128)))
        if across:
            # A tree saves hops of the network only.
            hops = np.where(apart, tree(lib.simple), np.inf)
            reductions.append((latency(lib.simple.base_s, hops), 1 / lib.tree))
        pat = None
        if across and lib.pat and bool((alone := (local == 1) & apart).any()):
            hops = np.where(alone, up * PAT_HOP_S + size * PAT_RANK_S, np.inf)
            pat = latency(lib.simple.base_s, hops)
        bandwidth = self.ring_bandwidth(group)
        start, share, in_switch = self._large(
            group, bandwidth, latency(lib.simple.base_s, 2 * ring(lib.simple))
        )
        return _Path(
            ring=(size - 1) / size / bandwidth,
            rings=tuple((latency(p.base_s, ring(p)), cost(p)) for p in protocols),
            reductions=tuple(reductions),
            pat=pat,
            large=(start, share),
            in_switch=in_switch,
        )

    def _large(
        self, group: Group, bandwidth: Floats, ring: Floats
    ) -> tuple[Floats, Floats | float, Bools | None]:
        """All-reduce of large messages: latency, seconds over a ring's, and whose the switches do.

        ``ring``: a ring's latency.
        """
        if not self.cluster.fabric.in_switch_reduction:
            return ring, 1.0, None
        launch, nic = self.efficiency.collective_launch_s, self.cluster.nic
        wide, apart = group.local >= NVLS_LEAST, group.domains > 1
        in_switch = wide & ~apart
        share = np.where(in_switch, 1 / NVLS_SPEEDUP, 1.0)
        start = np.where(in_switch, launch + NVLS_LATENCY_S, ring)
        if bool(apart.any()):
            # Two domains exchange their sums: each sends the message once, which a ring does twice.
            pair = wide & (group.domains == 2) & (group.size <= group.podded)
            once = group.size / (2 * np.maximum(group.size - 1, 1)) / (self.nic(group) * group.local)
            best = np.maximum(bandwidth / (self.fabric(group) * NVLS_SPEEDUP), once * bandwidth)
            share = np.where(pair, np.minimum(best, 1.0), share)
            exchange = NVLS_LATENCY_S + 2 * (nic.latency_s + self.library.simple.tree_net_s)
            start = np.where(pair, np.minimum(launch + exchange, start), start)
        return start, share, in_switch if bool(in_switch.any()) else None

    def all_gather(self, total_bytes: Floats, group: Group) -> Floats:
        """All-gather to ``total_bytes`` on every member (seconds): a ring under its best protocol, or PAT."""
        path = self._path(group)
        seconds = _soonest(total_bytes * path.ring, path.rings)
        if path.pat is not None:
            seconds = np.minimum(seconds, path.pat + total_bytes * path.ring / PAT_SHARE)
        return np.asarray(seconds)

    def reduce_scatter(self, total_bytes: Floats, group: Group) -> Floats:
        """Reduce-scatter of ``total_bytes`` on every member (seconds): an all-gather backwards."""
        return self.all_gather(total_bytes, group)

    def all_reduce(self, total_bytes: Floats, group: Group) -> Floats:
        """All-reduce (seconds): the soonest of a ring or a tree under each protocol and the best for large
        messages: a ring, the switches' own sum (NVLink SHARP), or for two domains the exchange of sums."""
        path = self._path(group)
        ring, (start, share) = 2 * total_bytes * path.ring, path.large
        large = ring * share
        seconds = start + large
        if path.in_switch is not None:
            most = 2 * NVLS_PIPELINE_BYTES * group.size * path.ring * share
            filling = 2 * np.sqrt(np.minimum(large, most) * NVLS_CHUNK_S * group.size)
            seconds = np.where(path.in_switch, seconds + filling, seconds)
        return np.minimum(seconds, _soonest(ring, path.reductions))

    def sharded_reduce(self, total_bytes: Floats, shards: Group, replicas: Group) -> Floats:
        """Seconds of a hybrid-sharded reduction: scattered over the shard group, then each shard all-reduced
        over its replicas, whose groups use all NICs at once."""
        scattered = self.reduce_scatter(total_bytes, shards)
        return np.asarray(scattered + self.all_reduce(total_bytes / shards.size, replicas))

    def all_to_all(self, sent_bytes: Floats, group: Group) -> Floats:
        """Library all-to-all (seconds): each member sends ``sent_bytes`` spread evenly over the group.

        Traffic inside the domain and between domains runs side by side, the latter over each member's own
        NIC.
        """
        share = self.efficiency.all_to_all
        inside = sent_bytes * (group.local - 1) / group.size / (self.fabric(group) * share)
        between = sent_bytes * (group.size - group.local) / group.size / (self.nic(group) * share)
        between = between * self._spine(group)
        return np.asarray(self._exchange_latency(group) + np.maximum(inside, between))

    def dispatch(self, sent_bytes: Floats, group: Group, model: Model) -> Floats:
        """DeepEP- or HybridEP-like exchange (seconds) of what would be ``sent_bytes`` with one copy of a
        token per expert.

        A token goes once to each domain that wants it, over the sender's NIC, and from there over the
        fabric once to each rank that wants it (arXiv:2412.19437, section 3.2.2); both run side by side.
        """
        if group not in self._spreads:
            self._spreads[group] = dispatch_spread(model, group)
        spread, share = self._spreads[group], self.efficiency.deepep
        # What a rank gets has come over the fabric unless it arrived on its own rail.
        inside = sent_bytes * spread.ranks * (group.local - 1) / group.local / (self.fabric(group) * share)
        between = sent_bytes * spread.domains / (self.nic(group) * share) * self._spine(group)
        return np.asarray(self._exchange_latency(group) + np.maximum(inside, between))

    def _spine(self, group: Group) -> Floats:
        """How much longer evenly spread traffic takes for what leaves the pod (n,), at least 1."""
        leaves = (group.size - group.podded) / np.maximum(group.size - group.local, 1.0)
        return np.maximum(self.cluster.oversubscription * leaves, 1.0)

    def _exchange_latency(self, group: Group) -> Floats:
        lib, nic = self.library, self.cluster.nic
        peers = (group.local - 1) * self.cluster.fabric.latency_s + (group.size - group.local) * PEER_S
        peers = peers + np.where(group.domains > 1, nic.latency_s + lib.simple.tree_net_s, 0.0)
        start = self.efficiency.collective_launch_s + lib.ll.base_s
        return np.where(group.size > 1, start + peers, 0.0)

    def point_to_point(
        self, sent_bytes: Floats, crosses_domain: np.ndarray, leaves_pod: np.ndarray | bool = False
    ) -> Floats:
        """One message to one peer (seconds): over one fabric link (mesh), the fabric (switch) or the NIC,
        which has its part of the spine when everybody's message leaves the pod."""
        fabric, nic, lib = self.cluster.fabric, self.cluster.nic, self.library
        links = max(fabric.domain_size - 1, 1) if fabric.kind == "mesh" else 1
        share = self.efficiency.fabric * (PCIE_SHARE if fabric.kind == "pcie" else 1.0)
        inside = lib.simple.hop(fabric) + sent_bytes / (fabric.bandwidth_bytes_per_s * share / links)
        start = nic.latency_s + lib.simple.tree_net_s
        spine = np.where(leaves_pod, self.cluster.oversubscription, 1.0)
        outside = start + sent_bytes * spine / (nic.bandwidth_bytes_per_s * self.efficiency.nic)
        return np.asarray(np.where(crosses_domain, outside, inside))


def _soonest(ring: Floats, ways: tuple[tuple[Floats, Floats | float], ...]) -> Floats:
    """The least of ``latency + cost * ring`` over the ways, (latency, cost) each."""
    (latency, cost), *rest = ways
    seconds = latency + ring * cost
    for latency, cost in rest:
        seconds = np.minimum(seconds, latency + ring * cost)
    return np.asarray(seconds)
