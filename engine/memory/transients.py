"""What lives for a moment of the step only: a layer's backward, logits and loss, gathered parameters."""

from __future__ import annotations

import numpy as np

from shardwise.engine.lowering import LayerKind, Lowered
from shardwise.engine.memory.recomputation import checkpoint_unit
from shardwise.engine.memory.saved import LayersSaved, residual_bytes
from shardwise.engine.memory.states import gradient_bytes
from shardwise.engine.parameters import Parameters, layer_dense, layer_expert
from shardwise.engine.precisions import HALF
from shardwise.engine.table import Floats


def transient_peak(low: Lowered, saved: LayersSaved, parameters: Parameters) -> Floats:
    """The largest passing need: a layer's backward (after its recomputation), or logits and loss (n, S)."""
    table = low.table
    full = table.is_word("recompute", "full")
    unit = checkpoint_unit(table)
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
    waiting = low.table.model.mtp_num_layers * np.where(fused, HALF, 4.0)
    logits = low.tokens * low.vocab * (np.where(fused, 4.0, 6.0) + waiting)
    in_layer, in_head, stay = _gathered(low, parameters)
    head = np.where(low.last, (logits + in_head)[:, None], 0.0)
    return np.asarray(np.maximum((working + in_layer)[:, None], head) + stay)


def _backward_buffers(low: Lowered, kind: LayerKind) -> Floats:
    """Gradients alive at once inside one layer's backward: the widest activation's and two residuals (n,)."""
    model, table = low.table.model, low.table
    into = 2.0 if model.gated_linear_unit else 1.0
    # Sequence parallelism gathers the linear's input again beside the input gradient yet to be scattered.
    whole = np.where(low.table.sequence_parallel, 2 * HALF * low.tokens * model.hidden_size, 0.0)
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
    in_layer = largest * (3 * HALF + gradient_bytes(table))
    in_head = 2 * HALF * low.vocab * table.model.hidden_size + HALF * largest
    # Without resharding every layer stays gathered between forward and backward.
    stay = (parameters.dense + parameters.expert) * HALF
    stays = (on & ~table.fsdp_reshard_after_forward)[:, None]
    return np.where(on, in_layer, 0.0), np.where(on, in_head, 0.0), np.where(stays, stay, 0.0)
