"""What a collective library's protocols cost: NCCL and RCCL.

*LL* sends flags beside the data: quick to start, at a small part of the bandwidth. *Simple* waits for whole
chunks: slow to start, at the full bandwidth. A call takes whichever is sooner, as the libraries' tuners do.
A hop's latency is the link's own (``Fabric.latency_s``, ``Nic.latency_s``) plus what the protocol adds.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.engine.cluster import GPU, Fabric


@dataclass(frozen=True, slots=True)
class Library:
    """Latencies in seconds; shares are of the bandwidth that a large ring reaches."""

    ll_base_s: float
    """Start of a call under LL."""
    simple_base_s: float
    """Start of a call under Simple."""
    simple_hop_s: float
    """What Simple adds to a hop over the fabric; LL adds nothing."""
    pcie_hop_s: float
    """The same over PCIe."""
    ll_net_s: float
    """What LL adds to a ring's hop between nodes."""
    ll_tree_net_s: float
    """What LL adds to a tree's hop between nodes."""
    simple_net_s: float
    """What Simple adds to a hop between nodes."""
    ll_inside: float
    """Bandwidth of LL inside a domain."""
    ll_between: float
    """Bandwidth of LL between domains."""
    tree: float
    """Bandwidth of a tree of middling messages, where it beats a ring's many hops."""
    pat: bool
    """Whether all-gather and reduce-scatter with one rank a node take logarithmically many network hops."""


NCCL = Library(
    ll_base_s=6.6e-6,
    simple_base_s=8.4e-6,
    simple_hop_s=2.8e-6,
    pcie_hop_s=4.7e-6,
    ll_net_s=0.7e-6,
    ll_tree_net_s=3.0e-6,
    simple_net_s=12e-6,
    ll_inside=0.375,
    ll_between=0.11,
    tree=0.46,
    pat=True,
)
"""NCCL's tuner constants (NVIDIA/nccl, src/graph/tuning.cc, ncclTunerConstantsDefaults): base latencies; hops
of 3.4 us over NVLink, 5.7 over PCIe and 14 over the network under Simple, less the catalog's link latency;
LL's ceilings of 87.7 (Ampere), 141 (Hopper) and 282 GB/s (Blackwell) over the ring's 235, 370 and 700 in a
node, 19 over 190 between more than two nodes; a tree at 0.92 of the ring, times about 0.5 for sizes up to
some MiB (treeCorrectionFactor)."""

RCCL = Library(
    ll_base_s=12e-6,
    simple_base_s=41e-6,
    simple_hop_s=1.65e-6,
    pcie_hop_s=4.7e-6,
    ll_net_s=7.5e-6,
    ll_tree_net_s=8.5e-6,
    simple_net_s=23e-6,
    ll_inside=0.08,
    ll_between=0.08,
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


def simple_hop(lib: Library, fabric: Fabric) -> float:
    """Seconds of one hop over the fabric under Simple."""
    return fabric.latency_s + (lib.pcie_hop_s if fabric.kind == "pcie" else lib.simple_hop_s)
