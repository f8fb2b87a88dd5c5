"""What sequence and context parallelism ask of the sequence and of the heads."""

from __future__ import annotations

from math import lcm

import numpy as np

from shardwise.engine.legality.rule import Fix, Rule, divisors, everywhere
from shardwise.engine.legality.suggest import change, multiples, nearest
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Bools, Table


def _positions(table: Table) -> Bools:
    # Rotary positions extrapolate (the framework does not refuse); a learned table simply ends.
    learned = table.model.position_embedding_type == "learned_absolute"
    return np.asarray(learned & (table.seq_len > table.model.max_position_embeddings))


def _explain_positions(r: Recipe) -> Fix:
    most = r.model.max_position_embeddings
    return change(f"seq_len={r.seq_len} exceeds the {most} learned positions of {r.model.name}", seq_len=most)


def _sequence_parallel(table: Table) -> Bools:
    return np.asarray(table.sequence_parallel & (table.tp == 1))


def _explain_sequence_parallel(r: Recipe) -> Fix:
    return change("sequence_parallel=true needs tp > 1, not tp=1", sequence_parallel=False)


def _context(table: Table) -> Bools:
    return np.asarray((table.cp > 1) & (table.seq_len % (2 * table.cp) != 0))


def _explain_context(r: Recipe) -> Fix:
    what = f"2*cp = {2 * r.cp} does not divide seq_len={r.seq_len}"
    candidates = {"cp": divisors(r.world_size), "seq_len": multiples(2 * r.cp, r.seq_len)}
    return nearest(what, _context, r, candidates)


def _local_sequence(table: Table) -> Bools:
    # Counts from seq_len itself, whether or not cp divides it, so that the two rules stay apart.
    exact = table.seq_len % table.cp == 0
    return np.asarray(table.sequence_parallel & exact & ((table.seq_len // table.cp) % table.tp != 0))


def _explain_local_sequence(r: Recipe) -> Fix:
    what = f"tp={r.tp} does not divide the local sequence seq_len/cp = {r.seq_len // r.cp}"
    unit = lcm(r.cp * r.tp, 2 * r.cp if r.cp > 1 else 1)
    # A tp that fits the world is meant; then it is the sequence that has to give.
    fits = r.world_size % r.tp == 0
    candidates = {"seq_len": multiples(unit, r.seq_len)} if fits else {"tp": divisors(r.world_size)}
    return nearest(what, _local_sequence, r, candidates)


def _ulysses(table: Table) -> Bools:
    model, ranks = table.model, table.tp * table.cp
    groups = model.num_attention_heads if model.multi_latent_attention else model.num_query_groups
    uneven = (model.num_attention_heads % ranks != 0) | (groups % ranks != 0)
    return np.asarray((table.cp > 1) & table.is_word("cp_comm_type", "a2a") & uneven)


def _explain_ulysses(r: Recipe) -> Fix:
    heads, groups = r.model.num_attention_heads, r.model.num_query_groups
    what = (
        f"cp_comm_type=a2a spreads heads over tp*cp = {r.tp * r.cp} ranks, which must divide "
        f"num_attention_heads={heads} and num_query_groups={groups}"
    )
    sizes = [cp for cp in divisors(r.world_size) if cp > 1]
    message, changes = nearest(what, _ulysses, r, {"cp": sizes})
    return (message, changes) if changes else change(what, cp_comm_type="p2p")


def _tp_overlap(table: Table) -> Bools:
    return np.asarray(table.tp_comm_overlap & ~table.sequence_parallel)


def _explain_tp_overlap(r: Recipe) -> Fix:
    what = "tp_comm_overlap=true needs sequence_parallel=true"
    return change(what, sequence_parallel=True) if r.tp > 1 else change(what, tp_comm_overlap=False)


_FP8_ROWS = {"fp8-delayed": 8, "fp8-tensorwise": 8, "fp8-blockwise": 8, "mxfp8": 32, "nvfp4": 16}
"""Tokens of a rank that one GEMM of the format needs a multiple of (Transformer Engine's shape checks)."""


def _alignment(table: Table) -> Bools:
    ranks = table.cp * np.where(table.sequence_parallel, table.tp, 1)
    tokens = table.mbs * table.seq_len
    broken = everywhere(table, False)
    for word, rows in _FP8_ROWS.items():
        broken |= table.is_word("precision", word) & (tokens % ranks == 0) & ((tokens // ranks) % rows != 0)
    return broken


def _explain_alignment(r: Recipe) -> Fix:
    ranks, rows = r.cp * (r.tp if r.sequence_parallel else 1), _FP8_ROWS[r.precision]
    what = (
        f"precision={r.precision} needs a multiple of {rows} tokens a rank, not {r.mbs * r.seq_len // ranks}"
    )
    return nearest(what, _alignment, r, {"seq_len": multiples(2 * ranks * rows, r.seq_len)})


RULES = (
    Rule(
        "position-embeddings",
        "MC-27 megatron/training/arguments.py",
        ("seq_len",),
        _positions,
        _explain_positions,
    ),
    Rule(
        "sequence-parallel",
        "MC-40 megatron/core/model_parallel_config.py",
        ("sequence_parallel", "tp"),
        _sequence_parallel,
        _explain_sequence_parallel,
    ),
    Rule(
        "context-parallel-sequence",
        "MC-41 megatron/training/arguments.py",
        ("cp", "seq_len"),
        _context,
        _explain_context,
    ),
    Rule(
        "sequence-parallel-length",
        "MC-42 megatron/core/tensor_parallel/mappings.py",
        ("seq_len", "tp", "cp", "sequence_parallel"),
        _local_sequence,
        _explain_local_sequence,
    ),
    Rule(
        "context-parallel-heads",
        "MC-44 transformer_engine/pytorch/attention (a2a)",
        ("cp", "tp", "cp_comm_type"),
        _ulysses,
        _explain_ulysses,
        framework="transformer-engine",
    ),
    Rule(
        "tp-overlap",
        "MC-47 megatron/training/arguments.py",
        ("tp_comm_overlap", "sequence_parallel"),
        _tp_overlap,
        _explain_tp_overlap,
    ),
    Rule(
        "fp8-alignment",
        "MC-43 transformer_engine/pytorch/utils.py",
        ("seq_len", "mbs", "cp", "tp", "sequence_parallel", "precision"),
        _alignment,
        _explain_alignment,
        framework="transformer-engine",
    ),
)
