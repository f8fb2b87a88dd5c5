"""What a collective library's protocols cost: NCCL and RCCL.

*LL* sends flags beside the data: quick to start, at a small part of the bandwidth. *Simple* waits for whole
chunks: slow to start, at the full bandwidth. *LL128* (NVLink only) is between: 120 of 128 bytes are data. A
call takes whichever is sooner, as the libraries' tuners do. A hop's latency is the link's own
(``Fabric.latency_s``, ``Nic.latency_s``) plus what the protocol adds.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.engine.cluster import GPU, Fabric


@dataclass(frozen=True, slots=True)
class Protocol:
    """Latencies in seconds; the shares are of the bandwidth that a large ring reaches."""

    base_s: float
    """Start of a call."""
    hop_s: float
    """What it adds to a hop over the fabric."""
    ring_net_s: float
    """What it adds to a ring's hop between nodes."""
    tree_net_s: float
    """What it adds to a tree's hop between nodes."""
    inside: float = 1.0
    """Bandwidth inside a domain."""
    between: float = 1.0
    """Bandwidth between domains."""
    pcie_hop_s: float = 0.0
    """What it adds to a hop over PCIe, in place of ``hop_s``."""

    def hop(self, fabric: Fabric) -> float:
        """Seconds of one hop over ``fabric``."""
        return fabric.latency_s + (self.pcie_hop_s if fabric.kind == "pcie" else self.hop_s)


@dataclass(frozen=True, slots=True)
class Library:
    """A library's protocols and what else its tuner knows."""

    ll: Protocol
    ll128: Protocol | None
    """Used inside NVLink domains and between them; None where the library has none."""
    simple: Protocol
    tree: float
    """Bandwidth of a tree of middling messages, where it beats a ring's many hops."""
    pat: bool
    """Whether all-gather and reduce-scatter with one rank a node take logarithmically many network hops."""


NCCL = Library(
    ll=Protocol(6.6e-6, 0.0, ring_net_s=0.7e-6, tree_net_s=3.0e-6, inside=0.375, between=0.11),
    ll128=Protocol(14e-6, 1.3e-6, ring_net_s=2.0e-6, tree_net_s=6.5e-6, inside=0.92, between=0.92),
    simple=Protocol(8.4e-6, 2.8e-6, ring_net_s=12e-6, tree_net_s=12e-6, pcie_hop_s=4.7e-6),
    tree=0.46,
    pat=True,
)
"""NCCL's tuner constants (NVIDIA/nccl, src/graph/tuning.cc, ncclTunerConstantsDefaults): base latencies; hops
of 0.6 us over NVLink and 2.7 over the network under LL, 1.9 and 4 under LL128, 3.4 and 14 under Simple (5.7
over PCIe), less the catalog's link latencies; LL's ceilings of 87.7 (Ampere), 141 (Hopper) and 282 GB/s
(Blackwell) over the ring's 235, 370 and 700 in a node, 19 over 190 between more than two nodes; a tree at
0.92 of the ring, times about 0.5 for sizes up to some MiB (treeCorrectionFactor)."""

RCCL = Library(
    ll=Protocol(12e-6, 0.0, ring_net_s=7.5e-6, tree_net_s=8.5e-6, inside=0.08, between=0.08),
    ll128=None,
    simple=Protocol(41e-6, 1.65e-6, ring_net_s=23e-6, tree_net_s=23e-6, pcie_hop_s=4.7e-6),
    tree=0.46,
    pat=False,
)
"""RCCL's tuner constants (ROCm/rccl, src/graph/tuning.cc, tuning_model_5, the MI300X's), save that Simple's
start is fitted: on the all-reduces of 8 MI300X published by Azure, whose time less bytes over 317 GB/s is
66 to 79 us from 1 MiB to 256 MiB, of which 14 hops explain 29."""

NVLS_LATENCY_S = 25e-6
"""Start of an all-reduce in NVLink's switches (NCCL's tuner constant)."""
NVLS_SPEEDUP = 1.27
"""Its bus bandwidth over a ring's: 480 over 367 GB/s on 8 H200, 838 over 682 on 8 B200 (nccl-tests, in
ml-engineering's network chapter), 850 over 680 on an NVL72 rack (GTC 2025, S72583)."""
NVLS_LEAST = 6
"""GPUs from which NCCL picks it: 5 on H200, 6 on B200 (same place); no gain at 4."""
NVLS_CHUNK_S = 0.56e-6
"""Pipelining: a chain of chunks costs 2 sqrt(t c) beyond its transfer time t when the chunk is chosen best;
``c`` per rank, since every rank heads a part of each chunk, is fitted on nccl-tests' all-reduces of 8 H200
from 2 MiB to 64 MiB."""
NVLS_PIPELINE_BYTES = 4 * 2**20
"""Message per rank from which the chunks stop growing, fitted on the same table."""

PAT_HOP_S, PAT_RANK_S, PAT_SHARE = 4.0e-6, 2.8e-6, 0.75
"""PAT of NCCL (same file): a network hop of 14/3.5 us per doubling, 2.8 us per rank, 3/4 of the bandwidth."""

PEER_S = 0.45e-6
"""All-to-all's start-up per peer on another node (AMD Primus' collective model, ``a2a per-peer``)."""

PCIE_SHARE = 0.7
"""PCIe cards share root ports and host memory, which NVLink and xGMI do not: a ring of A100 reaches 20 of
32 GB/s (nccl-tests issue 178), of Gen5 cards 28 to 35 of 64 (nccl issue 1639)."""


def library(gpu: GPU) -> Library:
    """The vendor's library; NCCL where there is none known."""
    return RCCL if gpu.vendor == "amd" else NCCL
