"""A back-of-the-envelope step time: what a practitioner would reckon before trying anything.

It orders a space roughly and costs nothing; the surrogate starts from it and corrects it by the trials
(docs/agent.md says what the search loses without it). It is no second engine: FLOPs, parameters, achievable
rates and overlaps are the engine's own, and no figure of it is ever shown. Terms, all per GPU and step:

- matrix work: model FLOPs over the sustained rate, more where a GEMM is thin (few tokens, narrow shards);
- recomputation: a third more of what is recomputed;
- tensor parallelism: an all-gather and a reduce-scatter around attention and MLP, forward and backward
  (Korthikanti et al. 2022, section 4.2.2);
- experts: dispatch and combine, forward and backward, inside the scale-up domain and beyond it;
- pipeline: the uniform bubble (pp-1)/(vpp*m), the hand-over of activations and its launch a chunk,
  and the output head that its last stage holds beside an even share of the layers;
- data parallelism: gradients and parameters once a step, or for FSDP once a micro-batch, mostly hidden.
"""

from __future__ import annotations

import numpy as np

from shardwise.engine.collectives import Network, place
from shardwise.engine.efficiency import Efficiency, matrix_rate, shipped_calibration
from shardwise.engine.flops import flops_per_token, matmul_parameters
from shardwise.engine.memory import recomputed_share_of_model
from shardwise.engine.model import Model
from shardwise.engine.parameters import total_parameters
from shardwise.engine.table import Floats, Table

_THIN_TOKENS = 192.0
_THIN_WIDTH = 256.0
"""Tokens, and columns of a weight shard, at which a GEMM runs at half its speed. Rough, and of the size of
the largest tile of ``engine.kernels`` (256 x 128), below which a GEMM is mostly padding."""
_BUCKET_SHARE = 0.1
"""Share of a gradient or parameter transfer that always shows, since the last bucket has nothing to hide
behind. Rough: the engine counts the buckets."""
_BF16 = 2.0
"""Bytes of an activation or weight element."""


def log_time(table: Table) -> Floats:
    """(rows,) natural log of the reckoned step time in seconds."""
    model, cluster = table.model, table.cluster
    eff = shipped_calibration().efficiency(cluster.gpu)
    fabric = eff.fabric * cluster.fabric.bandwidth_bytes_per_s
    nic = eff.nic * cluster.nic.bandwidth_bytes_per_s
    domain = cluster.scale_up_size
    tokens = table.gbs * table.seq_len / cluster.world_size
    width = _BF16 * model.hidden_size

    link = np.where(table.tp * table.cp <= domain, fabric, nic)
    tensor = 8.0 * model.num_layers * tokens * (table.tp - 1) * width / link
    tensor = np.where(table.tp_comm_overlap, (1 - eff.tp_overlap) * tensor, tensor)
    heads = _BF16 * 2.0 * model.num_query_groups * model.kv_channels
    context = 3.0 * model.num_layers * tokens * (table.cp - 1) * heads / link
    compute = _matrix_seconds(table, tokens, eff)
    busy = compute + tensor + context
    busy = busy + _expert_seconds(table, tokens, fabric, nic, eff)

    m = table.num_microbatches
    handed = 4.0 * m * table.mbs * table.seq_len / (table.cp * table.tp) * table.vpp * width / nic
    head = model.hidden_size * model.vocab_size / matmul_parameters(model)
    spread = table.account_for_loss_in_pipeline_split | (table.num_layers_in_last_pipeline_stage > 0)
    slowest = 1.0 + np.where(spread, 0.0, head * (table.pp - 1))
    pipeline = busy * (slowest + (table.pp - 1) / (table.vpp * m))
    launches = 2.0 * m * table.vpp * eff.collective_launch_s
    pipeline += np.where(table.pp > 1, (1 - eff.dp_overlap) * handed + launches, 0.0)

    network = Network(cluster, eff)
    experts = _expert_parameters(model)
    dense_held = (total_parameters(model) - experts) / (table.tp * table.pp)
    expert_held = experts / (table.ep * table.etp * table.pp)
    dense_reach = network.ring_bandwidth(place(cluster, table.dp * table.cp, table.tp))
    expert_reach = network.ring_bandwidth(place(cluster, table.edp, table.etp * table.ep))
    per_layer = table.is_word("dp_sharding", "fsdp", "hsdp")
    moved = dense_held / dense_reach + expert_held / expert_reach
    moved = np.where(per_layer, m, 1) * 3.0 * _BF16 * moved
    exposed = np.maximum(_BUCKET_SHARE * moved, moved - eff.dp_overlap * compute)
    return np.asarray(np.log(pipeline + exposed))


def _matrix_seconds(table: Table, tokens: Floats, eff: Efficiency) -> Floats:
    model = table.model
    total = flops_per_token(model, int(table.seq_len[0])) if len(table) else 0.0
    routed = 6.0 * _active_expert_parameters(model)
    local = table.mbs * table.seq_len / table.cp
    thin = 1.0 + _THIN_WIDTH * table.tp / model.hidden_size
    dense = (total - routed) * (1.0 + _THIN_TOKENS / local) * thin
    moe = np.zeros(len(table))
    if model.num_experts:
        group = table.ep * table.etp / table.tp
        each = np.maximum(local * group * model.moe_router_topk / model.num_experts, 1.0)
        narrow = _THIN_WIDTH * table.etp / float(model.moe_ffn_hidden_size or model.ffn_hidden_size)
        moe = routed * (1.0 + _THIN_TOKENS / each) * (1.0 + narrow)
    again = recomputed_share_of_model(table)
    # The MLP is a little more than half of a dense layer.
    dense_again = np.where(table.recompute_module("mlp"), 0.6, again)
    moe_again = np.where(table.recompute_module("moe"), 1.0, again)
    work = tokens * (dense * (1 + dense_again / 3) + moe * (1 + moe_again / 3))
    return np.asarray(work / matrix_rate(table.cluster.gpu, table.precision, eff))


def _expert_seconds(table: Table, tokens: Floats, fabric: float, nic: float, eff: Efficiency) -> Floats:
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
    deepep = table.is_word("moe_token_dispatcher", "deepep", "hybridep")
    sent = 4.0 * layers * tokens * _BF16 * model.hidden_size
    seconds = sent * (copies * inside / fabric + np.where(deepep, once, copies * outside) / nic)
    seconds = seconds + sent * copies * (table.etp - 1) / fabric
    return np.asarray(seconds * np.where(table.overlap_moe_expert_parallel_comm, 1 - eff.ep_overlap, 1.0))


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
