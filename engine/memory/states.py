"""Bytes of weights, main gradients and optimizer states of a rank, after sharding."""

from __future__ import annotations

import numpy as np

from shardwise.engine.lowering import Lowered
from shardwise.engine.parameters import Parameters
from shardwise.engine.precisions import HALF, saved_input_bytes
from shardwise.engine.recipe import STATE_DTYPES
from shardwise.engine.table import Bools, Floats, Table


def shard_sizes(table: Table) -> tuple[Floats, Floats]:
    """Ranks over which (dense, expert) optimizer state is sharded; 1 where nothing is (n,)."""
    dense = (table.dp * table.cp).astype(np.float64)
    expert = table.edp.astype(np.float64)
    limited = table.is_word("dp_sharding", "hsdp") & (table.dp_shard_size > 0)
    dense = np.where(limited, np.minimum(table.dp_shard_size, dense), dense)
    expert = np.where(limited, np.minimum(table.dp_shard_size, expert), expert)
    off = table.is_word("dp_sharding", "none")
    return np.where(off, 1.0, dense), np.where(off, 1.0, expert)


def state_items(low: Lowered, parameters: Parameters) -> dict[str, Floats]:
    """Weights, gradients and optimizer states of each stage's rank (n, S)."""
    table = low.table
    dense_shards, expert_shards = (shards[:, None] for shards in shard_sizes(table))
    full = table.is_word("dp_sharding", "fsdp", "hsdp")[:, None]
    grads_too = full | table.is_word("dp_sharding", "zero2")[:, None]

    def sharded(where: Bools, per_parameter: Floats) -> Floats:
        dense = parameters.dense / np.where(where, dense_shards, 1.0)
        expert = parameters.expert / np.where(where, expert_shards, 1.0)
        return np.asarray((dense + expert) * per_parameter)

    everywhere = np.ones_like(full)
    # Embeddings and output heads have no quantised copies.
    tables = parameters.tables / np.where(full, dense_shards, 1.0)
    plain = tables * (HALF - weight_bytes(low)[:, None])
    return {
        "weights": sharded(full, weight_bytes(low)[:, None]) + plain,
        "gradients": sharded(grads_too, held_gradient_bytes(table)[:, None]),
        "optimizer": sharded(everywhere, device_optimizer_bytes(table)[:, None]),
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
    low_precision = np.where(table.fp8_param_gather, copies, HALF + cached)
    return np.where(quantised >= HALF, HALF, low_precision)


def waiting_gradients(table: Table) -> Bools:
    """Whether FSDP's gradients are added up whole and reduced once a step, behind the last micro-batch:
    torch's pipeline schedules run the others unsynchronised (``set_requires_gradient_sync``) (n,)."""
    sharded = table.is_word("dp_sharding", "fsdp", "hsdp") & (table.pp > 1)
    return np.asarray(sharded & table.is_word("framework", "torchtitan", "pytorch"))


def gradient_bytes(table: Table) -> Floats:
    """Bytes per parameter of the accumulated gradient (n,)."""
    return np.where(table.is_word("main_grads_dtype", "fp32"), 4.0, 2.0)


def held_gradient_bytes(table: Table) -> Floats:
    """Bytes per parameter of all that holds gradients between two micro-batches (n,).

    nanotron accumulates in an FP32 buffer of the whole model, ZeRO-1 or not
    (``optim/gradient_accumulator.py``), and ``DistributedDataParallel``, which it wraps the model in
    behind more than one replica, keeps flat buckets of all 16-bit gradients beside it.
    """
    buckets = table.is_word("framework", "nanotron") & (table.dp * table.cp > 1)
    return gradient_bytes(table) + np.where(buckets, HALF, 0.0)


_STATE_BYTES = np.asarray(
    [{"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}[word] for word in STATE_DTYPES]
)
"""Bytes of one optimizer moment (``core/optimizer/optimizer_config.py``: ``exp_avg_dtype``)."""


def optimizer_bytes(table: Table) -> Floats:
    """Bytes per parameter of master weights and moments (n,).

    FP32 master weights beside 16-bit ones; with FSDP2 the sharded FP32 parameters are the master weights,
    and with ``main_params_dtype`` ``bf16`` there are none.
    """
    half = np.where(table.is_word("main_params_dtype", "fp16"), HALF, 0.0)
    return np.where(table.is_word("main_params_dtype", "fp32"), 4.0, half) + moment_bytes(table)


def moment_bytes(table: Table) -> Floats:
    """Bytes per parameter of the moments: two for Adam, one momentum for Muon and for SGD (Megatron's
    ``sgd_momentum`` is 0.9) (n,)."""
    moments = np.where(table.is_word("optimizer", "adam"), 2.0, 1.0)
    return np.asarray(moments * _STATE_BYTES[table.optimizer_state_dtype])


def device_optimizer_bytes(table: Table) -> Floats:
    """Bytes per parameter of :func:`optimizer_bytes` that stay on the device (n,): the host keeps moments,
    the FP32 weights stay beside the gradients that they meet."""
    return np.asarray(optimizer_bytes(table) - table.optimizer_offload_fraction * moment_bytes(table))


def moments_share(table: Table) -> Floats:
    """Moments' share of the optimizer's bytes on the device (n,)."""
    moments = (1.0 - table.optimizer_offload_fraction) * moment_bytes(table)
    return np.asarray(moments / np.maximum(device_optimizer_bytes(table), 1.0))


def optimizer_copies(table: Table, parameters: Parameters) -> Floats:
    """What the optimizer's step makes besides its states, of a rank's shard (n, S).

    Megatron-Core's distributed optimizer and DeepSpeed's ZeRO copy 16-bit gradients to FP32 ones first
    (``_copy_model_grads_to_main_grads``; ``stage_1_and_2.py``, ``step``), unless the optimizer is
    precision-aware, which lower moments are a sign of. Fused Adam, which trainers ask for, makes nothing.
    Published peaks of Megatron-DeepSpeed with one replica (BLOOM's) have no room for copies: none there.
    """
    owned = _owned(table, parameters)
    aware = ~table.is_word("optimizer_state_dtype", "fp32") | ~table.is_word("main_params_dtype", "fp32")
    half = table.is_word("main_grads_dtype", "bf16") & (shard_sizes(table)[0] > 1)
    core = table.is_word("framework", "megatron-core") & half & ~aware
    deepspeed = table.is_word("framework", "deepspeed") & ~table.is_word("dp_sharding", "none")
    each = np.where(core | deepspeed, 4.0, 0.0) * (1.0 - table.optimizer_offload_fraction)
    return np.asarray(each[:, None] * owned)


def loading_copies(table: Table, parameters: Parameters) -> Floats:
    """What loading a checkpoint makes besides the states: Megatron-Core fills fresh moments by a step on
    gradients of zeros, one FP32 figure a parameter of the shard, before it reads into them
    (``DistributedOptimizer.sharded_state_dict``, ``is_loading``) (n, S)."""
    core = table.is_word("framework", "megatron-core")
    return np.asarray(np.where(core, 4.0, 0.0)[:, None] * _owned(table, parameters))


def _owned(table: Table, parameters: Parameters) -> Floats:
    """Parameters whose optimizer states a rank has (n, S)."""
    dense_shards, expert_shards = (shards[:, None] for shards in shard_sizes(table))
    return np.asarray(parameters.dense / dense_shards + parameters.expert / expert_shards)
