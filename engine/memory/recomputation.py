"""How much of a stage full recomputation covers, and what it keeps."""

from __future__ import annotations

import numpy as np

from shardwise.engine.lowering import Lowered
from shardwise.engine.table import Floats, Ints, Table


def _total_layers(low: Lowered) -> Floats:
    return np.asarray(np.sum(list(low.layers.values()), axis=0))


def _recomputed_layers(low: Lowered) -> Floats:
    """Layers of each stage under full recomputation (n, S)."""
    table = low.table
    layers = _total_layers(low)
    block = table.is_word("recompute_method", "block")[:, None]
    in_blocks = np.minimum((table.recompute_num_layers * table.vpp)[:, None], layers)
    return np.where(block, in_blocks, layers)


def recomputed_share(low: Lowered) -> Floats:
    """Share of each stage's layers that run their whole forward again (n, S)."""
    full = low.table.is_word("recompute", "full")[:, None]
    return np.where(full, _recomputed_layers(low) / np.maximum(_total_layers(low), 1.0), 0.0)


def recomputed_share_of_model(table: Table) -> Floats:
    """Share of the whole model's layers that run their whole forward again (n,)."""
    blocks = table.recompute_num_layers * table.pp * table.vpp / table.model.num_layers
    share = np.where(table.is_word("recompute_method", "block"), np.minimum(blocks, 1.0), 1.0)
    return np.where(table.is_word("recompute", "full"), share, 0.0)


def checkpoint_unit(table: Table) -> Ints:
    """Layers of one checkpoint under full recomputation (n,)."""
    uniform = table.is_word("recompute_method", "uniform")
    return np.where(uniform, np.maximum(table.recompute_num_layers, 1), 1)


def checkpoints(low: Lowered) -> Floats:
    """Layer inputs kept under full recomputation: one per checkpoint (n, S)."""
    return np.asarray(np.ceil(_recomputed_layers(low) / checkpoint_unit(low.table)[:, None]))
