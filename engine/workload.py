"""Lowers a layer to its operators: shapes, bytes and collectives after TP/SP/CP/EP/ETP sharding.

Sizes are per rank and micro-batch, one entry per row of the table. Every operator says which module
of selective recomputation runs its forward again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardwise.engine.flops import attended, head_dims
from shardwise.engine.lowering import LayerKind, Lowered
from shardwise.engine.model import Model
from shardwise.engine.table import Bools, Floats

Bucket = Literal["attention", "mlp", "moe", "tp_comm", "ep_comm", "cp_comm", "other"]
GroupName = Literal["tp", "cp", "ep", "etp"]
CollectiveName = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "ring"]

_KEY_TILE = 128.0
"""Keys by which a fused kernel's tiles overhang a sliding window (FlashAttention's blocks of 128)."""

_HALF = 2.0
"""Bytes of a 16-bit element."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """``groups`` products (m x k)(k x n); the backward pass has two products of the same size."""

    name: str
    bucket: Bucket
    m: Floats
    n: Floats
    k: Floats
    groups: float | Floats = 1.0
    grouped: bool = False
    quantised: bool = True
    """Whether a low-precision recipe runs it in low precision."""
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attention:
    """Core attention, forward FLOPs (causal) and the bytes of its tensors."""

    name: str
    flops: Floats
    bytes: Floats
    head_dim: float
    unfused_bytes: Floats
    """Bytes of scores and probabilities moved when the backend is unfused, forward."""
    bucket: Bucket = "attention"
    modules: tuple[str, ...] = ("core_attn",)


@dataclass(frozen=True, slots=True)
class Stream:
    """Element-wise work: bytes moved forward and backward."""

    name: str
    bucket: Bucket
    forward_bytes: Floats
    backward_bytes: Floats
    kernels: float = 1.0
    permute: bool = False
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective around a layer. ``bytes`` is the full tensor (sent bytes for all-to-all)."""

    name: str
    bucket: Bucket
    op: CollectiveName
    group: GroupName
    bytes: Floats
    forward_times: float = 1.0
    """Calls in the forward pass."""
    backward_times: float = 1.0
    """Calls in the backward pass."""
    active: Bools | bool = True
    modules: tuple[str, ...] = ()


Operator = Gemm | Attention | Stream | Collective


def layer_operators(low: Lowered, kind: LayerKind) -> list[Operator]:
    """The operators of one decoder layer of ``kind``."""
    return [*_attention(low, kind), *(_moe(low) if kind.moe else _dense_mlp(low))]


def embedding_operators(low: Lowered) -> list[Operator]:
    """Input embedding: a gather forward, a scatter-add into FP32 gradients backward."""
    moved = low.local_tokens * low.table.model.hidden_size
    return [Stream("embedding", "other", 2 * _HALF * moved, (_HALF + 8.0) * moved, kernels=2)]


def head_operators(low: Lowered) -> list[Operator]:
    """Final norm, output head, cross-entropy; once more per multi-token-prediction layer."""
    model = low.table.model
    times = 1.0 + model.mtp_num_layers
    t, v = low.tokens, low.vocab
    # Cast to FP32, max, exp-sum, loss; backward reads the softmax and writes the 16-bit gradient.
    forward = np.where(low.table.cross_entropy_fusion, 2 * _HALF, _HALF + 4.0 * 4.0)
    backward = np.where(low.table.cross_entropy_fusion, 2 * _HALF, 2 * 4.0 + _HALF)
    operators: list[Operator] = [
        Gemm("output head", "other", t, v, _full(low, model.hidden_size), groups=times, quantised=False),
        Stream(
            "cross entropy", "other", times * forward * t * v, times * backward * t * v, kernels=4 * times
        ),
        _norm_stream(low, "final norm", times),
    ]
    if model.mtp_num_layers:
        n = _full(low, model.hidden_size) / low.table.tp
        operators.append(
            Gemm("mtp projection", "other", t, n, _full(low, 2.0 * model.hidden_size), groups=times - 1)
        )
    return operators


def _full(low: Lowered, value: float) -> Floats:
    return np.full(len(low.table), float(value))


def _norm_stream(low: Lowered, name: str, times: float = 1.0) -> Stream:
    """A norm reads and writes the residual stream; its backward reads three tensors and writes one."""
    size = low.local_tokens * low.table.model.hidden_size * _HALF * times
    return Stream(name, "other", 2 * size, 4 * size, modules=("layernorm",))


def _attention(low: Lowered, kind: LayerKind) -> Iterator[Operator]:
    model, table, t = low.table.model, low.table, low.tokens
    h = _full(low, model.hidden_size)
    qk, v = head_dims(model)
    yield _norm_stream(low, "input_layernorm")
    yield from _tp_enter(low, "attention", width=_attention_input(model))
    if model.multi_latent_attention:
        yield from _mla_projections(low)
    else:
        yield Gemm("qkv", "attention", t, (low.heads + 2 * low.kv_heads) * qk, h)
    rotated = t * (low.heads + low.kv_heads) * qk * _HALF
    passes = 2.0 + (2.0 if model.qk_layernorm else 0.0)
    yield Stream("rotary", "attention", passes * rotated, passes * rotated, kernels=2)
    yield from _context_exchange(low)
    keys = np.array(
        [attended(int(s), model.window_size if kind.windowed else None) for s in np.unique(table.seq_len)]
    )
    mean_keys = keys[np.searchsorted(np.unique(table.seq_len), table.seq_len)]
    tensors = t * (low.heads * (qk + v) + low.kv_heads * (qk + v)) * _HALF
    if kind.windowed:
        mean_keys = mean_keys + _KEY_TILE
    scores = low.heads * t * table.seq_len
    yield Attention(
        "core attention",
        flops=2.0 * low.heads * (qk + v) * t * mean_keys,
        bytes=tensors,
        head_dim=(qk + v) / 2,
        # Scores written, masked and softmaxed, probabilities read: six 16-bit passes.
        unfused_bytes=6 * _HALF * scores,
    )
    yield Gemm("attention projection", "attention", t, h, low.heads * v)
    yield from _tp_leave(low, "attention")
    yield _residual_add(low)


def _attention_input(model: Model) -> int:
    """Width of what tensor parallelism gathers before attention: hidden states, or under MLA what enters
    the sharded up projections, since the down projections work on each rank's part of the sequence."""
    if not model.multi_latent_attention:
        return model.hidden_size
    assert model.kv_lora_rank and model.qk_pos_emb_head_dim
    return (model.q_lora_rank or model.hidden_size) + model.kv_lora_rank + model.qk_pos_emb_head_dim


def _mla_projections(low: Lowered) -> Iterator[Operator]:
    model, t, ts = low.table.model, low.tokens, low.local_tokens
    assert model.kv_lora_rank and model.qk_head_dim and model.qk_pos_emb_head_dim and model.v_head_dim
    h = _full(low, model.hidden_size)
    d = model.qk_head_dim + model.qk_pos_emb_head_dim
    up = ("mla_up_proj",)
    if model.q_lora_rank:
        yield Gemm("q down", "attention", ts, _full(low, model.q_lora_rank), h)
        yield Gemm("q up", "attention", t, low.heads * d, _full(low, model.q_lora_rank), modules=up)
    else:
        yield Gemm("q", "attention", t, low.heads * d, h, modules=up)
    yield Gemm("kv down", "attention", ts, _full(low, model.kv_lora_rank + model.qk_pos_emb_head_dim), h)
    width = low.heads * (model.qk_head_dim + model.v_head_dim)
    yield Gemm("kv up", "attention", t, width, _full(low, model.kv_lora_rank), modules=up)
    latent = ts * (model.kv_lora_rank + (model.q_lora_rank or 0)) * _HALF
    yield Stream("latent norms", "attention", 2 * latent, 4 * latent, kernels=2)
    # Rotary parts are split off, broadcast over heads and concatenated again.
    yield Stream(
        "concatenate heads", "attention", 4 * t * low.heads * d, 4 * t * low.heads * d, kernels=4, modules=up
    )


def _tp_enter(
    low: Lowered, what: str, modules: tuple[str, ...] = (), width: int | None = None
) -> Iterator[Operator]:
    """Into a column-parallel linear: an all-gather of the sequence under SP; its backward scatters the
    input gradient and gathers the input again for the weight gradient. Without SP: all-reduce backward.
    ``width``: of the input, unless it is the hidden size."""
    table = low.table
    size = low.tokens * (width or table.model.hidden_size) * _HALF
    on = table.tp > 1
    sp = table.sequence_parallel & on
    yield Collective(f"{what} gather", "tp_comm", "all_gather", "tp", size, 1.0, 2.0, sp, modules)
    yield Collective(
        f"{what} input gradient", "tp_comm", "all_reduce", "tp", size, 0.0, 1.0, on & ~sp, modules
    )


def _tp_leave(low: Lowered, what: str, modules: tuple[str, ...] = ()) -> Iterator[Operator]:
    """Out of a row-parallel linear: reduce-scatter under SP (all-gather backward), all-reduce without."""
    table = low.table
    size = low.tokens * table.model.hidden_size * _HALF
    on = table.tp > 1
    sp = table.sequence_parallel & on
    yield Collective(f"{what} scatter", "tp_comm", "reduce_scatter", "tp", size, 1.0, 1.0, sp, modules)
    yield Collective(f"{what} reduce", "tp_comm", "all_reduce", "tp", size, 1.0, 0.0, on & ~sp, modules)


def _context_exchange(low: Lowered) -> Iterator[Operator]:
    """What context parallelism moves around core attention, by ``cp_comm_type``."""
    table, t = low.table, low.tokens
    qk, v = head_dims(table.model)
    key_value = t * low.kv_heads * (qk + v) * _HALF
    on = table.cp > 1
    ring = on & table.is_word("cp_comm_type", "p2p")
    swap = on & table.is_word("cp_comm_type", "a2a")
    gather = on & table.is_word("cp_comm_type", "all_gather")
    # The backward ring carries keys, values and their gradients.
    yield Collective("key/value ring", "cp_comm", "ring", "cp", key_value, 1.0, 2.0, ring)
    heads_moved = t * (low.heads * (qk + v) + low.kv_heads * (qk + v)) * _HALF
    yield Collective("head exchange", "cp_comm", "all_to_all", "cp", heads_moved, 1.0, 1.0, swap)
    yield Collective(
        "key/value gather", "cp_comm", "all_gather", "cp", key_value * table.cp, 1.0, 2.0, gather
    )


def _residual_add(low: Lowered) -> Stream:
    size = low.local_tokens * low.table.model.hidden_size * _HALF
    return Stream("residual add", "other", 3 * size, 1 * size)


def _gated_mlp(
    low: Lowered,
    bucket: Bucket,
    name: str,
    rows: Floats,
    width: Floats,
    *,
    groups: Floats | float,
    grouped: bool,
    modules: tuple[str, ...],
    act_modules: tuple[str, ...],
) -> Iterator[Operator]:
    model = low.table.model
    into = 2.0 if model.gated_linear_unit else 1.0
    h = _full(low, model.hidden_size)
    each = rows / groups
    yield Gemm(f"{name} fc1", bucket, each, into * width, h, groups, grouped, modules=modules)
    size = rows * width * _HALF
    yield Stream(f"{name} activation", bucket, (into + 1) * size, (2 * into + 1) * size, modules=act_modules)
    yield Gemm(f"{name} fc2", bucket, each, h, width, groups, grouped, modules=modules)


def _dense_mlp(low: Lowered) -> Iterator[Operator]:
    width = low.table.model.ffn_hidden_size / low.table.tp
    module = ("mlp",)
    yield _norm_stream(low, "pre_mlp_layernorm")
    yield from _tp_enter(low, "mlp", module)
    yield from _gated_mlp(
        low, "mlp", "mlp", low.tokens, width, groups=1.0, grouped=False, modules=module, act_modules=module
    )
    yield from _tp_leave(low, "mlp", module)
    yield _residual_add(low)


def _moe(low: Lowered) -> Iterator[Operator]:
    model, table, ts, rows = low.table.model, low.table, low.local_tokens, low.routed_tokens
    assert model.num_experts is not None and model.moe_ffn_hidden_size is not None
    module = ("moe",)
    h, experts = model.hidden_size, model.num_experts
    yield _norm_stream(low, "pre_mlp_layernorm")
    yield Gemm("router", "moe", ts, _full(low, experts), _full(low, h), quantised=False, modules=module)
    scores = 4.0 * ts * experts
    yield Stream("router scores", "moe", 6 * scores, 6 * scores, kernels=10, modules=module)
    yield from _dispatch(low)
    # Sort by expert before the exchange and by local expert after it; the same way back.
    sent = ts * model.moe_router_topk * h * _HALF
    received = rows * h * _HALF
    yield Stream("permute", "moe", 4 * sent, 4 * sent, kernels=4, permute=True, modules=module)
    several = (experts / table.ep > 1).astype(np.float64)
    yield Stream(
        "sort by local expert",
        "moe",
        4 * received * several,
        4 * received * several,
        2,
        permute=True,
        modules=module,
    )
    width = model.moe_ffn_hidden_size / table.etp
    yield from _gated_mlp(
        low,
        "moe",
        "expert",
        rows,
        width,
        groups=experts / table.ep,
        grouped=True,
        modules=module,
        act_modules=("moe", "moe_act"),
    )
    if model.moe_shared_expert_intermediate_size:
        shared = ("moe", "shared_experts")
        yield from _tp_enter(low, "shared expert", shared)
        yield from _gated_mlp(
            low,
            "moe",
            "shared expert",
            low.tokens,
            model.moe_shared_expert_intermediate_size / table.tp,
            groups=1.0,
            grouped=False,
            modules=shared,
            act_modules=shared,
        )
        yield from _tp_leave(low, "shared expert", shared)
    yield _residual_add(low)


def _dispatch(low: Lowered) -> Iterator[Operator]:
    """Tokens to their experts and back: all-to-all over ep (or all-gather), gathered over etp."""
    model, table, module = low.table.model, low.table, ("moe",)
    h = model.hidden_size
    gathers = table.is_word("moe_token_dispatcher", "allgather")
    # The fullest rank receives this much; the sender's side is no larger.
    sent = low.routed_tokens / table.etp * h * _HALF
    exchange = (table.ep > 1) & ~gathers
    for name in ("dispatch", "combine"):
        yield Collective(name, "ep_comm", "all_to_all", "ep", sent, 1.0, 1.0, exchange, module)
    everyone = low.local_tokens * table.ep * h * _HALF
    gather = (table.ep > 1) & gathers
    yield Collective("token gather", "ep_comm", "all_gather", "ep", everyone, 1.0, 1.0, gather, module)
    yield Collective("token scatter", "ep_comm", "reduce_scatter", "ep", everyone, 1.0, 1.0, gather, module)
    within = low.routed_tokens * h * _HALF
    split = table.etp > 1
    yield Collective("expert tp gather", "ep_comm", "all_gather", "etp", within, 1.0, 1.0, split, module)
    yield Collective("expert tp scatter", "ep_comm", "reduce_scatter", "etp", within, 1.0, 1.0, split, module)
