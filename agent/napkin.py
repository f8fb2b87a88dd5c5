"""A back-of-the-envelope step time: what a practitioner would reckon before trying anything.

It orders a space roughly and costs nothing; the surrogate starts from it and corrects it by the trials.
Terms, all per GPU and step, with round efficiencies on purpose:

- matrix work: model FLOPs over half the peak, more where a GEMM is thin (few tokens, narrow shards);
- recomputation: a third more of what is recomputed;
- tensor parallelism: an all-gather and a reduce-scatter around attention and MLP, forward and backward
  (Korthikanti et al. 2022, section 4.2.2);
- experts: dispatch and combine, forward and backward, inside the scale-up domain and beyond it;
- pipeline: the uniform bubble (pp-1)/(vpp*m) and the hand-over of activations;
- data parallelism: gradients and parameters once a step, or for FSDP once a micro-batch, mostly hidden.
"""

from __future__ import annotations

import numpy as np

from shardwise.engine.flops import flops_per_token, matmul_parameters
from shardwise.engine.model import Model
from shardwise.engine.parameters import total_parameters
from shardwise.engine.recipe import DISPATCHERS, DP_SHARDINGS, PRECISIONS, RECOMPUTE_MODULES, RECOMPUTES
from shardwise.engine.table import METHODS, Floats, Table

_MATRIX_SHARE = 0.5
"""Achieved over peak FLOP/s of a large GEMM."""
_LINK_SHARE = 0.7
"""Achieved over peak bandwidth of a link."""
_THIN_TOKENS = 192.0
"""Tokens at which a GEMM runs at half its speed."""
_THIN_WIDTH = 256.0
"""Columns of a weight shard at which a GEMM runs at half its speed."""
_HIDDEN = 0.3
"""Share of an overlapped transfer that is felt all the same."""
_BF16 = 2.0
"""Bytes of an activation or weight element."""


def log_time(table: Table) -> Floats:
    """(rows,) natural log of the reckoned step time in seconds."""
    model, cluster = table.model, table.cluster
    fabric = _LINK_SHARE * cluster.fabric.bandwidth_bytes_per_s
    nic = _LINK_SHARE * cluster.nic.bandwidth_bytes_per_s
    domain = cluster.scale_up_size
    tokens = table.gbs * table.seq_len / cluster.world_size
    width = _BF16 * model.hidden_size

    work = _matrix_seconds(table, tokens)
    link = np.where(table.tp * table.cp <= domain, fabric, nic)
    tensor = 8.0 * model.num_layers * tokens * (table.tp - 1) * width / link
    tensor = np.where(table.tp_comm_overlap, _HIDDEN * tensor, tensor)
    heads = _BF16 * 2.0 * model.num_query_groups * model.kv_channels
    context = 3.0 * model.num_layers * tokens * (table.cp - 1) * heads / link
    busy = work + tensor + context + _expert_seconds(table, tokens, fabric, nic)

    micro_batches = np.maximum(table.gbs // np.maximum(table.mbs * table.dp, 1), 1)
    handed = 4.0 * micro_batches * table.mbs * table.seq_len / (table.cp * table.tp) * table.vpp * width / nic
    pipeline = busy * (1.0 + (table.pp - 1) / (table.vpp * micro_batches))
    pipeline += np.where(table.pp > 1, _HIDDEN * handed, 0.0)

    experts = _expert_parameters(model)
    held = (total_parameters(model) - experts) / (table.tp * table.pp)
    held = held + experts / (table.ep * table.etp * table.pp)
    sharded = table.dp_sharding >= DP_SHARDINGS.index("fsdp")
    bytes_moved = np.where(sharded, 3.0 * _BF16 * micro_batches, 3.0 * _BF16) * held
    reach = np.where(table.dp * table.cp * table.tp <= domain, fabric, nic)
    exposed = np.maximum(0.1 * bytes_moved / reach, bytes_moved / reach - 0.8 * busy)
    return np.asarray(np.log(pipeline + exposed))


def _matrix_seconds(table: Table, tokens: Floats) -> Floats:
    model = table.model
    peaks = np.array([_peak(table, word) for word in PRECISIONS])
    rate = _MATRIX_SHARE * peaks[table.precision]
    total = flops_per_token(model, int(table.seq_len[0])) if len(table) else 0.0
    routed = 6.0 * _active_expert_parameters(model)
    local = table.mbs * table.seq_len / table.cp
    dense = (
        (total - routed) * (1.0 + _THIN_TOKENS / local) * (1.0 + _THIN_WIDTH * table.tp / model.hidden_size)
    )
    moe = np.zeros(len(table))
    if model.num_experts:
        group = table.ep * table.etp / table.tp
        each = np.maximum(local * group * model.moe_router_topk / model.num_experts, 1.0)
        narrow = _THIN_WIDTH * table.etp / float(model.moe_ffn_hidden_size or model.ffn_hidden_size)
        moe = routed * (1.0 + _THIN_TOKENS / each) * (1.0 + narrow)
    again = _recomputed(table)
    modules = table.recompute_modules
    selective = table.recompute == RECOMPUTES.index("selective")
    has_moe = (modules >> RECOMPUTE_MODULES.index("moe") & 1).astype(bool) & selective
    has_mlp = (modules >> RECOMPUTE_MODULES.index("mlp") & 1).astype(bool) & selective
    dense_again = np.where(has_mlp, 0.6, again)
    moe_again = np.where(has_moe, 1.0, again)
    return np.asarray(tokens * (dense * (1 + dense_again / 3) + moe * (1 + moe_again / 3)) / rate)


def _expert_seconds(table: Table, tokens: Floats, fabric: float, nic: float) -> Floats:
    model = table.model
    layers = sum(model.moe_layers)
    if not layers:
        return np.zeros(len(table))
    ranks = table.ep * table.etp
    domain = table.cluster.scale_up_size
    outside = np.maximum(0.0, 1.0 - domain / ranks)
    inside = (ranks - 1) / ranks - outside
    copies = np.full(len(table), float(model.moe_router_topk))
    nodes = np.maximum(ranks / domain, 1.0)
    # DeepEP sends a token once to each node and spreads it there.
    once = np.minimum(copies, nodes) / np.where(outside > 0, nodes, 1.0) * np.maximum(nodes - 1, 0.0)
    deepep = table.moe_token_dispatcher >= DISPATCHERS.index("deepep")
    sent = 4.0 * layers * tokens * _BF16 * model.hidden_size
    seconds = sent * (copies * inside / fabric + np.where(deepep, once, copies * outside) / nic)
    seconds = seconds + sent * copies * (table.etp - 1) / fabric
    return np.asarray(np.where(table.overlap_moe_expert_parallel_comm, _HIDDEN * seconds, seconds))


def _recomputed(table: Table) -> Floats:
    """Share of the layers whose forward pass runs twice."""
    full = table.recompute == RECOMPUTES.index("full")
    block = full & (table.recompute_method == METHODS.index("block"))
    share = np.where(block, table.recompute_num_layers * table.pp * table.vpp / table.model.num_layers, 1.0)
    return np.asarray(np.where(full, np.minimum(share, 1.0), 0.0))


def _expert_parameters(model: Model) -> float:
    """Routed-expert weights of the whole model."""
    return _active_expert_parameters(model) / max(model.moe_router_topk, 1) * (model.num_experts or 0)


def _active_expert_parameters(model: Model) -> float:
    """Routed-expert weights that one token meets."""
    if not model.num_experts:
        return 0.0
    matrices = 3 if model.gated_linear_unit else 2
    each = matrices * model.hidden_size * float(model.moe_ffn_hidden_size or 0)
    return min(sum(model.moe_layers) * model.moe_router_topk * each, matmul_parameters(model))


def _peak(table: Table, word: str) -> float:
    """Peak FLOP/s of a recipe precision; formats that the GPU lacks count as its 16-bit one."""
    peaks = table.cluster.gpu.peak_flops
    plain = peaks.get("bf16") or peaks.get("fp16") or peaks.get("fp32") or 1.0
    if word == "nvfp4":
        return peaks.get("fp4") or peaks.get("fp8") or plain
    return (peaks.get("fp8") or plain) if "fp8" in word else plain
