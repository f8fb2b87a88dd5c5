"""What lives for a moment of the step only: a layer's backward, logits and loss, gathered parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardwise.engine.lowering import LayerKind, Lowered
from shardwise.engine.memory.recomputation import checkpoint_unit
from shardwise.engine.memory.saved import LayersSaved, residual_bytes
from shardwise.engine.memory.states import gradient_bytes
from shardwise.engine.model import Model
from shardwise.engine.parameters import Parameters, layer_dense, layer_expert, one_expert
from shardwise.engine.precisions import HALF
from shardwise.engine.table import Floats, Table


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
    in_layer, in_head, stay = _gathered(low, parameters)
    dummies = _dummy_gradients(low)
    # The output head is no Transformer Engine module: its own placeholder lives as long as its backward.
    of_head = np.where(dummies > 0, HALF * low.vocab * table.model.hidden_size, 0.0)
    head = np.where(low.last, (logits_and_loss(low) + in_head + of_head)[:, None], 0.0)
    # nanotron's 16-bit ``param.grad`` of a whole backward pass, added up only at its end.
    unadded = np.where(table.is_word("framework", "nanotron"), HALF, 0.0)[:, None] * (
        parameters.dense + parameters.expert
    )
    return np.asarray(np.maximum((working + in_layer)[:, None] + unadded, head) + stay + dummies[:, None])


_MEGATRON_LOSS, _ENGINE_LOSS = 6.0, 4.0
"""Bytes per logit. 16-bit logits and their FP32 copy, which becomes the softmax and the gradient in place
(``tensor_parallel/cross_entropy.py``); fusing it natively saves passes, not the copy (``fusions/
fused_cross_entropy.py``); Transformer Engine's 16-bit gradient overwrites the logits."""

_TORCH_LOSS, _HELD_LOGITS = 12.0, 6.0
"""``F.cross_entropy(logits.float())``: FP32 log-softmax kept for its backward, the loss's FP32 gradient
by it, and the FP32 gradient of the logits (ATen ``nll_loss_backward``, ``_log_softmax_backward_data``).
A training loop that does not delete them, as torchtitan's does, holds the logits and their FP32 copy."""

_LINEAR_CHUNKS = 8
"""Chunks in which a loss fused with the output head passes through the tokens (torchtune's default)."""

_NANOTRON_LOSS, _NANOTRON_KEPT = 10.0, 4.0
"""16-bit logits, their FP32 copy, and the FP32 softmax that ``_ShardedCrossEntropy`` saves
(``parallel/tensor_parallel/functional.py``). The last micro-batch's FP32 logits outlive it."""


def logits_and_loss(low: Lowered) -> Floats:
    """Logits, loss and their gradients at their peak, of one micro-batch, all heads (n,)."""
    table = low.table
    several = table.num_microbatches > 1
    # torchtitan compiles its loss with the model.
    eager = table.is_word("framework", "torchtitan") & ~table.torch_compile
    eager = eager | table.is_word("framework", "deepspeed", "pytorch")
    held = np.where(table.is_word("framework", "pytorch"), _HELD_LOGITS, 0.0)
    unfused = np.where(eager, _TORCH_LOSS + held, _MEGATRON_LOSS)
    nanotron = _NANOTRON_LOSS + np.where(several, _NANOTRON_KEPT, 0.0)
    unfused = np.where(table.is_word("framework", "nanotron"), nanotron, unfused)
    fused = table.cross_entropy_fusion
    native = table.is_word("framework", "megatron-core") & table.is_word(
        "cross_entropy_fusion_impl", "native"
    )
    of_fused = np.where(native, _MEGATRON_LOSS, _ENGINE_LOSS)
    linear = table.is_word("cross_entropy_fusion_impl", "linear")
    of_fused = np.where(linear, _TORCH_LOSS / _LINEAR_CHUNKS, of_fused)
    # A multi-token-prediction layer's softmax waits for its backward while the main head runs.
    waiting = table.model.mtp_num_layers * np.where(fused & ~native, HALF, 4.0)
    vocab = low.vocab * np.where(table.loss_parallel, 1, table.tp)
    return np.asarray(low.tokens * vocab * (np.where(fused, of_fused, unfused) + waiting))


def _dummy_gradients(low: Lowered) -> Floats:
    """Placeholders that Transformer Engine returns for weight gradients it has added to the main gradients
    itself: one cached 16-bit tensor per shape of weight (``get_dummy_wgrad``, ``module/base.py``) (n,)."""
    table = low.table
    engine = table.is_word("framework", "megatron-core") & table.is_word(
        "transformer_impl", "transformer_engine"
    )
    # FSDP reduces what backward returns.
    engine = engine & ~table.is_word("dp_sharding", "fsdp", "hsdp")
    return np.where(engine, HALF * _largest_layer(low, one_expert), 0.0)


def _largest_layer(low: Lowered, experts: Callable[[Model, Table], Floats]) -> Floats:
    """Parameters per rank of the largest layer, ``experts`` telling those of its routed experts (n,)."""
    table = low.table
    largest = np.zeros(len(table))
    for kind in low.layers:
        size = layer_dense(low, kind)
        if kind.moe:
            size = size + experts(table.model, table)
        largest = np.maximum(largest, size)
    return largest


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
    # The activation's gradient takes the place of the activation.
    expert = 2.0 * into * low.routed_tokens * model.moe_ffn_hidden_size / table.etp
    # Send and receive side of the token exchange; in the forward pass, those of both directions.
    exchange = 2 * 2.0 * low.routed_tokens * model.hidden_size
    return np.asarray(residual + np.maximum(expert, exchange) + exchange)


def _gathered(low: Lowered, parameters: Parameters) -> tuple[Floats, Floats, Floats]:
    """Under FSDP: what is gathered in a layer's backward (n,), in the output head's (n,), and throughout
    (n, S). Two units' weights, one in use and one prefetched, and the gradient of the one in use in 16
    bits; the buffer in which a layer's gradient is reduced comes on top of the next layer's backward."""
    table = low.table
    largest = _largest_layer(low, layer_expert)
    on = table.is_word("dp_sharding", "fsdp", "hsdp")
    in_layer = largest * (3 * HALF + gradient_bytes(table))
    in_head = 2 * HALF * low.vocab * table.model.hidden_size + HALF * largest
    # Without resharding every layer stays gathered between forward and backward.
    stay = (parameters.dense + parameters.expert) * HALF
    stays = (on & ~table.fsdp_reshard_after_forward)[:, None]
    return np.where(on, in_layer, 0.0), np.where(on, in_head, 0.0), np.where(stays, stay, 0.0)
