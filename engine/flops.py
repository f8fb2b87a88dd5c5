"""Model FLOPs: what the mathematics needs, without recomputation. The basis of TFLOP/s and MFU.

Per token: 2 FLOPs per multiply-add, forward once and backward twice (factor 3 in all), over every
matrix a token meets (output head included, input embedding not) plus attention scores and values,
causal attention counted in half. This is what Megatron-LM's ``num_floating_point_operations`` counts
in its 2026 form.
"""

from __future__ import annotations

from functools import lru_cache

from shardwise.engine.model import Model


@lru_cache(maxsize=256)
def flops_per_token(model: Model, seq_len: int) -> float:
    """Model FLOPs per trained token at ``seq_len``, forward and backward."""
    return 6 * matmul_parameters(model) + 3 * attention_flops_per_token(model, seq_len)


@lru_cache(maxsize=256)
def matmul_parameters(model: Model) -> float:
    """Weights that one token is multiplied with: active experts, router and output head included."""
    h = model.hidden_size
    into = 3 if model.gated_linear_unit else 2
    moe = sum(model.moe_layers)
    dense = model.num_layers - moe
    per_layer = _attention_weights(model)
    total = model.num_layers * per_layer + dense * into * h * model.ffn_hidden_size
    mlp_of_moe = 0.0
    if moe:
        assert model.num_experts and model.moe_ffn_hidden_size
        width = model.moe_router_topk * model.moe_ffn_hidden_size + model.moe_shared_expert_intermediate_size
        mlp_of_moe = into * h * width + h * (model.num_experts + model.moe_shared_expert_gate)
        total += moe * mlp_of_moe
    total += h * model.vocab_size
    mtp = mlp_of_moe if moe else into * h * model.ffn_hidden_size
    return total + model.mtp_num_layers * (per_layer + mtp + 2 * h * h + h * model.vocab_size)


def _attention_weights(model: Model) -> float:
    h, a = model.hidden_size, model.num_attention_heads
    if not model.multi_latent_attention:
        return h * model.kv_channels * (2 * a + 2 * model.num_query_groups)
    assert model.kv_lora_rank and model.qk_head_dim and model.qk_pos_emb_head_dim and model.v_head_dim
    d = model.qk_head_dim + model.qk_pos_emb_head_dim
    query = h * model.q_lora_rank + model.q_lora_rank * a * d if model.q_lora_rank else h * a * d
    down = h * (model.kv_lora_rank + model.qk_pos_emb_head_dim)
    up = model.kv_lora_rank * a * (model.qk_head_dim + model.v_head_dim)
    return query + down + up + a * model.v_head_dim * h


@lru_cache(maxsize=256)
def attention_flops_per_token(model: Model, seq_len: int) -> float:
    """Forward FLOPs per token of scores and values in all layers, causal, window respected."""
    layers = sum(
        attended(seq_len, model.window_size if windowed else None) for windowed in model.windowed_layers
    )
    layers += model.mtp_num_layers * attended(
        seq_len, model.window_size if model.windowed_layers[-1] else None
    )
    return 2 * model.num_attention_heads * sum(head_dims(model)) * layers


def attended(seq_len: int, window: int | None) -> float:
    """Mean keys a query attends to under a causal mask: (s+1)/2 taken as s/2, or within a window."""
    if window is None or window >= seq_len:
        return seq_len / 2
    return window - window * window / (2 * seq_len)


def head_dims(model: Model) -> tuple[int, int]:
    """Dimensions of a query/key head and of a value head."""
    if model.multi_latent_attention:
        assert model.qk_head_dim and model.qk_pos_emb_head_dim and model.v_head_dim
        return model.qk_head_dim + model.qk_pos_emb_head_dim, model.v_head_dim
    return model.kv_channels, model.kv_channels
