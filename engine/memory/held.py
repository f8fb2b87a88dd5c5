"""Saved activations of the micro-batches in flight on a stage."""

from __future__ import annotations

import numpy as np

from shardwise.engine.lowering import Lowered
from shardwise.engine.memory.loss import kept_loss
from shardwise.engine.memory.offload import offloaded_share
from shardwise.engine.memory.recomputation import checkpoints, recomputed_share
from shardwise.engine.memory.saved import LayersSaved, residual_bytes
from shardwise.engine.precisions import HALF
from shardwise.engine.schedule.closed_form import in_flight
from shardwise.engine.table import Floats


def held_activations(low: Lowered, saved: LayersSaved) -> Floats:
    """Saved activations of the micro-batches in flight (n, S)."""
    table, model = low.table, low.table.model
    per_pass = np.zeros(low.stages.shape)
    stored = 1.0 - recomputed_share(low)
    full = table.is_word("recompute", "full")[:, None]
    for kind, count in low.layers.items():
        _, kept = saved[kind]
        per_pass = per_pass + count * stored * kept[:, None]
    inputs = np.where(full, checkpoints(low) * residual_bytes(low)[:, None], 0.0)
    chunks = table.vpp[:, None]
    held_chunks = in_flight(
        table.pp[:, None], chunks, table.num_microbatches[:, None], low.stages, table.pp_schedule[:, None]
    )
    away = offloaded_share(low)[:, None]
    held = (per_pass + inputs) * (1.0 - away) / chunks * held_chunks + _left_by_routers(low)
    # Final norm and the 16-bit output head's input, once more per multi-token-prediction layer; the last
    # stage holds one micro-batch of it under 1F1B.
    heads = 1 + model.mtp_num_layers
    head = heads * 2 * HALF * model.hidden_size * low.local_tokens
    depth = np.where(table.is_word("pp_schedule", "gpipe"), table.num_microbatches, 1)[:, None]
    # Where gradients of weights lag behind, the head's wait for as many micro-batches as the stage holds;
    # where a V ends, on its first rank, each micro-batch is done with before the next one comes.
    lagging = table.is_word("pp_schedule", "zb1p")[:, None]
    depth = np.where(lagging, np.ceil(held_chunks / chunks), depth)
    # The peak counts one loss whole; those that wait beside it kept what their backward needs.
    waiting = (depth - 1) * kept_loss(low)[:, None]
    return np.asarray(held + low.last * (head[:, None] * depth + waiting))


def _left_by_routers(low: Lowered) -> Floats:
    """What a recomputed MoE layer of Megatron-Core keeps until it runs again: its dispatcher holds the last
    pass's probabilities, and by their graph the router's input and its gradient (n, S)."""
    table = low.table
    core = table.is_word("framework", "megatron-core")[:, None]
    again = np.where(table.recompute_module("moe")[:, None], 1.0, recomputed_share(low))
    layers = sum((count for kind, count in low.layers.items() if kind.moe), np.zeros(low.stages.shape))
    return np.where(core, layers * again, 0.0) * 2 * residual_bytes(low)[:, None]
