"""Bytes that one layer saves for its backward pass, per micro-batch, itemised by what saves them.

The items are those of a Megatron-Core layer with Transformer Engine linears (Korthikanti et al.,
"Reducing Activation Recomputation", arXiv:2205.05198, section 4, without dropout) under flash
attention. Each item belongs to at most one module of selective recomputation, which drops it.
Tensors of the residual stream are sharded over tp only with sequence parallelism (``local_tokens``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.engine.flops import head_dims
from shardwise.engine.lowering import LayerKind, Lowered
from shardwise.engine.precisions import HALF, saved_input_bytes
from shardwise.engine.table import Floats

LayersSaved = dict[LayerKind, tuple[Floats, Floats]]
"""Kind of layer -> what :func:`layer_saved` says of it."""


@dataclass(frozen=True, slots=True)
class Saved:
    """One saved tensor (or a few of one kind)."""

    name: str
    bytes: Floats
    """(n,) per layer and micro-batch."""
    dropped_by: str | None
    """The module of selective recomputation that drops it; None = kept unless ``full``."""


def saved_tensors(low: Lowered, kind: LayerKind) -> list[Saved]:
    """What one layer of ``kind`` saves without recomputation."""
    # x.float(), for its square and its scaling; the 16-bit quotient, for the weight's gradient, takes the
    # place of the input that a fused norm keeps.
    upcast = np.where(low.table.norm_fusion, 0.0, 2 * 4.0 * low.table.model.hidden_size)
    norms = Saved("norms' FP32 intermediates", upcast * low.local_tokens, "layernorm")
    return [norms, *_attention(low), *(_moe(low) if kind.moe else _mlp(low))]


def layer_saved(low: Lowered, kind: LayerKind) -> tuple[Floats, Floats]:
    """Bytes (everything saved, what stays under the row's selective recomputation), each (n,)."""
    items = saved_tensors(low, kind)
    everything = np.asarray(sum(item.bytes for item in items))
    dropped = np.zeros(len(low.table))
    if low.table.is_word("recompute", "selective").any():
        for item in items:
            if item.dropped_by is not None:
                dropped = dropped + np.where(low.table.recompute_module(item.dropped_by), item.bytes, 0.0)
    return everything, everything - dropped


def residual_bytes(low: Lowered) -> Floats:
    """One layer's input on the residual stream: what full recomputation keeps (n,)."""
    return np.asarray(low.local_tokens * low.table.model.hidden_size * HALF)


def _attention(low: Lowered) -> list[Saved]:
    model, table, t, ts = low.table.model, low.table, low.tokens, low.local_tokens
    linear = saved_input_bytes(low)
    h = model.hidden_size
    qk, v = head_dims(model)
    query, out = low.heads * qk * t, low.heads * v * t
    unfused = table.is_word("attention_backend", "unfused")
    # MaxText's policies that save the projections only run all from there again, up to the layer's output.
    redone = table.is_word("framework", "maxtext") & table.recompute_module("core_attn")
    items = [
        Saved("input_layernorm input", residual_bytes(low), None),
        Saved("qkv input", linear * h * ts, "layernorm"),
    ]
    if model.multi_latent_attention:
        assert model.kv_lora_rank and model.qk_pos_emb_head_dim
        latent = (model.q_lora_rank or 0) + model.kv_lora_rank
        # Latents before their norms and, as inputs of the up projections, after them.
        items += [
            Saved("latents", (HALF + linear) * latent * ts + HALF * model.qk_pos_emb_head_dim * ts, None),
            Saved("query, key, value", HALF * (2 * query + out), "mla_up_proj"),
        ]
    else:
        items.append(Saved("query, key, value", HALF * (query + low.kv_heads * (qk + v) * t), None))
        items.append(Saved("packed projection", _packed_projection(low, query), None))
        if model.qk_layernorm:
            # The norms keep their inputs; attention keeps their outputs.
            items.append(Saved("qk norm inputs", HALF * (query + low.kv_heads * qk * t), None))
    # Softmax statistics of flash attention (FP32), or the 5 a s^2 b of the paper's eq. 1.
    keys = table.seq_len
    items += [
        Saved(
            "attention softmax",
            np.where(unfused, 5.0 * low.heads * t * keys, 4.0 * low.heads * t),
            "core_attn",
        ),
        Saved("attention output", np.where(redone, 0.0, HALF * out), None),
        # In a quantised linear the projection keeps its own copy.
        Saved("projection input", np.where(linear < HALF, linear * out, 0.0), None),
        Saved("pre_mlp_layernorm input", np.where(redone, 0.0, residual_bytes(low)), None),
    ]
    return items


def _packed_projection(low: Lowered, query: Floats) -> Floats:
    """A checkpoint around the attention kernel keeps its inputs as they are: queries and keys, which rotary
    embeddings made anew, and the values, a slice that keeps the whole packed projection alive. Otherwise the
    kernel keeps a copy of the values alone. Bytes on top of queries, keys and values (n,)."""
    model, table = low.table.model, low.table
    anew = model.position_embedding_type == "rope" or model.qk_layernorm
    sliced = table.is_word("framework", "megatron-core") & table.is_word("attention_backend", "flash")
    kept = anew & sliced & table.recompute_module("core_attn")
    qk, _ = head_dims(model)
    return np.where(kept, HALF * (query + low.kv_heads * qk * low.tokens), 0.0)


def _mlp(low: Lowered) -> list[Saved]:
    model = low.table.model
    return [
        Saved("fc1 input", saved_input_bytes(low) * model.hidden_size * low.local_tokens, "layernorm"),
        *_expert_mlp(low, low.tokens, model.ffn_hidden_size / low.table.tp, "mlp", None, "mlp"),
    ]


def _moe(low: Lowered) -> list[Saved]:
    model, table, ts, rows = low.table.model, low.table, low.local_tokens, low.routed_tokens
    assert model.num_experts is not None and model.moe_ffn_hidden_size is not None
    h = model.hidden_size
    items = [
        # The router and the dispatcher read the norm's output; it stays in 16 bits.
        Saved("router input", HALF * h * ts, "layernorm"),
        # Router logits, scores and the probability map in FP32.
        Saved("router", 12.0 * model.num_experts * ts, "moe"),
        Saved("dispatched tokens", saved_input_bytes(low) * h * rows, "moe"),
        *_expert_mlp(low, rows, model.moe_ffn_hidden_size / table.etp, "expert", "moe_act", "moe"),
    ]
    if model.moe_shared_expert_intermediate_size:
        width = model.moe_shared_expert_intermediate_size / table.tp
        items += _expert_mlp(low, low.tokens, width, "shared expert", None, "shared_experts")
    return items


def _expert_mlp(
    low: Lowered, rows: Floats, width: Floats, name: str, act_module: str | None, module: str
) -> list[Saved]:
    into = 2.0 if low.table.model.gated_linear_unit else 1.0
    # MaxText's rematerialisation policies keep results of matrix products only; XLA redoes what lies between.
    redone = low.table.is_word("framework", "maxtext") & low.table.is_word("recompute", "selective")
    activation = np.where(redone, 0.0, saved_input_bytes(low) * width * rows)
    items = [Saved(f"{name} fc1 output", HALF * into * width * rows, module)]
    if low.table.model.gated_linear_unit:
        # silu(gate) * up as two operators: the product keeps silu(gate) too.
        apart = low.table.is_word("framework", "torchtitan", "nanotron", "deepspeed", "pytorch")
        kept = np.where(apart & ~low.table.torch_compile, HALF * width * rows, 0.0)
        items.append(Saved(f"{name} gate activation", kept, module))
    if act_module is None:
        return [*items, Saved(f"{name} activation", activation, module)]
    # Either module drops the activation's output: split it so that each is counted once.
    by_act = low.table.recompute_module(act_module)
    return [
        *items,
        Saved(f"{name} activation", np.where(by_act, 0.0, activation), module),
        Saved(f"{name} activation, recomputed alone", np.where(by_act, activation, 0.0), act_module),
    ]
