"""What operators cost: simulated seconds of one layer, forward and backward, by bucket.

The only place where an operator meets a cost source. Simulated costs come from
:mod:`~shardwise.engine.kernels` and :mod:`~shardwise.engine.collectives`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from shardwise.engine.cluster import GPU
from shardwise.engine.collectives import Group, Network, place
from shardwise.engine.efficiency import Calibration, Efficiency, framework_rate, matrix_rate
from shardwise.engine.kernels import attention_seconds, gemm_seconds, streaming_seconds
from shardwise.engine.lowering import LayerKind, Lowered
from shardwise.engine.precisions import saved_input_bytes
from shardwise.engine.recipe import CUDA_GRAPH_SCOPES, NEWEST_SOFTWARE
from shardwise.engine.table import Bools, Floats, Table
from shardwise.engine.workload import Attention, Collective, Gemm, Operator, Stream, layer_operators

Times = dict[str, Floats]
"""Bucket -> seconds (n,)."""

_ATTENTION_BACKWARD_FLOPS = 2.5
"""Five products against two forward (FlashAttention-2, arXiv:2307.08691, section 3.2)."""

_ATTENTION_BACKWARD_BYTES = 2.0
"""Queries, keys, values, outputs and their gradients: twice the tensors of the forward pass."""


@dataclass(slots=True)
class Cost:
    """Seconds of some operators, per micro-batch: by bucket and pass, and what running them again costs."""

    forward: Times = field(default_factory=dict)
    backward: Times = field(default_factory=dict)
    recompute: Floats | float = 0.0
    """Forward seconds run again in the backward pass under the row's selective recomputation."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """Everything that turns an operator into seconds, for one lowered table."""

    low: Lowered
    eff: Efficiency
    network: Network
    rate: Floats
    """Sustained matrix FLOP/s of each row's precision (n,)."""
    half_rate: float
    """The same in 16 bits."""
    hbm: float
    groups: dict[str, Group]
    selective: bool
    """Whether any row recomputes selectively."""
    slowness: Floats
    """Kernel seconds of each row's framework over Megatron-Core's (n,)."""
    passes: Floats
    """Bytes of element-wise work over those of fused kernels (n,)."""

    @classmethod
    def of(cls, low: Lowered, calibration: Calibration) -> Pricing:
        """The cost model of ``low``'s cluster."""
        table, gpu = low.table, low.table.cluster.gpu
        eff = calibration.efficiency(gpu)
        return cls(
            low=low,
            eff=eff,
            network=Network(table.cluster, eff),
            rate=matrix_rate(gpu, table.precision, eff),
            half_rate=_half_peak(gpu) * eff.clock * eff.gemm_16bit,
            hbm=gpu.hbm_bandwidth_bytes_per_s * eff.hbm,
            groups=_groups(table),
            selective=bool(table.is_word("recompute", "selective").any()),
            slowness=1.0 / framework_rate(table.framework, eff),
            passes=np.where(_fused(table), 1.0, eff.eager_passes),
        )

    def price(self, operators: Iterable[Operator]) -> Cost:
        """Sum the operators' seconds."""
        cost = Cost()
        for operator in operators:
            forward, backward = self._seconds(operator)
            _add(cost.forward, operator.bucket, forward)
            _add(cost.backward, operator.bucket, backward)
            if self.selective and operator.modules:
                cost.recompute = cost.recompute + np.where(self._again(operator.modules), forward, 0.0)
        return cost

    def _again(self, modules: tuple[str, ...]) -> Bools:
        return np.asarray(np.logical_or.reduce([self.low.table.recompute_module(m) for m in modules]))

    def _seconds(self, op: Operator) -> tuple[Floats, Floats]:
        if isinstance(op, Collective):
            return self._collective(op)
        if isinstance(op, Gemm):
            forward, backward = self._gemm(op)
        elif isinstance(op, Attention):
            forward, backward = self._attention(op)
        else:
            forward, backward = self._stream(op)
        return forward * self.slowness, backward * self.slowness

    def _stream(self, op: Stream) -> tuple[Floats, Floats]:
        bandwidth = self.hbm * (self.eff.permute / self.eff.hbm if op.permute else 1.0)

        def kernel(moved: Floats) -> Floats:
            return streaming_seconds(
                moved * self.passes,
                bandwidth=bandwidth,
                launch_s=self.eff.kernel_launch_s,
                kernels=op.kernels,
            )

        return kernel(op.forward_bytes), kernel(op.backward_bytes)

    def _gemm(self, op: Gemm) -> tuple[Floats, Floats]:
        cluster, eff = self.low.table.cluster, self.eff
        rate = self.rate if op.quantised else np.full_like(self.rate, self.half_rate)
        size = saved_input_bytes(self.low) if op.quantised else np.full_like(self.rate, 2.0)
        if op.grouped:
            rate = rate * eff.grouped_gemm * np.where(size < 2.0, eff.grouped_gemm_quantised, 1.0)

        # Forward, input gradient and weight gradient, stacked.
        m, n, k = np.broadcast_arrays(op.m, op.n, op.k)
        forward, dgrad, wgrad = gemm_seconds(
            np.stack([m, m, k]),
            np.stack([n, k, n]),
            np.stack([k, n, m]),
            rate=rate,
            bandwidth=self.hbm,
            compute_units=cluster.gpu.compute_units,
            launch_s=eff.kernel_launch_s,
            groups=op.groups,
            element_bytes=size,
        )
        # Quantising reads 16 bits and writes both layouts; weights are cast once per step, not counted.
        cast = np.where(size < 2.0, (2.0 + 2 * size) / self.hbm, 0.0)
        groups = np.asarray(op.groups)
        return forward + cast * groups * op.m * op.k, dgrad + wgrad + cast * groups * op.m * op.n

    def _attention(self, op: Attention) -> tuple[Floats, Floats]:
        eff, gpu, table = self.eff, self.low.table.cluster.gpu, self.low.table
        peak = _half_peak(gpu) * eff.clock
        unfused = table.is_word("attention_backend", "unfused")
        sinks = eff.sink_attention if table.model.attention_sink else 1.0
        slow = np.where(unfused, eff.unfused_attention, sinks)
        scores = np.where(unfused, op.unfused_bytes, 0.0) / self.hbm
        # The unfused path cannot skip the masked half.
        flops = op.flops * np.where(unfused, 2.0, 1.0)

        def kernel(flops: Floats, share: float, bytes_moved: Floats) -> Floats:
            return attention_seconds(
                flops,
                rate=peak * share * slow,
                head_dim=op.head_dim,
                bytes_moved=bytes_moved,
                bandwidth=self.hbm,
                launch_s=eff.kernel_launch_s,
            )

        forward = kernel(flops, eff.attention_forward, op.bytes)
        factor = np.where(unfused, 2.0, _ATTENTION_BACKWARD_FLOPS)
        backward = kernel(factor * flops, eff.attention_backward, _ATTENTION_BACKWARD_BYTES * op.bytes)
        return forward + scores, backward + 2 * scores

    def _collective(self, op: Collective) -> tuple[Floats, Floats]:
        zeros = np.zeros(len(self.low.table))
        active = np.asarray(op.active)
        if not active.any():
            return zeros, zeros
        once = np.where(active, self._once(op), 0.0)
        return op.forward_times * once, op.backward_times * once

    def _once(self, op: Collective) -> Floats:
        group, network = self.groups[op.group], self.network
        if op.op == "all_gather":
            return network.all_gather(op.bytes, group)
        if op.op == "reduce_scatter":
            return network.reduce_scatter(op.bytes, group)
        if op.op == "all_reduce":
            return network.all_reduce(op.bytes, group)
        if op.op == "all_to_all":
            return self._exchange(op, group)
        # A ring passes its tensor on size - 1 times; the slowest hop sets the pace.
        hop = network.point_to_point(op.bytes, group.domains > 1)
        return np.asarray((group.size - 1) * hop)

    def _exchange(self, op: Collective, group: Group) -> Floats:
        table, network = self.low.table, self.network
        fused = table.is_word("moe_token_dispatcher", "deepep", "hybridep") & (op.group == "ep")
        if not fused.any():
            return network.all_to_all(op.bytes, group)
        once = network.dispatch(op.bytes, group, table.model)
        return once if fused.all() else np.where(fused, once, network.all_to_all(op.bytes, group))


def _half_peak(gpu: GPU) -> float:
    return gpu.peak_flops.get("bf16", gpu.peak_flops.get("fp16", 0.0))


def _fused(table: Table) -> Bools:
    """Whether element-wise work is done by fused kernels: Megatron-Core's, XLA's or torch.compile's."""
    return np.asarray(table.is_word("framework", "megatron-core", "maxtext") | table.torch_compile)


def _groups(table: Table) -> dict[str, Group]:
    """Process groups in Megatron-Core's default rank order tp-cp-ep-dp-pp."""
    cluster, one = table.cluster, np.ones_like(table.tp)
    return {
        "tp": place(cluster, table.tp, one),
        "cp": place(cluster, table.cp, table.tp),
        "etp": place(cluster, table.etp, one),
        "ep": place(cluster, table.ep, table.etp),
    }


def _add(times: Times, bucket: str, seconds: Floats) -> None:
    times[bucket] = times[bucket] + seconds if bucket in times else seconds


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer of a kind, overlap and host time applied; seconds per micro-batch (n,)."""

    forward: Times
    backward: Times
    recompute: Floats
    """Extra backward seconds of recomputation, when the layer is recomputed in the recipe's way."""
    full_recompute: Floats
    """Its whole forward again."""
    free: tuple[Floats, Floats]
    """Seconds of the forward and of the backward with no communication in them or beside them."""


def layer_cost(pricing: Pricing, kind: LayerKind) -> LayerCost:
    """Seconds of one layer of ``kind``."""
    cost = pricing.price(layer_operators(pricing.low, kind))
    table, eff = pricing.low.table, pricing.eff
    beside = _overlap(pricing, cost)
    share = _host_share(table, eff)
    if kind.moe:
        share = share * np.exp(eff.moe_host_gain * software_age(table))
        # With a capacity factor the shapes are known before the step.
        waits = np.where(table.moe_expert_capacity_factor > 0, 0.0, eff.moe_sync_s)
        _add(cost.forward, "other", share * waits)
    host_s = share * (eff.host_moe_layer_s if kind.moe else eff.host_dense_layer_s)
    for times in (cost.forward, cost.backward):
        busy = np.sum(list(times.values()), axis=0)
        _add(times, "other", np.maximum(host_s - busy, 0.0))
    whole = np.asarray(np.sum(list(cost.forward.values()), axis=0))
    again = np.asarray(cost.recompute + np.zeros(len(table)))
    passes = zip((cost.forward, cost.backward), beside, strict=True)
    free = tuple(np.maximum(_without_communication(times) - hidden, 0.0) for times, hidden in passes)
    return LayerCost(cost.forward, cost.backward, again, whole, (free[0], free[1]))


def software_age(table: Table) -> Floats:
    """Years by which each row's software is older than the newest calibrated (n,)."""
    return np.maximum(NEWEST_SOFTWARE - table.software_year, 0.0)


def _host_share(table: Table, eff: Efficiency) -> Floats:
    """Share of a layer's host time that the row's CUDA graphs leave (n,)."""
    left = {
        "layer": eff.cuda_graph_host,
        "attn": eff.cuda_graph_attn_host,
        "moe_router": eff.cuda_graph_router_host,
        "full_iteration": 0.0,
    }
    shares = np.asarray([left[word] for word in CUDA_GRAPH_SCOPES])
    return np.where(table.cuda_graphs, shares[table.cuda_graph_scope], 1.0)


def _without_communication(times: Times) -> Floats:
    return np.asarray(np.sum([t for name, t in times.items() if not name.endswith("_comm")], axis=0))


def _overlap(pricing: Pricing, cost: Cost) -> list[Floats]:
    """Hides communication behind compute inside a layer, less what sharing the device costs; gives the
    seconds hidden in the forward and in the backward. No second of compute hides two of them."""
    table, eff = pricing.low.table, pricing.eff
    tp_share = np.where(table.tp_comm_overlap, eff.tp_overlap, 0.0)
    # Forwards of the warm-up and backwards of the cool-down have no partner: pp of m micro-batches, in
    # the mean over the stages (num_warmup_microbatches of the interleaved schedule).
    paired = np.maximum(1.0 - table.pp / table.num_microbatches, 0.0)
    ep_share = np.where(table.overlap_moe_expert_parallel_comm, eff.ep_overlap * paired, 0.0)
    ring = np.where(table.is_word("cp_comm_type", "p2p"), 1.0, 0.0)
    hidden = []
    for times, default in ((cost.forward, 0.0), (cost.backward, eff.backward_tp_overlap)):
        compute = np.sum([times[bucket] for bucket in ("attention", "mlp", "moe") if bucket in times], axis=0)
        left = compute - _hide(times, "tp_comm", np.maximum(tp_share, default), compute, eff)
        beside_attention = np.minimum(left, eff.cp_overlap * np.asarray(times["attention"]))
        left = left - _hide(times, "cp_comm", ring, beside_attention, eff)
        left = left - _hide(times, "ep_comm", ep_share, left, eff)
        hidden.append(np.asarray(compute - left))
    return hidden


def _hide(times: Times, bucket: str, share: Floats, window: Floats, eff: Efficiency) -> Floats | float:
    if bucket not in times:
        return 0.0
    hidden = np.minimum(share * times[bucket], window)
    times[bucket] = times[bucket] - hidden * (1 - eff.overlap_slowdown)
    return hidden
