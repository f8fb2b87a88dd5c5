"""How many parameters a rank holds, and of what sort: sharded over tp, or over the expert grid.

The two sorts matter since their gradients and optimizer states are sharded over different groups:
dense parameters over dp x cp, expert parameters over edp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwise.engine.lowering import LayerKind, Lowered
from shardwise.engine.model import Model
from shardwise.engine.table import Floats, Table


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """Parameter counts per rank, (n, S)."""

    dense: Floats
    """Everything but routed experts."""
    expert: Floats
    """Routed experts."""
    tables: Floats
    """The part of ``dense`` that stays in 16 bits under every precision: embeddings and output heads."""

    def of_stage(self, pick: Callable[[Floats], Floats]) -> Parameters:
        """The same with ``pick`` applied to each count: one stage's share, or the largest."""
        return Parameters(pick(self.dense), pick(self.expert), pick(self.tables))


def stage_parameters(low: Lowered) -> Parameters:
    """Parameters of each stage's rank (n, S)."""
    model, table = low.table.model, low.table
    dense = np.zeros(low.stages.shape)
    expert = np.zeros(low.stages.shape)
    for kind, count in low.layers.items():
        dense = dense + count * layer_dense(low, kind)[:, None]
        if kind.moe:
            expert = expert + count * layer_expert(model, table)[:, None]
    embedding = (low.vocab * model.hidden_size)[:, None]
    learned = model.max_position_embeddings * model.hidden_size
    position = learned if model.position_embedding_type == "learned_absolute" else 0
    norm = _norm(model, model.hidden_size)
    # A tied head is a second copy of the table, unless one stage holds both ends.
    head = embedding * (1 - model.share_embeddings_and_output_weights * low.first)
    tables = low.first * (embedding + position) + low.last * head
    dense = dense + low.last * norm
    if model.mtp_num_layers:
        # Projection of [hidden; next embedding] and its norms; behind a pipeline also its own embedding.
        extra = 2 * model.hidden_size**2 / table.tp + 3 * norm
        again = np.where((table.pp > 1)[:, None] & ~low.first, embedding, 0.0)
        tables = tables + low.mtp * again
        dense = dense + low.mtp * model.mtp_num_layers * extra[:, None]
    return Parameters(dense + tables, expert, tables)


def layer_dense(low: Lowered, kind: LayerKind) -> Floats:
    """Parameters per rank of one layer of ``kind`` without its routed experts (n,)."""
    model, tp = low.table.model, low.table.tp
    h = model.hidden_size
    total = attention_parameters(model, low.heads, low.kv_heads) + 2 * _norm(model, h)
    if not kind.moe:
        return total + _mlp(model, model.ffn_hidden_size) / tp + (h if model.add_bias_linear else 0)
    assert model.num_experts is not None
    shared = _mlp(model, model.moe_shared_expert_intermediate_size) / tp + h * model.moe_shared_expert_gate
    return np.asarray(total + shared + _router(model))


def layer_expert(model: Model, table: Table) -> Floats:
    """Routed-expert parameters per rank of one MoE layer (n,)."""
    assert model.num_experts is not None
    return np.asarray(model.num_experts / table.ep * one_expert(model, table))


def one_expert(model: Model, table: Table) -> Floats:
    """Parameters per rank of one routed expert (n,)."""
    assert model.moe_ffn_hidden_size is not None
    # The second bias is a whole row on every rank of the expert's tensor parallel group.
    second = model.hidden_size if model.add_bias_linear else 0
    return np.asarray(_mlp(model, model.moe_ffn_hidden_size) / table.etp + second)


def attention_parameters(model: Model, heads: Floats, kv_heads: Floats) -> Floats:
    """Parameters of one layer's attention on a rank with so many query and key/value heads (n,)."""
    h, kv = model.hidden_size, kv_heads
    sink = heads if model.attention_sink else 0.0
    if model.multi_latent_attention:
        return np.asarray(_mla(model, heads) + sink)
    d = model.kv_channels
    qkv = (heads + 2 * kv) * d
    bias = qkv if model.add_qkv_bias or model.add_bias_linear else 0.0
    out_bias = h if model.add_bias_linear else 0.0
    qk_norm = 2 * d if model.qk_layernorm else 0
    return np.asarray(qkv * h + heads * d * h + bias + out_bias + qk_norm + sink)


def _mla(model: Model, heads: Floats) -> Floats:
    """Multi-latent attention: the down projections are replicated over tp, the up projections sharded."""
    assert model.kv_lora_rank and model.qk_head_dim and model.qk_pos_emb_head_dim and model.v_head_dim
    h, d = model.hidden_size, model.qk_head_dim + model.qk_pos_emb_head_dim
    query = h * heads * d
    if model.q_lora_rank:
        query = h * model.q_lora_rank + model.q_lora_rank * heads * d + model.q_lora_rank
    down = h * (model.kv_lora_rank + model.qk_pos_emb_head_dim) + model.kv_lora_rank
    up = model.kv_lora_rank * heads * (model.qk_head_dim + model.v_head_dim)
    return np.asarray(query + down + up + heads * model.v_head_dim * h)


def _mlp(model: Model, width: int) -> float:
    """Weights (and first bias) of one MLP of ``width``, unsharded."""
    into = 2 if model.gated_linear_unit else 1
    bias = into * width if model.add_bias_linear else 0
    return (into + 1) * model.hidden_size * width + bias


def _router(model: Model) -> int:
    """Weights and, where linears have biases, the bias of one router."""
    assert model.num_experts is not None
    return model.num_experts * (model.hidden_size + model.add_bias_linear)


def _norm(model: Model, width: int) -> int:
    return width * (2 if model.normalization == "LayerNorm" else 1)


def total_parameters(model: Model) -> int:
    """Parameters of the whole model, vocabulary unpadded."""
    return _count(model, active=False)


def active_parameters(model: Model) -> int:
    """Parameters that one token meets: ``moe_router_topk`` of the routed experts."""
    return _count(model, active=True)


def _count(model: Model, *, active: bool) -> int:
    h = model.hidden_size
    heads, groups = np.array([float(model.num_attention_heads)]), np.array([float(model.num_query_groups)])
    attention = float(attention_parameters(model, heads, groups)[0]) + 2 * _norm(model, h)
    total = model.num_layers * attention
    moe = sum(model.moe_layers)
    total += (model.num_layers - moe) * (
        _mlp(model, model.ffn_hidden_size) + (h if model.add_bias_linear else 0)
    )
    if moe:
        assert model.num_experts and model.moe_ffn_hidden_size
        experts = model.moe_router_topk if active else model.num_experts
        total += moe * (
            experts * (_mlp(model, model.moe_ffn_hidden_size) + (h if model.add_bias_linear else 0))
            + _mlp(model, model.moe_shared_expert_intermediate_size)
            + h * model.moe_shared_expert_gate
            + _router(model)
        )
    tables = 1 if model.share_embeddings_and_output_weights else 2
    position = model.max_position_embeddings * h if model.position_embedding_type == "learned_absolute" else 0
    return round(total + tables * model.vocab_size * h + position + _norm(model, h))
