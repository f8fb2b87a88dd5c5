"""What lives for a moment of the step only: a layer's backward, logits and loss, the optimizer's copies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardwise.engine.lowering import LayerKind, Lowered
from shardwise.engine.memory.loss import logits_and_loss
from shardwise.engine.memory.recomputation import checkpoint_unit
from shardwise.engine.memory.saved import LayersSaved, residual_bytes
from shardwise.engine.memory.states import gradient_bytes, optimizer_copies, waiting_gradients
from shardwise.engine.model import Model
from shardwise.engine.parameters import Parameters, layer_dense, layer_expert, one_expert
from shardwise.engine.precisions import HALF
from shardwise.engine.table import Floats, Table

Parts = dict[str, Floats]
"""What a moment needs besides states and saved activations: part -> bytes (n, S)."""

MOMENTS = ("backward of a layer", "loss", "optimizer step")
"""When a stage can be fullest, in the order of a step. In the last, no activation is alive."""


def moments(low: Lowered, saved: LayersSaved, parameters: Parameters) -> tuple[Parts, Parts, Parts]:
    """The parts of each of :data:`MOMENTS`."""
    table, shape = low.table, low.stages.shape
    recomputed, buffers = _largest_backward(low, saved)
    in_layer, in_head, stay = _gathered(low, parameters)
    dummies = _dummy_gradients(low)
    # The output head is no Transformer Engine module: its own placeholder lives as long as its backward.
    of_head = np.where(dummies > 0, HALF * low.vocab * table.model.hidden_size, 0.0)
    # nanotron's 16-bit ``param.grad`` of a whole backward pass, added up only at its end; FSDP's whole ones.
    unadded = np.where(table.is_word("framework", "nanotron"), HALF, 0.0)
    unadded = np.where(waiting_gradients(table), gradient_bytes(table), unadded)[:, None]

    def wide(rows: Floats) -> Floats:
        return np.broadcast_to(rows[:, None], shape)

    layer = {
        "recomputed activations": wide(recomputed),
        "gradients of a layer": wide(buffers),
        "gathered parameters": wide(in_layer) + stay,
        "gradients not yet added up": unadded * (parameters.dense + parameters.expert),
        "placeholders for gradients": wide(dummies),
        "buckets": wide(_deepspeed_buckets(table)),
    }
    loss = {
        "logits and loss": np.where(low.last, logits_and_loss(low)[:, None], 0.0),
        "gathered parameters": np.where(low.last, in_head[:, None], 0.0) + stay,
        "placeholders for gradients": np.where(low.last, (of_head + dummies)[:, None], 0.0),
    }
    return layer, loss, {"optimizer's copies": optimizer_copies(table, parameters)}


_REDUCE_BUCKET, _LIVE_PARAMETERS = 5e8, 1e9
"""Elements: DeepSpeed's defaults of ``reduce_bucket_size`` and ``stage3_max_live_parameters``
(``runtime/zero/config.py``). The bucket is allocated whole, however small the model."""


def _deepspeed_buckets(table: Table) -> Floats:
    """16-bit buckets in which DeepSpeed's ZeRO reduces gradients: two with overlap, below ZeRO-3 (n,)."""
    twice = np.where(table.overlap_grad_reduce & ~table.is_word("dp_sharding", "fsdp", "hsdp"), 2.0, 1.0)
    on = table.is_word("framework", "deepspeed") & ~table.is_word("dp_sharding", "none")
    return np.where(on, twice * _REDUCE_BUCKET * HALF, 0.0)


def total(parts: Parts) -> Floats:
    """Bytes of all parts (n, S)."""
    return np.asarray(sum(parts.values()))


def _largest_backward(low: Lowered, saved: LayersSaved) -> tuple[Floats, Floats]:
    """Of the kind of layer whose backward needs most: what runs again, and the gradients alive (n,)."""
    table = low.table
    full = table.is_word("recompute", "full")
    unit = checkpoint_unit(table)
    best = (np.zeros(len(table)), np.zeros(len(table)))
    for kind in low.layers:
        everything, kept = saved[kind]
        # Under full recomputation a whole unit comes back; under selective what was dropped.
        again = np.where(full, everything * unit, everything - kept)
        buffers = _backward_buffers(low, kind)
        more = again + buffers > best[0] + best[1]
        best = (np.where(more, again, best[0]), np.where(more, buffers, best[1]))
    return best


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
    # Without resharding every layer stays gathered between forward and backward; DeepSpeed frees none before
    # as many parameters live as its limit.
    everything = parameters.dense + parameters.expert
    live = np.where(table.is_word("framework", "deepspeed"), _LIVE_PARAMETERS, 0.0)[:, None]
    live = np.where(table.fsdp_reshard_after_forward[:, None], np.minimum(everything, live), everything)
    stay = np.where(on[:, None], live * HALF, 0.0)
    return np.where(on, in_layer, 0.0), np.where(on, in_head, 0.0), stay
