"""Peak memory per pipeline stage, itemised. The worst stage decides, never the average one.

Per stage: weights, main gradients and optimizer states after sharding; saved activations times the
micro-batches in flight; the temporaries of the peak moment (recomputed layers, logits and loss, MoE
buffers, gathered parameters); communication buffers; and the device's overhead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.engine.activations import layer_saved, residual_bytes, saved_input_bytes
from shardwise.engine.lowering import LayerKind, Lowered, lower
from shardwise.engine.parameters import Parameters, layer_dense, layer_expert, stage_parameters
from shardwise.engine.pipeline_layout import all_stages
from shardwise.engine.recipe import Recipe
from shardwise.engine.results import DEFAULT_MARGIN, MEMORY_ITEMS, MemoryReport, StageMemory, Verdict
from shardwise.engine.schedule.closed_form import in_flight
from shardwise.engine.table import Floats, Ints, Table
from shardwise.engine.units import GIB

_HALF = 2.0
"""Bytes of a 16-bit element."""

TIGHT = 1.0 - DEFAULT_MARGIN
"""From this share of the capacity on a recipe is ``tight``."""

_CONTEXT_BYTES = {"nvidia": 0.75 * GIB, "amd": 1.75 * GIB, "other": 1.0 * GIB}
"""Device context, library workspaces and code objects before any tensor, as idle processes show in
nvidia-smi (0.5 to 0.9 GiB) and rocm-smi (1.5 to 2 GiB)."""

_FRAGMENTATION = 0.04
"""Reserved over allocated, of what comes and goes in a step (public Megatron-LM logs print 3 to 6%)."""

_COMMUNICATOR_BYTES = 0.3 * GIB
"""Buffers of one NCCL or RCCL communicator: 32 channels of 4 MiB or so, both directions."""

_DEEPEP_BYTES = 1.0 * GIB
"""DeepEP's NVLink and RDMA buffers at its default configuration."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTable:
    """Bytes, (n, S) over rows and the stages looked at."""

    items: dict[str, Floats]
    """``MEMORY_ITEMS`` -> (n, S)."""
    total: Floats
    stage_index: Ints
    capacity_bytes: int

    @property
    def peak_bytes(self) -> Floats:
        """(n,) the worst stage's total."""
        return np.asarray(self.total.max(axis=1))

    @property
    def peak_stage(self) -> Ints:
        """(n,) the worst stage."""
        worst = self.total.argmax(axis=1)
        return np.asarray(np.take_along_axis(self.stage_index, worst[:, None], axis=1)[:, 0])

    def report(self, row: int) -> MemoryReport:
        """The verdict of one row, with the stages looked at itemised (each once)."""
        _, columns = np.unique(self.stage_index[row], return_index=True)
        stages = tuple(
            StageMemory(
                int(self.stage_index[row, column]),
                {name: int(values[row, column]) for name, values in self.items.items()},
            )
            for column in columns
        )
        worst = max(stages, key=lambda stage: stage.total)
        return MemoryReport(
            verdict(worst.total, self.capacity_bytes), worst.total, self.capacity_bytes, worst.stage, stages
        )


_LayersSaved = dict[LayerKind, tuple[Floats, Floats]]
"""Kind of layer -> what :func:`layer_saved` says of it."""


def memory_table(table: Table, stages: Ints | None = None) -> MemoryTable:
    """Memory of legal recipes. ``stages`` (n, S): which to look at; by default those that can be worst."""
    low = lower(table, stages)
    return memory_of(low, stage_parameters(low))


def memory_of(low: Lowered, parameters: Parameters) -> MemoryTable:
    """Memory of an already lowered table whose stages hold ``parameters``."""
    states = _states(low, parameters)
    saved = {kind: layer_saved(low, kind) for kind in low.layers}
    activations = _activations(low, saved)
    temporary = _temporary(low, saved, parameters)
    communication = _communication(low)
    moving = activations + temporary + communication
    overhead = _CONTEXT_BYTES[low.table.cluster.gpu.vendor] + _FRAGMENTATION * moving
    items = {
        **states,
        "activations": activations,
        "temporary": temporary,
        "communication": communication,
        "overhead": overhead,
    }
    items = {name: np.ceil(items[name]) for name in MEMORY_ITEMS}
    total = np.sum(list(items.values()), axis=0)
    return MemoryTable(items, total, low.stages, low.table.cluster.gpu.memory_bytes)


def report(recipe: Recipe) -> MemoryReport:
    """The verdict of one legal recipe with every stage itemised."""
    table = Table.of([recipe])
    return memory_table(table, all_stages(table)).report(0)


def verdict(peak_bytes: float, capacity_bytes: float) -> Verdict:
    """``fits``, ``tight`` or ``out of memory``."""
    if peak_bytes > capacity_bytes:
        return "out of memory"
    return "tight" if peak_bytes > TIGHT * capacity_bytes else "fits"


def usable_bytes(capacity_bytes: int, margin: float) -> float:
    """What a peak may fill when ``margin``, a share of the capacity, must stay free."""
    return capacity_bytes * (1.0 - margin)


def shard_sizes(table: Table) -> tuple[Floats, Floats]:
    """Ranks over which (dense, expert) optimizer state is sharded; 1 where nothing is (n,)."""
    dense = (table.dp * table.cp).astype(np.float64)
    expert = table.edp.astype(np.float64)
    limited = table.is_word("dp_sharding", "hsdp") & (table.dp_shard_size > 0)
    dense = np.where(limited, np.minimum(table.dp_shard_size, dense), dense)
    expert = np.where(limited, np.minimum(table.dp_shard_size, expert), expert)
    off = table.is_word("dp_sharding", "none")
    return np.where(off, 1.0, dense), np.where(off, 1.0, expert)


def _states(low: Lowered, parameters: Parameters) -> dict[str, Floats]:
    table = low.table
    dense_shards, expert_shards = (shards[:, None] for shards in shard_sizes(table))
    full = table.is_word("dp_sharding", "fsdp", "hsdp")[:, None]
    grads_too = full | table.is_word("dp_sharding", "zero2")[:, None]

    def sharded(where: np.ndarray, per_parameter: Floats) -> Floats:
        dense = parameters.dense / np.where(where, dense_shards, 1.0)
        expert = parameters.expert / np.where(where, expert_shards, 1.0)
        return np.asarray((dense + expert) * per_parameter)

    everywhere = np.ones_like(full)
    # Embeddings and output heads have no quantised copies.
    tables = parameters.tables / np.where(full, dense_shards, 1.0)
    plain = tables * (_HALF - weight_bytes(low)[:, None])
    return {
        "weights": sharded(full, weight_bytes(low)[:, None]) + plain,
        "gradients": sharded(grads_too, gradient_bytes(table)[:, None]),
        "optimizer": sharded(everywhere, optimizer_bytes(table)[:, None]),
    }


def weight_bytes(low: Lowered) -> Floats:
    """Bytes per parameter of the linears' compute weights: 16-bit, plus the quantised copies that
    Transformer Engine caches between micro-batches; with ``fp8_param_gather`` only those (n,).

    A copy per GEMM layout, except where one serves both: per-tensor FP8 on GPUs whose FP8 GEMMs take
    any layout (``is_non_tn_fp8_gemm_supported``: Blackwell). FSDP frees a layer's copies with it.
    """
    table = low.table
    quantised = saved_input_bytes(low)
    any_layout = low.table.cluster.gpu.architecture.startswith("blackwell")
    one = table.is_word("precision", "fp8-delayed", "fp8-tensorwise") & any_layout
    copies = np.where(one, 1.0, 2.0) * quantised
    cached = np.where(table.is_word("dp_sharding", "fsdp", "hsdp"), 0.0, copies)
    low_precision = np.where(table.fp8_param_gather, copies, _HALF + cached)
    return np.where(quantised >= _HALF, _HALF, low_precision)


def gradient_bytes(table: Table) -> Floats:
    """Bytes per parameter of the accumulated gradient (n,)."""
    return np.where(table.is_word("main_grads_dtype", "fp32"), 4.0, 2.0)


def optimizer_bytes(table: Table) -> Floats:
    """Bytes per parameter of FP32 master weights and moments: 4 + 4 + 4 for Adam (n,)."""
    moment = np.where(table.is_word("optimizer_state_dtype", "fp32"), 4.0, 2.0)
    return 4.0 + moment * np.where(table.is_word("optimizer", "adam"), 2.0, 1.0)


def _activations(low: Lowered, saved: _LayersSaved) -> Floats:
    """Saved activations of the micro-batches in flight (n, S)."""
    table, model = low.table, low.table.model
    per_pass = np.zeros(low.stages.shape)
    stored = 1.0 - recomputed_share(low)
    full = table.is_word("recompute", "full")[:, None]
    for kind, count in low.layers.items():
        _, kept = saved[kind]
        per_pass = per_pass + count * stored * kept[:, None]
    checkpoints = np.where(full, _checkpoints(low) * residual_bytes(low)[:, None], 0.0)
    chunks = table.vpp[:, None]
    held_chunks = in_flight(
        table.pp[:, None], chunks, table.num_microbatches[:, None], low.stages, table.pp_schedule[:, None]
    )
    held = (per_pass + checkpoints) / chunks * held_chunks
    # Final norm and the 16-bit output head's input, once more per multi-token-prediction layer; the last
    # stage holds one micro-batch of it under 1F1B.
    heads = 1 + model.mtp_num_layers
    head = heads * 2 * _HALF * model.hidden_size * low.local_tokens
    depth = np.where(table.is_word("pp_schedule", "gpipe"), table.num_microbatches, 1)
    return np.asarray(held + low.last * (head * depth)[:, None])


def _total_layers(low: Lowered) -> Floats:
    return np.asarray(np.sum(list(low.layers.values()), axis=0))


def _recomputed_layers(low: Lowered) -> Floats:
    """Layers of each stage under full recomputation (n, S)."""
    table = low.table
    layers = _total_layers(low)
    block = table.is_word("recompute_method", "block")[:, None]
    in_blocks = np.minimum((table.recompute_num_layers * table.vpp)[:, None], layers)
    return np.where(block, in_blocks, layers)


def recomputed_share(low: Lowered) -> Floats:
    """Share of each stage's layers that run their whole forward again (n, S)."""
    full = low.table.is_word("recompute", "full")[:, None]
    return np.where(full, _recomputed_layers(low) / np.maximum(_total_layers(low), 1.0), 0.0)


def recomputed_share_of_model(table: Table) -> Floats:
    """Share of the whole model's layers that run their whole forward again (n,)."""
    blocks = table.recompute_num_layers * table.pp * table.vpp / table.model.num_layers
    share = np.where(table.is_word("recompute_method", "block"), np.minimum(blocks, 1.0), 1.0)
    return np.where(table.is_word("recompute", "full"), share, 0.0)


def _checkpoint_unit(table: Table) -> Ints:
    """Layers of one checkpoint under full recomputation (n,)."""
    uniform = table.is_word("recompute_method", "uniform")
    return np.where(uniform, np.maximum(table.recompute_num_layers, 1), 1)


def _checkpoints(low: Lowered) -> Floats:
    """Layer inputs kept under full recomputation: one per checkpoint (n, S)."""
    return np.asarray(np.ceil(_recomputed_layers(low) / _checkpoint_unit(low.table)[:, None]))


def _temporary(low: Lowered, saved: _LayersSaved, parameters: Parameters) -> Floats:
    """The largest passing need: a layer's backward (after its recomputation), or logits and loss (n, S)."""
    table = low.table
    full = table.is_word("recompute", "full")
    unit = _checkpoint_unit(table)
    working = np.zeros(len(table))
    for kind in low.layers:
        everything, kept = saved[kind]
        # Under full recomputation a whole unit comes back; under selective what was dropped.
        again = np.where(full, everything * unit, everything - kept)
        working = np.maximum(working, again + _backward_buffers(low, kind))
    fused = table.cross_entropy_fusion
    # Logits in 16 bits and their FP32 copy, which becomes the softmax and the gradient in place, then
    # cast to 16 bits; fused: the 16-bit gradient overwrites the logits. A multi-token-prediction layer's
    # softmax waits for its backward while the main head runs.
    waiting = low.table.model.mtp_num_layers * np.where(fused, _HALF, 4.0)
    logits = low.tokens * low.vocab * (np.where(fused, 4.0, 6.0) + waiting)
    in_layer, in_head, stay = _gathered(low, parameters)
    head = np.where(low.last, (logits + in_head)[:, None], 0.0)
    return np.asarray(np.maximum((working + in_layer)[:, None], head) + stay)


def _backward_buffers(low: Lowered, kind: LayerKind) -> Floats:
    """Gradients alive at once inside one layer's backward: the widest activation's and two residuals (n,)."""
    model, table = low.table.model, low.table
    into = 2.0 if model.gated_linear_unit else 1.0
    # Sequence parallelism gathers the linear's input again beside the input gradient yet to be scattered.
    whole = np.where(low.table.sequence_parallel, 2 * _HALF * low.tokens * model.hidden_size, 0.0)
    residual = 2 * residual_bytes(low) + whole
    if not kind.moe:
        return np.asarray(residual + 2.0 * (into + 1) * low.tokens * model.ffn_hidden_size / table.tp)
    assert model.moe_ffn_hidden_size is not None
    expert = 2.0 * (into + 1) * low.routed_tokens * model.moe_ffn_hidden_size / table.etp
    # Send and receive side of the token exchange.
    exchange = 2 * 2.0 * low.routed_tokens * model.hidden_size
    return np.asarray(residual + expert + exchange)


def _gathered(low: Lowered, parameters: Parameters) -> tuple[Floats, Floats, Floats]:
    """Under FSDP: what is gathered in a layer's backward (n,), in the output head's (n,), and throughout
    (n, S). Two units' weights, one in use and one prefetched, and the gradient of the one in use in 16
    bits; the buffer in which a layer's gradient is reduced comes on top of the next layer's backward."""
    table = low.table
    largest = np.zeros(len(table))
    for kind in low.layers:
        size = layer_dense(low, kind)
        if kind.moe:
            size = size + layer_expert(table.model, table)
        largest = np.maximum(largest, size)
    on = table.is_word("dp_sharding", "fsdp", "hsdp")
    in_layer = largest * (3 * _HALF + gradient_bytes(table))
    in_head = 2 * _HALF * low.vocab * table.model.hidden_size + _HALF * largest
    # Without resharding every layer stays gathered between forward and backward.
    stay = (parameters.dense + parameters.expert) * _HALF
    stays = (on & ~table.fsdp_reshard_after_forward)[:, None]
    return np.where(on, in_layer, 0.0), np.where(on, in_head, 0.0), np.where(stays, stay, 0.0)


def _communication(low: Lowered) -> Floats:
    """Communicators in use, DeepEP's, Transformer Engine's and the pipeline's buffers (n, S)."""
    table = low.table
    groups = sum(
        (size > 1).astype(np.float64)
        for size in (table.tp, table.pp, table.cp, table.ep, table.dp * table.cp)
    )
    deepep = table.is_word("moe_token_dispatcher", "deepep", "hybridep") & (table.ep > 1)
    pipeline = np.where(table.pp > 1, 4 * residual_bytes(low), 0.0)
    buffers = np.where(table.tp_comm_overlap & (table.tp > 1), _user_buffers(low), 0.0)
    need = groups * _COMMUNICATOR_BYTES + np.where(deepep, _DEEPEP_BYTES, 0.0) + pipeline + buffers
    return np.broadcast_to(np.asarray(need)[:, None], low.stages.shape)


def _user_buffers(low: Lowered) -> Floats:
    """Buffers of ``tp_comm_overlap``, each a layer's whole input, shared by all layers (n,): by default
    six for all-gathers, in the linears' precision, and four for reduce-scatters (``initialize_ub``)."""
    return np.asarray(low.tokens * low.table.model.hidden_size * (6 * saved_input_bytes(low) + 4 * _HALF))
