"""``Cluster``: what it is trained on. SI units throughout: bytes, bytes/s, FLOP/s, seconds.

Bandwidths are per GPU and *one direction*, as the hardware could deliver them at best; what is
achievable is a matter of calibration, not of the specification.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from shardwise.engine.spec import Spec

Precision = Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "fp4"]
"""A matrix-unit number format, as in ``GPU.peak_flops``."""


class Fabric(Spec):
    """The scale-up fabric: NVLink switch, NVL72 rack, xGMI mesh, PCIe."""

    kind: Literal["switch", "mesh", "pcie"]
    """``switch``: any pair at full bandwidth. ``mesh``: one link per peer, a pair gets 1/(n-1)."""
    bandwidth_bytes_per_s: PositiveFloat
    """Egress of one GPU over all its links, one direction."""
    latency_s: NonNegativeFloat
    """Start-up latency of one hop."""
    domain_size: PositiveInt
    """GPUs that one fabric connects (8 in a DGX or xGMI node, 72 in an NVL72 rack)."""
    spans_nodes: bool = False
    """Whether the fabric reaches beyond one host (NVL72: 18 hosts of 4 GPUs)."""
    in_switch_reduction: bool = False
    """Whether the switches add up an all-reduce themselves (NVLink SHARP, from the fourth NVLink on)."""
    neighbour_bandwidth_bytes_per_s: dict[PositiveInt, PositiveFloat] = Field(default_factory=dict)
    """Egress of one GPU in a group of so many consecutive GPUs, where that is more than an even share: the
    two dies of one MI250X, a quad of a V100 cube mesh, PCIe cards with an NVLink bridge."""


class Nic(Spec):
    """The scale-out network as one GPU sees it."""

    bandwidth_bytes_per_s: PositiveFloat
    """One GPU's share of the node's NICs, one direction."""
    latency_s: NonNegativeFloat
    """Start-up latency between two nodes."""


class GPU(Spec):
    """One accelerator, as the framework sees it (for MI250X: one GCD)."""

    name: str = Field(min_length=1)
    """Catalog name, lower case with dashes (``mi355x``)."""
    vendor: Literal["nvidia", "amd", "other"]
    architecture: str
    """``ampere``, ``hopper``, ``blackwell``, ``cdna2``, ``cdna3``, ``cdna4`` or the user's own word."""
    memory_bytes: PositiveInt
    """Memory the device reports as its total."""
    hbm_bandwidth_bytes_per_s: PositiveFloat
    peak_flops: dict[Precision, PositiveFloat]
    """Dense peak of the matrix units per number format, FLOP/s. A missing format is not supported."""
    vector_flops: PositiveFloat
    """FP32 peak of the vector units, FLOP/s."""
    compute_units: PositiveInt
    """SMs (NVIDIA) or CUs (AMD)."""
    fabric: Fabric
    nic: Nic
    tdp_watts: PositiveFloat | None = None
    price_usd_per_hour: PositiveFloat | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    """For each figure or group of figures, where it comes from."""


class Cluster(Spec):
    """``num_nodes`` equal nodes of ``gpus_per_node`` GPUs."""

    gpu: GPU
    num_nodes: PositiveInt
    gpus_per_node: PositiveInt
    fabric: Fabric
    """The scale-up fabric in force here (the GPU's own unless overridden)."""
    nic: Nic
    """The scale-out network in force here (the GPU's own unless overridden)."""
    oversubscription: float = Field(default=1.0, ge=1.0)
    """Leaf-to-spine oversubscription; traffic that leaves a pod gets 1/oversubscription of the NIC."""
    pod_size: PositiveInt | None = None
    """GPUs below one set of leaf switches (a rail group); None when the network does not block."""

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, data: object) -> object:
        if isinstance(data, dict) and "gpu" in data:
            gpu = data["gpu"]
            own = (
                gpu
                if isinstance(gpu, dict)
                else {"fabric": getattr(gpu, "fabric", None), "nic": getattr(gpu, "nic", None)}
            )
            return {"fabric": own.get("fabric"), "nic": own.get("nic"), **data}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.gpus_per_node > self.fabric.domain_size:
            raise ValueError(
                f"gpus_per_node={self.gpus_per_node} exceeds what one {self.gpu.name} fabric connects "
                f"({self.fabric.domain_size})"
            )
        return self

    @property
    def world_size(self) -> int:
        """GPUs in all."""
        return self.num_nodes * self.gpus_per_node

    @cached_property
    def scale_up_size(self) -> int:
        """GPUs that reach each other over the scale-up fabric: a node, or a rack's share of the job.

        A job larger than a rack takes as many whole nodes of each as divide it evenly (64 of 72 GPUs for 256:
        block scheduling), unless that would leave half of the rack idle.
        """
        domain, node, world = self.fabric.domain_size, self.gpus_per_node, self.world_size
        if not self.fabric.spans_nodes or world <= domain:
            return world if self.fabric.spans_nodes else node
        even = (size for size in range(domain // node * node, domain // 2, -node) if world % size == 0)
        return next(even, domain)
