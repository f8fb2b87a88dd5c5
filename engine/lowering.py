"""What every formula needs of a table first: tokens per rank, heads per rank, layers per stage.

A model's layers fall into a few *kinds* (windowed or full attention, dense MLP or MoE). Costs are
computed once per kind and multiplied by how many layers of the kind a pipeline stage holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shardwise.engine.model import Model
from shardwise.engine.pipeline_layout import (
    distinct_layouts,
    layer_ranges,
    loss_stage,
    mtp_stage,
    representative_stages,
)
from shardwise.engine.table import Bools, Floats, Ints, Table


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A kind of decoder layer."""

    windowed: bool
    moe: bool


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A table with the quantities that its formulas share. Shapes: (n,) rows, (n, S) rows x stages."""

    table: Table
    tokens: Floats
    """Tokens of one micro-batch on one rank, mbs * seq_len / cp."""
    local_tokens: Floats
    """The same where the sequence is also sharded over tp (norms, residuals, MoE dispatch)."""
    heads: Floats
    """Query heads per rank."""
    kv_heads: Floats
    """Key/value heads per rank; at least 1, replicated when there are fewer than tp."""
    vocab: Floats
    """Padded vocabulary per rank."""
    routed_tokens: Floats
    """Token copies that the experts of the fullest rank work on, per micro-batch (0 for dense models)."""
    stages: Ints
    """(n, S) the pipeline stages looked at."""
    layers: dict[LayerKind, Floats]
    """(n, S) decoder layers of each kind in each stage, multi-token-prediction layers included."""
    first: Bools
    """(n, S) the stage holds the embedding."""
    last: Bools
    """(n, S) the stage holds the output head and the loss."""
    mtp: Bools
    """(n, S) the stage holds the multi-token-prediction layers."""


def lower(table: Table, stages: Ints | None = None) -> Lowered:
    """Lower ``table``; ``stages`` (n, S) defaults to those that surely contain the worst one."""
    model = table.model
    tokens = table.mbs * table.seq_len / table.cp
    local = np.where(table.sequence_parallel, tokens / table.tp, tokens)
    which, layers = _layers_of_stages(table) if stages is None else (stages, _layers(table, stages))
    last = which == loss_stage(table)[:, None]
    mtp = which == mtp_stage(table)[:, None]
    if model.mtp_num_layers:
        kind = LayerKind(windowed=model.windowed_layers[-1], moe=model.moe_layers[-1])
        layers[kind] = layers[kind] + np.where(mtp, model.mtp_num_layers, 0)
    return Lowered(
        table=table,
        tokens=tokens,
        local_tokens=local,
        heads=model.num_attention_heads / table.tp,
        kv_heads=np.maximum(model.num_query_groups / table.tp, 1.0),
        vocab=padded_vocab(model, table.tp) / table.tp,
        routed_tokens=_routed_tokens(table, local),
        stages=which,
        layers=layers,
        first=which == 0,
        last=last,
        mtp=mtp,
    )


def _layers_of_stages(table: Table) -> tuple[Ints, dict[LayerKind, Floats]]:
    """The stages that surely contain the worst one, and their layers: once per distinct layout."""
    rows, inverse = distinct_layouts(table)
    few = table.take(rows)
    which = representative_stages(few)
    return which[inverse], {kind: count[inverse] for kind, count in _layers(few, which).items()}


def _layers(table: Table, stages: Ints) -> dict[LayerKind, Floats]:
    """Decoder layers of each kind in each of ``stages`` (n, S)."""
    start, end = layer_ranges(table, stages)
    return {
        kind: np.sum(cumulative[end] - cumulative[start], axis=2)
        for kind, cumulative in _cumulative(table.model).items()
    }


def padded_vocab(model: Model, tp: Ints) -> Ints:
    """Vocabulary padded to a multiple of 128 * tp (Megatron-LM ``training/vocab_utils.py``)."""
    unit = 128 * tp
    return np.asarray(-(-model.vocab_size // unit) * unit)


def _routed_tokens(table: Table, local_tokens: Floats) -> Floats:
    """Rows of the grouped GEMMs on the fullest expert rank: tokens x top-k, gathered over etp."""
    model = table.model
    if not model.is_moe:
        return np.zeros(len(table))
    balanced = local_tokens * model.moe_router_topk * table.etp
    fullest = _fullest_share(table)
    # With a capacity every expert works on its capacity: the excess is dropped, the rest padded.
    capacity = table.moe_expert_capacity_factor
    return np.asarray(balanced * np.where(capacity > 0, capacity, fullest))


def _fullest_share(table: Table) -> Floats:
    """Tokens of the fullest expert-parallel rank over the mean (n,).

    A rank sees imbalance only through the experts it holds: alone (ep=1) it holds them all. Experts are
    spread over ranks in blocks, in order.
    """
    counts = np.asarray(table.moe_tokens_per_expert)
    if not len(counts):
        return np.where(table.ep > 1, table.moe_imbalance, 1.0)
    running = np.concatenate([[0.0], np.cumsum(counts)])
    share = np.ones(len(table))
    for ep in np.unique(table.ep):
        edges = np.arange(ep + 1) * len(counts) // ep
        share[table.ep == ep] = np.diff(running[edges]).max() * ep / running[-1]
    return share


@lru_cache(maxsize=64)
def _cumulative(model: Model) -> dict[LayerKind, Floats]:
    """For each kind present: how many of the first i layers are of that kind, i = 0..num_layers."""
    kinds = [LayerKind(w, m) for w, m in zip(model.windowed_layers, model.moe_layers, strict=True)]
    result = {}
    for kind in sorted(set(kinds), key=lambda k: (k.moe, k.windowed)):
        result[kind] = np.concatenate([[0.0], np.cumsum([float(k == kind) for k in kinds])])
    return result
