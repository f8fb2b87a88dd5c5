"""Which decoder layers each pipeline stage and virtual chunk holds, and which stages are worth pricing.

The split is Megatron-Core's (``megatron/core/transformer``: ``get_num_layers_to_build`` in
``transformer_block.py`` and ``get_transformer_layer_offset`` in ``transformer_layer.py``), over arrays:

* even: ``L' / pp / vpp`` layers a chunk, where ``L'`` counts the embedding and the loss as a layer each when
  the ``account_for_*`` flags say so; the very first (last) chunk then holds one decoder layer fewer;
* uneven: the first and/or last stage holds the given number, the middle stages share the rest equally,
  and each stage spreads its layers equally over its chunks;
* layout: ``pipeline_model_parallel_layout`` says it chunk by chunk;
* order: chunk ``c`` of stage ``s`` is model chunk ``c * pp + s``.

Rows are expected to be legal; an illegal row gets ranges inside the model that need not cover it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, lcm
from typing import Any

import numpy as np

from shardwise.engine.layout_string import layout_of
from shardwise.engine.model import Model
from shardwise.engine.recipe import V_SHAPED
from shardwise.engine.table import Bools, Ints, Table


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Decoder layers of one chunk of the first, a middle and the last stage, columns of shape (n, 1, 1)."""

    first: Ints
    middle: Ints
    last: Ints
    per_round: Ints
    """Layers of chunk ``c`` over all stages, for any one ``c``; flagged embedding and loss included."""


def chunk_layers(table: Table) -> Ints:
    """Decoder layers of the fullest virtual chunk of any stage, (n,): what block recomputation counts."""
    pp = table.pp
    # The chunks that can differ: outermost (flags), first and last stage (given counts), a middle stage.
    stage = np.stack([np.zeros_like(pp), np.minimum(1, pp - 1), pp - 1], axis=1)
    rounds = np.stack([np.zeros_like(pp), np.minimum(1, table.vpp - 1), table.vpp - 1], axis=1)
    start, end = _ranges(table, stage, rounds)
    fullest = np.asarray(np.max(end - start, axis=(1, 2)))
    for code, rows in _layouts(table):
        fullest[rows] = max(chunk.count("t") for chunk in layout_of(code).chunks)
    return fullest


def layer_slots(table: Table) -> Ints:
    """Layers to spread evenly, (n,): the decoder's, and the embedding and the loss where they are flagged."""
    flags = table.account_for_embedding_in_pipeline_split.astype(np.int64)
    return np.asarray(table.model.num_layers + flags + table.account_for_loss_in_pipeline_split)


def layer_range(table: Table, stage: Ints, chunk: int) -> tuple[Ints, Ints]:
    """Decoder layers ``[start, end)`` of virtual chunk ``chunk`` of each ``stage``.

    ``stage`` has shape (n, S); so have both answers. Rows with ``vpp <= chunk`` get empty ranges.
    """
    start, end = _ranges(table, stage, np.full((len(table), 1), chunk, dtype=np.int64))
    return start[..., 0], end[..., 0]


def layer_ranges(table: Table, stage: Ints) -> tuple[Ints, Ints]:
    """:func:`layer_range` of every virtual chunk: ``stage`` (n, S), both answers (n, S, max vpp)."""
    chunks = np.arange(int(table.vpp.max(initial=1)), dtype=np.int64)
    return _ranges(table, stage, np.broadcast_to(chunks, (len(table), len(chunks))))


def all_stages(table: Table) -> Ints:
    """Every stage, shape (n, max pp); rows with fewer stages repeat their last one."""
    widest = int(table.pp.max()) if len(table) else 1
    return np.asarray(np.minimum(np.arange(widest, dtype=np.int64)[None, :], table.pp[:, None] - 1))


def representative_stages(table: Table) -> Ints:
    """A few stages, (n, S), ascending, that contain the fullest and the slowest one; padded with the last.

    Two stages are alike when each of their chunks holds the same sequence of layer kinds and neither is
    the first (embedding) or the last (head, loss, multi-token prediction). Alike stages take equally
    long, and the earlier one keeps at least as many micro-batches in flight, so the first of each kind
    stands for all of them. ZB-V with too few micro-batches holds more on later ranks: all its stages are
    looked at.
    """
    if not len(table):
        return np.zeros((0, 1), dtype=np.int64)
    stages = all_stages(table)
    kinds = _stage_kinds(table, stages)
    few = _short_of_micro_batches(table)
    kinds[few] = stages[few]

    width = stages.shape[1]
    column = np.arange(width)[None, :]
    fresh: Bools = column < table.pp[:, None]
    for offset in range(1, width):
        fresh[:, offset:] &= kinds[:, offset:] != kinds[:, :-offset]
    # Stable order: fresh stages first (ascending), the rest after; then cut to the longest row.
    order = np.argsort(np.where(fresh, column, width + column), axis=1)
    counts = fresh.sum(axis=1)
    slots = np.minimum(np.arange(int(counts.max()))[None, :], counts[:, None] - 1)
    return np.asarray(np.take_along_axis(order, slots, axis=1), dtype=np.int64)


def split_options(num_layers: int, pp: int, vpp: int = 1) -> list[dict[str, Any]]:
    """Legal ways to split ``num_layers`` over ``pp`` stages of ``vpp`` chunks, the most usual first.

    Each is the recipe fields to set (all four, None for unset): even; the loss, then the embedding and the
    loss counted as layers; a shorter last stage; unequal ends around equal middle stages. Empty when there
    are fewer layers than chunks, or when no multiple of ``vpp`` fits.
    """
    options = []
    for embedding, loss in ((False, False), (False, True), (True, True)):
        slots = num_layers + embedding + loss
        # One slot a chunk would leave a flagged end without any layer.
        if slots % (pp * vpp) == 0 and (slots == num_layers or slots >= 2 * pp * vpp):
            options.append(_split(embedding=embedding, loss=loss))
    blocks, rest = divmod(num_layers, vpp)
    if pp > 1 and rest == 0 and blocks >= pp:
        last = blocks - ceil(blocks / pp) * (pp - 1)
        if last >= 1 and blocks % pp:
            options.append(_split(last=last * vpp))
        if blocks % pp and pp > 2:
            ends = blocks - blocks // pp * (pp - 2)
            options.append(_split(first=ceil(ends / 2) * vpp, last=ends // 2 * vpp))
    return options


def _split(
    embedding: bool = False, loss: bool = False, first: int | None = None, last: int | None = None
) -> dict[str, Any]:
    return {
        "account_for_embedding_in_pipeline_split": embedding,
        "account_for_loss_in_pipeline_split": loss,
        "num_layers_in_first_pipeline_stage": first,
        "num_layers_in_last_pipeline_stage": last,
        "pipeline_model_parallel_layout": None,
    }


def _ranges(table: Table, stage: Ints, chunk: Ints) -> tuple[Ints, Ints]:
    """``layer_range`` of the chunks ``chunk`` (n, C) of ``stage`` (n, S): (n, S, C)."""
    stage, chunk = stage[:, :, None], chunk[:, None, :]
    start, end = _computed_ranges(table, stage, chunk)
    for code, rows in _layouts(table):
        ends = np.minimum(layout_of(code).ends(), table.model.num_layers)
        pp, turned = table.pp[rows, None, None], _v_shaped(table)[rows, None, None] & (chunk[rows] == 1)
        index = np.where(turned, 2 * pp - 1 - stage[rows], chunk[rows] * pp + stage[rows])
        # A layout of another pipeline is illegal; its ranges need only be some.
        index = np.clip(index, 0, len(ends) - 1)
        end[rows] = ends[index]
        start[rows] = np.where(index > 0, ends[index - 1], 0)
    absent = table.vpp[:, None, None] <= chunk
    return np.where(absent, 0, start), np.where(absent, 0, end)


def _layouts(table: Table) -> Iterator[tuple[int, Bools]]:
    """Every layout that rows of the table have, with those rows."""
    codes = table.pipeline_model_parallel_layout
    if codes.any():
        for code in np.unique(codes[codes > 0]):
            yield int(code), codes == code


def loss_stage(table: Table) -> Ints:
    """The stage that holds the output head and the loss: the last one, under a V the first (n,)."""
    return np.where(_v_shaped(table), 0, table.pp - 1)


def _v_shaped(table: Table) -> Bools:
    return table.is_word("pp_schedule", *V_SHAPED)


def _short_of_micro_batches(table: Table) -> Bools:
    """ZB-V with fewer than the ``2*pp - 1`` micro-batches it is planned for (n,): the later a rank, the more
    of them it holds."""
    rows = table.is_word("pp_schedule", "zbv")
    return np.asarray(rows & (table.num_microbatches < 2 * table.pp - 1)) if rows.any() else rows


def mtp_stage(table: Table) -> Ints:
    """The stage that holds the multi-token-prediction layers: the loss's, unless a layout says so (n,)."""
    stage = loss_stage(table)
    for code, rows in _layouts(table):
        chunk = layout_of(code).mtp_chunk()
        if chunk is not None:
            turned = _v_shaped(table) & (chunk >= table.pp)
            stage = np.where(rows, np.where(turned, 2 * table.pp - 1 - chunk, chunk % table.pp), stage)
    return np.asarray(stage)


def _computed_ranges(table: Table, stage: Ints, chunk: Ints) -> tuple[Ints, Ints]:
    """The ranges by even share, flags and given counts."""
    chunks = _chunks(table)
    last_stage = table.pp[:, None, None] - 1
    # Under a V stage s has second what stage pp - 1 - s of a loop has: the model's chunk 2*pp - 1 - s.
    turned = _v_shaped(table)
    if turned.any():
        stage = np.where(turned[:, None, None] & (chunk == 1), last_stage - stage, stage)
    is_first, is_last = stage == 0, stage == last_stage
    size = np.where(is_first, chunks.first, np.where(is_last, chunks.last, chunks.middle))
    before = np.where(is_first, 0, chunks.first + (stage - 1) * chunks.middle)
    start = chunk * chunks.per_round + before
    # The embedding, when it counts as a layer, is slot 0; the loss is then the slot past the decoder.
    start = start - table.account_for_embedding_in_pipeline_split[:, None, None]
    layers = table.model.num_layers
    return np.clip(start, 0, layers), np.clip(start + size, 0, layers)


def _middle_stages(table: Table) -> Ints:
    """Stages that share equally what the given counts leave, shape (n,)."""
    given = (table.num_layers_in_first_pipeline_stage > 0).astype(np.int64)
    given = given + (table.num_layers_in_last_pipeline_stage > 0)
    return np.asarray(np.maximum(table.pp - given, 0))


def _chunks(table: Table) -> _Chunks:
    pp, vpp = table.pp[:, None, None], table.vpp[:, None, None]
    first = table.num_layers_in_first_pipeline_stage[:, None, None]
    last = table.num_layers_in_last_pipeline_stage[:, None, None]
    slots = layer_slots(table)[:, None, None]
    middle_stages = _middle_stages(table)[:, None, None]
    middle = np.maximum(slots - first - last, 0) // np.maximum(middle_stages, 1) // vpp
    first_chunk = np.where(first > 0, first // vpp, middle)
    last_chunk = np.where(last > 0, last // vpp, middle)
    per_round = np.where(pp == 1, first_chunk, first_chunk + np.maximum(pp - 2, 0) * middle + last_chunk)
    # One stage is both ends: either count may be the one that was given.
    only = np.where(first > 0, first_chunk, last_chunk)
    return _Chunks(
        first=np.where(pp == 1, only, first_chunk),
        middle=middle,
        last=np.where(pp == 1, only, last_chunk),
        per_round=np.where(pp == 1, only, per_round),
    )


_LARGEST_KEY = 1 << 40
"""Above this, codes are made small again before another column joins them: far from overflow."""


def distinct_layouts(table: Table) -> tuple[Ints, Ints]:
    """One row per distinct layout, and for each row of the table the position of its layout."""
    columns = (
        table.pp,
        table.vpp,
        table.num_layers_in_first_pipeline_stage,
        table.num_layers_in_last_pipeline_stage,
        table.account_for_embedding_in_pipeline_split.astype(np.int64),
        table.account_for_loss_in_pipeline_split.astype(np.int64),
        table.pipeline_model_parallel_layout,
        _v_shaped(table).astype(np.int64),
        _short_of_micro_batches(table).astype(np.int64),
    )
    key, size = np.zeros(len(table), dtype=np.int64), 1
    for column in columns:
        low, span = int(column.min()), int(column.max() - column.min()) + 1
        if size * span > _LARGEST_KEY:
            key, size = np.unique(key, return_inverse=True)[1].reshape(-1), len(table)
        key, size = key * span + (column - low), size * span
    _, rows, inverse = np.unique(key, return_index=True, return_inverse=True)
    return np.asarray(rows, dtype=np.int64), np.asarray(inverse.reshape(-1), dtype=np.int64)


def _refine(key: Ints, column: Ints) -> Ints:
    """Small codes, equal exactly where both ``key`` and ``column`` are equal (any common shape)."""
    low, high = int(column.min()), int(column.max())
    if low == high:
        return key
    combined = key * (high - low + 1) + (column - low)
    _, codes = np.unique(combined, return_inverse=True)
    return np.asarray(codes.reshape(key.shape), dtype=np.int64)


def _stage_kinds(table: Table, stages: Ints) -> Ints:
    """Codes of shape (n, S), equal within a row where two stages are alike."""
    model = table.model
    period = _period(model)
    kinds = np.where(stages == 0, 1, 0) + np.where(stages == loss_stage(table)[:, None], 2, 0)
    if model.mtp_num_layers:
        kinds = kinds + np.where(stages == mtp_stage(table)[:, None], 4, 0)
    starts, ends = layer_ranges(table, stages)
    for chunk in range(starts.shape[2]):
        start, end = starts[..., chunk], ends[..., chunk]
        size = end - start
        dense = np.clip(model.num_dense_layers - start, 0, size) if model.is_moe else np.zeros_like(size)
        # Length, leading dense layers and phase determine the sequence of layer kinds of a chunk.
        for column in (size, dense, np.where(size > 0, start % period, 0)):
            kinds = _refine(kinds, column)
    return kinds


def _period(model: Model) -> int:
    """After how many layers the pattern of MoE and windowed layers repeats (past the dense ones)."""
    experts = model.moe_layer_freq if model.is_moe else 1
    window = model.window_attn_every if model.window_size is not None else 1
    return lcm(experts, window)
