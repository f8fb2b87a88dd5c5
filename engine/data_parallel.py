"""Communication of gradients and parameters over the data-parallel groups, and how much of it shows.

Dense parameters are reduced over dp x cp, expert parameters over edp. DDP and ZeRO-1 communicate once per
step, bucket by bucket, beside the last micro-batch's backward and the first one's forward; ZeRO-2 reduces in
every micro-batch; FSDP gathers and scatters per layer and micro-batch, HSDP inside the shard group, with an
all-reduce of the shards over their replicas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.engine.collectives import Group, place
from shardwise.engine.costs import Pricing
from shardwise.engine.lowering import LayerKind
from shardwise.engine.memory import gradient_bytes, optimizer_bytes, shard_sizes
from shardwise.engine.memory.states import waiting_gradients
from shardwise.engine.parameters import Parameters, layer_dense, layer_expert
from shardwise.engine.pipeline_layout import loss_stage
from shardwise.engine.precisions import saved_input_bytes
from shardwise.engine.table import Bools, Floats, Table

_HOST_ADAM_SECONDS = 1.7e-9
"""Seconds per parameter of Adam on the host, its gradient sent there and its weight sent back, with eight
GPUs sharing one host: Megatron-Bridge's card on offloading, Qwen3-30B-A3B on two H100 nodes, 996 ms a step
without, 1871, 2484, 3187 and 4189 ms with a quarter to all of 1.9e9 parameters a GPU on the host."""


_BUCKET_PARAMETERS, _BUCKET_PARAMETERS_PER_RANK = 40e6, 1e6
"""Megatron-Core's default bucket, ``max(40e6, 1e6 * dp * cp)`` elements, so that a ring's chunks outlast its
hops (``resolve_ddp_bucket_size``)."""


@dataclass(frozen=True, slots=True)
class _Grids:
    """The two data-parallel groups, and their split into shard group and replicas under HSDP."""

    shard: Group
    replica: Group


def _grids(pricing: Pricing) -> tuple[_Grids, _Grids]:
    """Dense and expert grids; placed once, as their links are worked out once per group."""
    table, groups = pricing.low.table, pricing.groups
    if "dense shards" not in groups:
        dense_shards, expert_shards = (s.astype(np.int64) for s in shard_sizes(table))
        unsharded = table.is_word("dp_sharding", "none")
        for kind, size, shards, stride in (
            ("dense", table.dp * table.cp, dense_shards, table.tp),
            ("expert", table.edp, expert_shards, table.etp * table.ep),
        ):
            whole = np.where(unsharded, size, shards)
            groups[f"{kind} shards"] = place(table.cluster, whole, stride)
            groups[f"{kind} replicas"] = place(table.cluster, np.maximum(size // whole, 1), stride * whole)
    dense, expert = (_Grids(groups[f"{kind} shards"], groups[f"{kind} replicas"]) for kind in _KINDS)
    return dense, expert


_KINDS = ("dense", "expert")


def _parameter_bytes(pricing: Pricing) -> Floats:
    """Bytes per gathered parameter of a linear: quantised with ``fp8_param_gather``, save MXFP8, whose two
    copies are made from gathered 16-bit values (``reuse_grad_buf_for_mxfp8_param_ag``) (n,)."""
    table = pricing.low.table
    quantised = table.fp8_param_gather & ~table.is_word("precision", "mxfp8")
    return np.where(quantised, saved_input_bytes(pricing.low), 2.0)


def _reduce_seconds(pricing: Pricing, grid: _Grids, size: Floats, *, scatter: Bools) -> Floats:
    """Reduce ``size`` bytes of gradients: scatter over the shard group, all-reduce over replicas; or
    all-reduce where nothing is sharded (``scatter`` False)."""
    network = pricing.network
    if bool((grid.replica.size > 1).any()):
        seconds = network.sharded_reduce(size, grid.shard, grid.replica)
    else:
        seconds = network.reduce_scatter(size, grid.shard)
    if bool(scatter.all()):
        return seconds
    return np.where(scatter, seconds, network.all_reduce(size, grid.shard))


def step_exposed(pricing: Pricing, parameters: Parameters, forward: Floats, backward: Floats) -> Floats:
    """Seconds per step of DDP/ZeRO-1/2 communication that no compute hides (n,).

    ``parameters``: of one stage's rank (n,); ``forward``/``backward``: that stage's seconds of one
    micro-batch, beside which parameters are gathered and gradients reduced. Overlapped, both go bucket by
    bucket: the last bucket of gradients is ready only when the backward is over, the first of parameters is
    needed before the forward. Without overlap there is one bucket, as in Megatron-Core's
    ``DistributedDataParallel``.
    """
    table, eff = pricing.low.table, pricing.eff
    sharded = ~table.is_word("dp_sharding", "none")
    wide = _parameter_bytes(pricing)
    launch = eff.collective_launch_s
    reduced = _Buckets(table, table.overlap_grad_reduce, launch)
    gathered = _Buckets(table, table.overlap_param_gather, launch)
    dense, expert = _grids(pricing)
    for grid, count in ((dense, parameters.dense), (expert, parameters.expert)):
        number = reduced.number(count)
        size = count * gradient_bytes(table) / number
        reduced.add(number, _reduce_seconds(pricing, grid, size, scatter=sharded))
        number = gathered.number(count)
        size = count * wide + (parameters.tables * (2.0 - wide) if grid is dense else 0.0)
        gathered.add(number, np.where(sharded, pricing.network.all_gather(size / number, grid.shard), 0.0))
    # Gradients that are kept sharded leave after every micro-batch.
    every = np.where(table.is_word("dp_sharding", "zero2"), table.num_microbatches, 1)
    exposed = np.zeros(len(table))
    for buckets, window, times in ((reduced, backward, every), (gathered, forward, 1)):
        hidden = np.minimum(buckets.total - buckets.largest, eff.dp_overlap * window)
        hidden = np.where(buckets.overlapped, hidden, 0.0)
        exposed = exposed + times * (buckets.total - hidden * (1 - eff.overlap_slowdown))
    per_layer = table.is_word("dp_sharding", "fsdp", "hsdp")
    return np.where(per_layer, 0.0, exposed)


class _Buckets:
    """Seconds of all buckets of a step and of the largest one, (n,) each. They are enqueued one behind the
    other, so that only the first one's launch counts; the library's own latency is each one's."""

    def __init__(self, table: Table, overlapped: Bools, launch_s: float) -> None:
        self.overlapped, self._launch_s = overlapped, launch_s
        self.total, self.largest = np.zeros(len(table)), np.zeros(len(table))
        self._parameters = np.maximum(_BUCKET_PARAMETERS, _BUCKET_PARAMETERS_PER_RANK * table.dp * table.cp)

    def number(self, parameters: Floats) -> Floats:
        """Buckets that ``parameters`` of one kind fill."""
        whole = np.ceil(parameters / self._parameters)
        return np.where(self.overlapped, np.maximum(whole, 1.0), 1.0)

    def add(self, number: Floats, each: Floats) -> None:
        """``number`` buckets of ``each`` seconds."""
        launched = np.minimum(each, self._launch_s)
        self.total = self.total + number * (each - launched) + launched
        self.largest = np.maximum(self.largest, each)


def tied_embedding_seconds(pricing: Pricing) -> Floats:
    """Seconds per step of adding up the gradients of a tied embedding's two copies, on the first and on the
    last stage, once the backward pass is over (n,)."""
    low, table = pricing.low, pricing.low.table
    apart = table.cluster.world_size // table.pp * (table.pp - 1)
    pair = place(table.cluster, np.full(len(table), 2), apart)
    size = low.vocab * table.model.hidden_size * gradient_bytes(table)
    two = (loss_stage(table) > 0) & table.model.share_embeddings_and_output_weights
    return np.where(two, pricing.network.all_reduce(size, pair), 0.0)


def layer_exposed(
    pricing: Pricing, kind: LayerKind, forward: Floats, backward: Floats
) -> tuple[Floats, Floats]:
    """Seconds per layer and micro-batch of FSDP communication that shows, (forward, backward), each (n,).

    ``forward``/``backward``: the layer's own seconds, beside which the next layer is gathered and the
    previous one's gradient scattered.
    """
    low, table = pricing.low, pricing.low.table
    expert = layer_expert(table.model, table) if kind.moe else np.zeros(len(table))
    sizes = (layer_dense(low, kind), expert)
    return _unit_exposed(pricing, sizes, _parameter_bytes(pricing), forward, backward)


def end_exposed(pricing: Pricing, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
    """The same for the embedding or the output head, which are gathered in 16 bits; once a micro-batch."""
    low = pricing.low
    sizes = (low.vocab * low.table.model.hidden_size, np.zeros(len(low.table)))
    return _unit_exposed(pricing, sizes, np.full(len(low.table), 2.0), forward, backward)


def _unit_exposed(
    pricing: Pricing, sizes: tuple[Floats, Floats], bytes_each: Floats, forward: Floats, backward: Floats
) -> tuple[Floats, Floats]:
    table, eff = pricing.low.table, pricing.eff
    on = table.is_word("dp_sharding", "fsdp", "hsdp")
    if not on.any():
        zeros = np.zeros(len(table))
        return zeros, zeros
    gather, reduce = np.zeros(len(table)), np.zeros(len(table))
    yes = np.ones(len(table), dtype=np.bool_)
    for grid, count in zip(_grids(pricing), sizes, strict=True):
        gather = gather + pricing.network.all_gather(count * bytes_each, grid.shard)
        reduce = reduce + _reduce_seconds(pricing, grid, count * gradient_bytes(table), scatter=yes)
    again = np.where(table.fsdp_reshard_after_forward, gather, 0.0)
    # Spread over the micro-batches what happens once a step.
    once = np.where(waiting_gradients(table), 1.0 / table.num_microbatches, 1.0)
    gather = gather * np.where(table.fsdp_reshard_after_forward, 1.0, once)
    reduce = reduce * once
    shown = []
    for seconds, window in ((gather, forward), (again + reduce, backward)):
        hidden = np.minimum(seconds, eff.fsdp_overlap * window)
        shown.append(np.where(on, seconds - hidden * (1 - eff.overlap_slowdown), 0.0))
    return shown[0], shown[1]


def optimizer_seconds(pricing: Pricing, parameters: Parameters) -> Floats:
    """Optimizer step and gradient norm over this rank's shard, memory-bound (n,).

    Read gradient twice (norm, step), read and write master weights and moments, write the 16-bit weight.
    What is offloaded the host updates instead.
    """
    table = pricing.low.table
    dense_shards, expert_shards = shard_sizes(table)
    owned = parameters.dense / dense_shards + parameters.expert / expert_shards
    moved = 2 * gradient_bytes(table) + 2 * optimizer_bytes(table) + 2.0
    bandwidth = table.cluster.gpu.hbm_bandwidth_bytes_per_s * pricing.eff.optimizer
    offloaded = table.optimizer_offload_fraction
    return np.asarray(owned * ((1 - offloaded) * moved / bandwidth + offloaded * _HOST_ADAM_SECONDS))
