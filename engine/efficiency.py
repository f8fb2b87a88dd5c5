"""What hardware delivers of what its data sheet promises: few, physical, named parameters.

The values live in ``calibration.yaml`` beside their origin. They are keyed by architecture, with
overrides for single GPUs where a power limit or a memory type sets them apart; there is no parameter
per model and none per case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.engine.catalog.documents import read_mapping
from shardwise.engine.cluster import GPU
from shardwise.engine.errors import ConfigError, UnsupportedError
from shardwise.engine.recipe import FRAMEWORKS, MATRIX_FORMAT, PRECISIONS
from shardwise.engine.table import Floats, Ints


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Achievable over peak, and fixed costs. Fractions are of the data sheet's dense peak."""

    clock: float
    """Sustained matrix rate over that of the architecture's other parts: power limit and clocks."""
    gemm_16bit: float
    """Large BF16/FP16 GEMM inside a training step (clocks under load included)."""
    gemm_fp8: float
    """Large FP8/MXFP8 GEMM, casts counted apart."""
    gemm_fp4: float
    grouped_gemm: float
    """Grouped GEMM over a plain GEMM of the same total shape."""
    grouped_gemm_quantised: float
    """The same once more below 16 bits, where experts' casts and padding come on top."""
    attention_forward: float
    """Fused attention forward, head dimension 128, of the 16-bit peak."""
    attention_backward: float
    unfused_attention: float
    """Unfused attention's matrix work over the fused one's rate."""
    sink_attention: float
    """Fused attention with sinks over the same without."""
    hbm: float
    """Element-wise kernels, of HBM bandwidth."""
    permute: float
    """Token permutation (gather/scatter rows), of HBM bandwidth."""
    optimizer: float
    """Fused Adam, of HBM bandwidth."""
    fabric: float
    """Ring collectives over the scale-up fabric."""
    nic: float
    """Collectives between nodes, of the NIC."""
    all_to_all: float
    """All-to-all over what a ring reaches on the same link."""
    deepep: float
    """DeepEP / HybridEP dispatch over what a ring reaches."""
    collective_launch_s: float
    """Fixed cost of one collective call."""
    kernel_launch_s: float
    """Least time of one kernel, launch gap included."""
    host_dense_layer_s: float
    """Host time to enqueue one dense layer's forward; backward takes as long again."""
    host_moe_layer_s: float
    """The same for a MoE layer, its device synchronisations included."""
    moe_sync_s: float
    """Time per MoE layer's forward that the device waits for a host that had to learn the tokens per expert
    before it could go on; what CUDA graphs spare the host they spare here too."""
    moe_host_gain: float
    """Share of both times of a MoE layer's host that software has taken off per year."""
    cuda_graph_host: float
    """Share of the host time that is left when whole layers are CUDA graphs."""
    cuda_graph_attn_host: float
    """The same when attention and the router are."""
    cuda_graph_router_host: float
    """The same when the router alone is."""
    eager_passes: float
    """Bytes moved by element-wise work of plain PyTorch operators, over fused kernels'."""
    torchtitan: float
    """Kernel rate in torchtitan's runs over Megatron-Core's."""
    nanotron: float
    deepspeed: float
    maxtext: float
    pytorch: float
    software_gain: float
    """Share of the step time that software has taken off per year."""
    moe_software_gain: float
    """The same on top for MoE models."""
    tp_overlap: float
    """Share of TP communication hidden by ``tp_comm_overlap``."""
    backward_tp_overlap: float
    """Share of backward TP communication hidden behind weight-gradient GEMMs by default."""
    dp_overlap: float
    """Share of the backward (forward) window usable to hide gradient (parameter) communication."""
    fsdp_overlap: float
    """Share of a layer's compute usable to hide FSDP's gathers and scatters."""
    cp_overlap: float
    """Share of attention compute usable to hide the context-parallel ring."""
    ep_overlap: float
    """Share of the expert all-to-all hidden by ``overlap_moe_expert_parallel_comm``."""
    overlap_slowdown: float
    """Time that hidden communication still costs the compute beside it, per second hidden."""
    step_overhead_s: float
    """Fixed time per step: gradient norm, scheduler, logging, data."""
    straggler: float
    """Growth of step time per doubling of the node count beyond one node."""


_RESIDUALS = frozenset(
    f"{kind} {software} {reach}"
    for kind in ("dense", "moe")
    for software in ("megatron-core", "other")
    for reach in ("known", "unknown")
)
_NAMES = frozenset(f.name for f in fields(Efficiency))


@dataclass(frozen=True, slots=True)
class Calibration:
    """Parameter values by scope, the most specific winning: default, vendor, architecture, GPU."""

    default: Mapping[str, float]
    """Every parameter of :class:`Efficiency`."""
    overrides: Mapping[str, Mapping[str, float]]
    """Vendor, architecture or GPU name -> the parameters that differ there."""
    residuals: Mapping[str, tuple[float, float]]
    """Kind, software and reach (:mod:`~shardwise.engine.confidence`) -> 10% and 90% quantiles of measured
    over projected throughput."""
    known_gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """GPU -> the precisions measured on it."""
    known_sizes: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    """``dense | moe`` -> size -> the least and the most measured."""

    def efficiency(self, gpu: GPU) -> Efficiency:
        """The parameters in force for ``gpu``."""
        merged = dict(self.default)
        for scope in (gpu.vendor, gpu.architecture, gpu.name):
            merged.update(self.overrides.get(scope, {}))
        return Efficiency(**merged)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], *, where: str) -> Calibration:
        """Validate a parsed ``calibration.yaml``; ConfigError names the entry that does not fit."""
        scopes = {"default": document.get("default", {}), **document.get("overrides", {})}
        for scope, values in scopes.items():
            for name, value in values.items():
                if name not in _NAMES:
                    raise ConfigError(f"{where}: {scope}.{name} is no parameter", field=name)
                if not isinstance(value, int | float) or not value >= 0:
                    raise ConfigError(
                        f"{where}: {scope}.{name} = {value!r} must be a number >= 0", field=name
                    )
        missing = sorted(_NAMES - scopes["default"].keys())
        if missing:
            raise ConfigError(f"{where}: default lacks {', '.join(missing)}", field=missing[0])
        lacking = sorted(_RESIDUALS - document["residuals"].keys())
        if lacking:
            raise ConfigError(f"{where}: residuals lack {', '.join(lacking)}", field="residuals")
        gpus = {gpu: tuple(words) for gpu, words in document.get("known_gpus", {}).items()}
        spans = {kind: _pairs(values) for kind, values in document.get("known_sizes", {}).items()}
        return cls(scopes.pop("default"), scopes, _pairs(document["residuals"]), gpus, spans)


def _pairs(document: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    return {name: (float(low), float(high)) for name, (low, high) in document.items()}


@lru_cache(maxsize=1)
def shipped_calibration() -> Calibration:
    """The calibration that comes with the engine and that projections use, ``calibration.yaml``."""
    return _shipped("calibration.yaml")


@lru_cache(maxsize=1)
def priors() -> Calibration:
    """What was known of the parameters before any measured run, ``priors.yaml``: where a fit starts."""
    return _shipped("priors.yaml")


def _shipped(name: str) -> Calibration:
    return Calibration.from_document(read_mapping(Path(__file__).with_name(name)), where=name)


def matrix_rate(gpu: GPU, precision: Ints, eff: Efficiency) -> Floats:
    """Sustained FLOP/s of large GEMMs for each row's precision code; UnsupportedError if none."""
    share = {"fp8": eff.gemm_fp8, "mxfp8": eff.gemm_fp8, "fp4": eff.gemm_fp4}
    rates = np.zeros(len(PRECISIONS))
    for code in np.unique(precision):
        word = PRECISIONS[code]
        rates[code] = matrix_peak(gpu, word) * eff.clock * share.get(MATRIX_FORMAT[word], eff.gemm_16bit)
    return np.asarray(rates[precision])


def framework_rate(framework: Ints, eff: Efficiency) -> Floats:
    """Kernel rate of each row's framework (an index into ``FRAMEWORKS``) over Megatron-Core's (n,)."""
    return np.asarray([getattr(eff, word, 1.0) for word in FRAMEWORKS])[framework]


def matrix_peak(gpu: GPU, precision: str) -> float:
    """Dense peak FLOP/s of the format that ``precision`` computes in."""
    form = MATRIX_FORMAT[precision]
    peaks = gpu.peak_flops
    if form not in peaks:
        known = [word for word, wanted in MATRIX_FORMAT.items() if wanted in peaks]
        raise UnsupportedError(
            f"precision={precision}: {gpu.name} has no {form} matrix units; allowed: {', '.join(known)}",
            field="precision",
        )
    return peaks[form]
