"""Composes kernels, collectives, overlap and schedule into a training step: time, throughput, memory.

1. Lower the table; price one layer of each kind, the embedding and the output head.
2. Sum them per pipeline stage; the slowest stage sets the pace, the others show as bubble.
3. Add pipeline transfers, exposed data-parallel communication, the optimizer and fixed step costs.

The time breakdown is that of the slowest stage's critical path; its items sum to the step time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwise.engine.confidence import interval
from shardwise.engine.costs import Cost, Pricing, layer_cost, software_age
from shardwise.engine.data_parallel import (
    end_exposed,
    layer_exposed,
    optimizer_seconds,
    step_exposed,
    tied_embedding_seconds,
)
from shardwise.engine.efficiency import Calibration, matrix_peak, shipped_calibration
from shardwise.engine.flops import flops_per_token
from shardwise.engine.legality import check
from shardwise.engine.lowering import LayerKind, Lowered, lower
from shardwise.engine.memory import MemoryTable, memory_of, recomputed_share, recomputed_share_of_model
from shardwise.engine.memory.offload import exposed_seconds
from shardwise.engine.memory.saved import residual_bytes
from shardwise.engine.parameters import Parameters, stage_parameters
from shardwise.engine.pipeline_layout import all_stages
from shardwise.engine.recipe import PRECISIONS, Recipe
from shardwise.engine.results import TIME_ITEMS, Projection
from shardwise.engine.schedule.closed_form import pipeline_seconds
from shardwise.engine.table import Floats, Ints, Table
from shardwise.engine.workload import embedding_operators, head_operators

ENGINE_VERSION = "0.3.0"
"""Part of every cache key: figures of different engine versions are not mixed."""

Items = dict[str, Floats]
"""``TIME_ITEMS`` -> seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class ProjectionTable:
    """Projections of a table's rows, each (n,)."""

    step_time_s: Floats
    tokens_per_s_per_gpu: Floats
    tflops_per_gpu: Floats
    mfu: Floats
    bubble_fraction: Floats
    breakdown: Items
    memory: MemoryTable


def project_table(
    table: Table, stages: Ints | None = None, *, calibration: Calibration | None = None
) -> ProjectionTable:
    """Project legal recipes. ``stages`` (n, S): which to look at; by default those that can be worst."""
    low = lower(table, stages)
    pricing = Pricing.of(low, calibration or shipped_calibration())
    parameters = stage_parameters(low)
    items = _step_items(low, pricing, parameters)
    step = np.sum(list(items.values()), axis=0)
    world = table.cluster.world_size
    tokens = table.gbs * table.seq_len / step / world
    per_token = _per_value(table.seq_len, lambda length: flops_per_token(table.model, length))
    tflops = tokens * per_token / 1e12
    peak = _per_value(table.precision, lambda code: matrix_peak(table.cluster.gpu, PRECISIONS[code]))
    return ProjectionTable(
        step_time_s=step,
        tokens_per_s_per_gpu=tokens,
        tflops_per_gpu=tflops,
        mfu=tflops * 1e12 / peak,
        bubble_fraction=items["bubble"] / step,
        breakdown=items,
        memory=memory_of(low, parameters),
    )


def project(recipe: Recipe, *, check_legality: bool = True) -> Projection:
    """Project one recipe; an illegal one is answered with its violations and no figures.

    ``check_legality=False`` is for recipes whose legality another framework decides; their batch and
    world size must still divide.
    """
    violations = check(recipe) if check_legality else ()
    if violations:
        return Projection(violations=violations)
    table = Table.of([recipe])
    projected = project_table(table, all_stages(table))
    tokens = float(projected.tokens_per_s_per_gpu[0])
    low, high, outside = interval(recipe, shipped_calibration())
    return Projection(
        violations=(),
        step_time_s=float(projected.step_time_s[0]),
        tokens_per_s_per_gpu=tokens,
        tflops_per_gpu=float(projected.tflops_per_gpu[0]),
        mfu=float(projected.mfu[0]),
        interval80=(tokens * low, tokens * high),
        bubble_fraction=float(projected.bubble_fraction[0]),
        time_breakdown_s={name: float(projected.breakdown[name][0]) for name in TIME_ITEMS},
        provenance={"measured": 0.0, "interpolated": 0.0, "simulated": 1.0},
        memory=projected.memory.report(0),
        warnings=outside,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Stages:
    """Seconds of one micro-batch: of each stage looked at (n, S), and of the whole pipeline (n,)."""

    items: dict[str, Floats]
    forward: Floats
    backward: Floats
    whole: Floats


def _step_items(low: Lowered, pricing: Pricing, parameters: Parameters) -> Items:
    table, eff = low.table, pricing.eff
    stages = _stage_times(low, pricing)
    stage_total = stages.forward + stages.backward
    slowest = stage_total.argmax(axis=1)
    m = table.num_microbatches
    _, bubble = pipeline_seconds(
        table.pp, table.vpp, m, stages.whole, _pick(stage_total, slowest), table.pp_schedule
    )
    items = {name: np.zeros(len(table)) for name in TIME_ITEMS}
    for name, seconds in stages.items.items():
        items[name] = m * _pick(seconds, slowest)
    items["bubble"] = bubble
    forward, backward = _pick(stages.forward, slowest), _pick(stages.backward, slowest)
    items["pp_comm"] = _pipeline_transfers(low, pricing, forward, backward)
    if table.cpu_offloading_num_layers.any():
        items["other"] = items["other"] + m * exposed_seconds(low, forward, backward)
    own = parameters.of_stage(lambda counts: _pick(counts, slowest))
    once = step_exposed(pricing, own, forward, backward) + tied_embedding_seconds(pricing)
    items["dp_comm_exposed"] = items["dp_comm_exposed"] + once
    items["optimizer"] = optimizer_seconds(pricing, parameters.of_stage(lambda counts: counts.max(axis=1)))
    busy = np.sum(list(items.values()), axis=0)
    nodes = np.log2(max(table.cluster.num_nodes, 1))
    items["other"] = items["other"] + eff.step_overhead_s + busy * eff.straggler * nodes
    gain = eff.software_gain + (eff.moe_software_gain if table.model.is_moe else 0.0)
    older = np.exp(gain * software_age(table))
    return {name: seconds * older for name, seconds in items.items()}


def _stage_times(low: Lowered, pricing: Pricing) -> _Stages:
    """Sum layers, embedding and head per stage."""
    table = low.table
    shape = low.stages.shape
    items = {name: np.zeros(shape) for name in TIME_ITEMS}
    forward, backward, whole = np.zeros(shape), np.zeros(shape), np.zeros(len(table))
    full = table.is_word("recompute", "full")
    share = recomputed_share(low)
    everywhere = recomputed_share_of_model(table)

    def add(name: str, count: Floats, seconds: Floats, total: Floats | float) -> Floats:
        nonlocal whole
        part = np.asarray(count * seconds[:, None])
        items[name] = items[name] + part
        whole = whole + total * seconds
        return part

    for kind, count in low.layers.items():
        cost = layer_cost(pricing, kind)
        layers = _layers_of(low, kind)
        for name, seconds in cost.forward.items():
            forward = forward + add(name, count, seconds, layers)
        for name, seconds in cost.backward.items():
            backward = backward + add(name, count, seconds, layers)
        again = np.where(full, cost.full_recompute, cost.recompute)
        backward = backward + add(
            "recompute",
            count * np.where(full[:, None], share, 1.0),
            again,
            layers * np.where(full, everywhere, 1.0),
        )
        shown = layer_exposed(pricing, kind, cost.free[0], cost.free[1] + again)
        forward = forward + add("dp_comm_exposed", count, shown[0], layers)
        backward = backward + add("dp_comm_exposed", count, shown[1], layers)
    for operators, where in ((embedding_operators(low), low.first), (head_operators(low), low.last)):
        cost_of_ends = pricing.price(operators)
        once = where.astype(np.float64)
        for name, seconds in cost_of_ends.forward.items():
            forward = forward + add(name, once, seconds, 1.0)
        for name, seconds in cost_of_ends.backward.items():
            backward = backward + add(name, once, seconds, 1.0)
        shown = end_exposed(pricing, *(_total(cost_of_ends, p) for p in ("forward", "backward")))
        forward = forward + add("dp_comm_exposed", once, shown[0], 1.0)
        backward = backward + add("dp_comm_exposed", once, shown[1], 1.0)
    return _Stages(items, forward, backward, whole)


def _total(cost: Cost, which: str) -> Floats:
    return np.asarray(np.sum(list(getattr(cost, which).values()), axis=0))


def _layers_of(low: Lowered, kind: LayerKind) -> float:
    """Layers of ``kind`` in the whole model, multi-token prediction included."""
    model = low.table.model
    pairs = list(zip(model.windowed_layers, model.moe_layers, strict=True))
    pairs += [pairs[-1]] * model.mtp_num_layers
    return float(sum(pair == (kind.windowed, kind.moe) for pair in pairs))


def _pipeline_transfers(low: Lowered, pricing: Pricing, forward: Floats, backward: Floats) -> Floats:
    """Activation and gradient transfers between stages on the critical path, seconds per step (n,).

    1F1B: each micro-batch's transfer in both directions, and the ramp. Interleaved with overlap: a
    transfer hides behind its chunk's compute as far as that lasts, sharing the device with it, save its
    launch, since every chunk waits for its input before its kernels are enqueued; without overlap there
    are vpp times as many as under 1F1B. ``forward``/``backward``: the slowest stage's seconds of one
    micro-batch, all chunks.
    """
    table, cluster, eff = low.table, low.table.cluster, pricing.eff
    # Stages follow each other in rank order: of a world of several domains some boundary lies between two,
    # and the slowest boundary sets the pace.
    apart = np.full(len(table), cluster.world_size > cluster.scale_up_size)
    above = (cluster.pod_size is not None) & (cluster.world_size // table.pp >= (cluster.pod_size or 0))
    flight = pricing.network.point_to_point(residual_bytes(low), apart, above)
    hop = eff.collective_launch_s + flight
    m, v = table.num_microbatches, table.vpp
    overlapped = (v > 1) & table.overlap_p2p_comm
    steady = np.zeros(len(table))
    for window in (forward / v, backward / v):
        hidden = np.where(overlapped, np.minimum(flight, eff.dp_overlap * window), 0.0)
        steady = steady + m * v * (hop - hidden * (1 - eff.overlap_slowdown))
    return np.where(table.pp > 1, steady + 2 * (table.pp - 1) * hop, 0.0)


def _per_value(column: Ints, function: Callable[[int], float]) -> Floats:
    """``function`` of each entry of ``column``, called once per distinct value (n,)."""
    values, inverse = np.unique(column, return_inverse=True)
    return np.asarray([function(int(value)) for value in values])[inverse]


def _pick(columns: Floats, index: Ints) -> Floats:
    return np.asarray(np.take_along_axis(columns, index[:, None], axis=1)[:, 0])
