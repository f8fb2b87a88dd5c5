"""How layers and micro-batches must split over stages and virtual stages."""

from __future__ import annotations

import numpy as np

from shardwise.engine.layout_string import PipelineLayout, balanced_layout, layout_of, parse_layout
from shardwise.engine.legality.rule import Fix, Rule, batch_divides, common_divisors, divisors
from shardwise.engine.legality.suggest import change, multiples, nearest
from shardwise.engine.pipeline_layout import layer_slots, split_options
from shardwise.engine.recipe import V_SHAPED, Recipe
from shardwise.engine.table import Bools, Table

_FIRST, _LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
_EMBEDDING = "account_for_embedding_in_pipeline_split"
_LOSS = "account_for_loss_in_pipeline_split"
_LAYOUT = "pipeline_model_parallel_layout"


def _given(table: Table) -> Bools:
    first = table.num_layers_in_first_pipeline_stage > 0
    return np.asarray(first | (table.num_layers_in_last_pipeline_stage > 0))


def _laid_out(table: Table) -> Bools:
    return np.asarray(table.pipeline_model_parallel_layout > 0)


def _even(table: Table) -> Bools:
    return np.asarray(~_given(table) & ~_laid_out(table) & (layer_slots(table) % table.pp != 0))


def _explain_even(r: Recipe) -> Fix:
    layers = r.model.num_layers
    flags = r.account_for_embedding_in_pipeline_split + r.account_for_loss_in_pipeline_split
    counted = f"num_layers={layers}" + (f" + {flags} (embedding, loss)" if flags else "")
    what = f"pp={r.pp} does not divide {counted}"
    message, changes = nearest(what, _even, r, {"pp": common_divisors(layers + flags, r.world_size)})
    splits = split_options(layers, r.pp, r.vpp) or split_options(layers, r.pp)
    if changes.get("pp", 1) * 2 < r.pp and splits:
        # Far from any divisor (61 layers over 16 stages): another split is the smaller change.
        return change(what, **{n: value for n, value in splits[0].items() if value != getattr(r, n)})
    return message, changes


def _uneven(table: Table) -> Bools:
    first, last = table.num_layers_in_first_pipeline_stage, table.num_layers_in_last_pipeline_stage
    layers = table.model.num_layers - first - last
    stages = table.pp - (first > 0) - (last > 0)
    share = np.maximum(layers, 0) // np.maximum(stages, 1)
    broken = (layers < 0) | (stages < 0) | ((stages == 0) != (layers == 0))
    broken |= (stages > 0) & (share * stages != layers)
    broken |= (first % table.vpp != 0) | (last % table.vpp != 0) | (share % table.vpp != 0)
    # get_transformer_layer_offset divides by the number of middle stages when interleaving.
    broken |= (stages == 0) & (table.vpp > 1)
    return np.asarray(_given(table) & broken)


def _explain_uneven(r: Recipe) -> Fix:
    first, last = r.num_layers_in_first_pipeline_stage, r.num_layers_in_last_pipeline_stage
    rest = r.model.num_layers - (first or 0) - (last or 0)
    stages = r.pp - (first is not None) - (last is not None)
    given = ", ".join(f"{name}={n}" for name, n in ((_FIRST, first), (_LAST, last)) if n is not None)
    each = f", of which vpp={r.vpp} needs at least one, and counts that it divides" if r.vpp > 1 else ""
    what = f"{given} leaves {rest} of {r.model.num_layers} layers for {stages} of pp={r.pp} stages{each}"
    counts = [*range(r.vpp, r.model.num_layers + 1, r.vpp)]
    candidates = {name: counts for name, n in ((_FIRST, first), (_LAST, last)) if n is not None}
    message, changes = nearest(what, _uneven, r, candidates)
    return (message, changes) if changes else change(what, **dict.fromkeys(candidates))


def _flags_with_counts(table: Table) -> Bools:
    flags = table.account_for_embedding_in_pipeline_split | table.account_for_loss_in_pipeline_split
    return np.asarray(flags & _given(table))


def _explain_flags_with_counts(r: Recipe) -> Fix:
    what = f"{_EMBEDDING} and {_LOSS} exclude {_FIRST} and {_LAST}"
    return change(what, **{_EMBEDDING: False, _LOSS: False})


def _virtual(table: Table) -> Bools:
    slots = layer_slots(table)
    uneven = (slots // table.pp) % table.vpp != 0
    return np.asarray(~_given(table) & ~_laid_out(table) & (slots % table.pp == 0) & uneven)


def _explain_virtual(r: Recipe) -> Fix:
    flags = r.account_for_embedding_in_pipeline_split + r.account_for_loss_in_pipeline_split
    layers = (r.model.num_layers + flags) // r.pp
    what = f"vpp={r.vpp} does not divide the {layers} layers of a stage"
    return nearest(what, _virtual, r, {"vpp": divisors(layers)})


def _layout(table: Table) -> Bools:
    broken = np.zeros(len(table), dtype=np.bool_)
    flags = table.account_for_embedding_in_pipeline_split | table.account_for_loss_in_pipeline_split
    for code in np.unique(table.pipeline_model_parallel_layout):
        if code:
            rows = table.pipeline_model_parallel_layout == code
            layout = layout_of(int(code))
            pipeline = (table.pp * table.vpp != len(layout.chunks)) | flags | _given(table)
            broken |= rows & (pipeline | _misplaced(layout, table))
    return broken


def _misplaced(layout: PipelineLayout, table: Table) -> Bools:
    """Whether the layout is no legal one for the model, in pipelines of the rows' sizes."""
    model, chunks = table.model, layout.chunks
    flat, at = "".join(chunks), layout.mtp_chunk()
    wrong = not flat.startswith("E") or not flat.endswith("L") or flat.count("E") != 1 or flat.count("L") != 1
    wrong |= layout.count("t") != model.num_layers or layout.count("m") != model.mtp_num_layers
    if at is None:
        return np.full(len(table), wrong)
    wrong |= "t" in flat[flat.index("m") :] or chunks[at].count("m") != model.mtp_num_layers
    # In the last chunk of its rank.
    return np.asarray(wrong | (at < len(chunks) - table.pp))


def _explain_layout(r: Recipe) -> Fix:
    layout = parse_layout(r.pipeline_model_parallel_layout or "")
    model, t, m = r.model, layout.count("t"), layout.count("m")
    what = (
        f"{_LAYOUT}={r.pipeline_model_parallel_layout} has {len(layout.chunks)} chunks, {t} layers and {m} "
        f"of multi-token prediction; it needs pp*vpp={r.pp * r.vpp} chunks, {model.num_layers} and "
        f"{model.mtp_num_layers}, E first, L last, m behind all t in its rank's last chunk, no other split"
    )
    best = balanced_layout(model.num_layers, model.mtp_num_layers, r.pp, r.vpp)
    plain = {_FIRST: None, _LAST: None, _EMBEDDING: False, _LOSS: False}
    changes = {**{name: v for name, v in plain.items() if getattr(r, name) != v}, _LAYOUT: best}
    return change(what, **changes)


def _virtual_alone(table: Table) -> Bools:
    return np.asarray((table.vpp > 1) & (table.pp == 1))


def _explain_virtual_alone(r: Recipe) -> Fix:
    return change(f"vpp={r.vpp} needs pp > 1, not pp=1", vpp=1)


def _virtual_blocking(table: Table) -> Bools:
    return np.asarray((table.vpp > 1) & (table.pp == 2) & ~table.overlap_p2p_comm)


def _explain_virtual_blocking(r: Recipe) -> Fix:
    return change(f"vpp={r.vpp} with overlap_p2p_comm=false needs pp > 2, not pp=2", overlap_p2p_comm=True)


def _interleaved(table: Table) -> Bools:
    # With the default group of pp micro-batches, "m % N == 0 or m % N >= pp" leaves only divisibility.
    rounds = (table.vpp > 1) & table.is_word("pp_schedule", "1f1b")
    return np.asarray(rounds & batch_divides(table) & (table.num_microbatches % table.pp != 0))


def _explain_interleaved(r: Recipe) -> Fix:
    what = (
        f"interleaving (vpp={r.vpp}) needs a multiple of pp={r.pp} micro-batches, "
        f"not gbs/(mbs*dp) = {r.num_microbatches}"
    )
    unit = r.mbs * r.dp * r.pp
    candidates = {"gbs": multiples(unit, r.gbs), "mbs": common_divisors(r.gbs, r.gbs // r.dp), "vpp": [1]}
    return nearest(what, lambda table: _interleaved(table) | ~batch_divides(table), r, candidates)


def _schedule(table: Table) -> Bools:
    m, pp, vpp = table.num_microbatches, table.pp, table.vpp
    gpipe = table.is_word("pp_schedule", "gpipe") & (vpp > 1)
    turn = table.is_word("pp_schedule", *V_SHAPED) & ((vpp != 2) | (pp == 1))
    few = table.is_word("pp_schedule", "dualpipev") & (m < 2 * pp)
    rounds = table.is_word("pp_schedule", "zb1p") & (m % np.maximum(m // pp, 1) != 0)
    return np.asarray(gpipe | turn | (batch_divides(table) & (few | rounds)))


def _explain_schedule(r: Recipe) -> Fix:
    needs = {
        "gpipe": "one chunk a rank",
        "zbv": "two chunks a rank and pp > 1",
        "dualpipev": f"two chunks a rank, pp > 1 and at least 2*pp = {2 * r.pp} micro-batches",
        "zb1p": "a multiple of its max(1, m // pp) rounds as m micro-batches",
    }[r.pp_schedule]
    what = f"pp_schedule={r.pp_schedule} needs {needs}, not vpp={r.vpp}, pp={r.pp}, m={r.num_microbatches}"
    return change(what, pp_schedule="1f1b")


def _schedule_of_framework(table: Table) -> Bools:
    split = table.is_word("pp_schedule", "zb1p", *V_SHAPED)
    return np.asarray(split & table.is_word("framework", "megatron-core", "nanotron", "deepspeed"))


def _explain_schedule_of_framework(r: Recipe) -> Fix:
    what = f"pp_schedule={r.pp_schedule} splits backward passes, which framework={r.framework} does not"
    return change(what, pp_schedule="1f1b")


_SPLIT_FIELDS = ("pp", _FIRST, _LAST, _EMBEDDING, _LOSS, _LAYOUT)
_CONFIG = "megatron/core/transformer/transformer_config.py"

RULES = (
    Rule("pipeline-layers", f"MC-50 {_CONFIG}", _SPLIT_FIELDS, _even, _explain_even),
    Rule(
        "pipeline-uneven-split",
        f"MC-55 {_CONFIG}",
        (_FIRST, _LAST, "pp", "vpp"),
        _uneven,
        _explain_uneven,
    ),
    Rule(
        "pipeline-split-options",
        f"MC-55 {_CONFIG}",
        (_EMBEDDING, _LOSS, _FIRST, _LAST),
        _flags_with_counts,
        _explain_flags_with_counts,
    ),
    Rule(
        "pipeline-layout",
        "MC-56 megatron/core/transformer/pipeline_parallel_layer_layout.py",
        (_LAYOUT, "vpp", *_SPLIT_FIELDS[:-1]),
        _layout,
        _explain_layout,
    ),
    Rule("virtual-stages", f"MC-52, MC-53 {_CONFIG}", ("vpp", *_SPLIT_FIELDS), _virtual, _explain_virtual),
    Rule(
        "virtual-stages-pipeline",
        "MC-54 megatron/core/parallel_state.py",
        ("vpp", "pp"),
        _virtual_alone,
        _explain_virtual_alone,
    ),
    Rule(
        "virtual-stages-overlap",
        "MC-54 megatron/training/arguments.py",
        ("overlap_p2p_comm", "vpp", "pp"),
        _virtual_blocking,
        _explain_virtual_blocking,
    ),
    Rule(
        "interleaved-micro-batches",
        "MC-58 megatron/core/pipeline_parallel/schedules.py",
        ("gbs", "mbs", "vpp", "pp", "tp", "cp"),
        _interleaved,
        _explain_interleaved,
    ),
    Rule(
        "schedule",
        "TT-11 torchtitan/distributed/pipeline_parallel.py",
        ("pp_schedule", "vpp", "pp", "gbs", "mbs", "tp", "cp"),
        _schedule,
        _explain_schedule,
        framework="torchtitan",
    ),
    Rule(
        "schedule-framework",
        "megatron/core/pipeline_parallel/schedules.py",
        ("pp_schedule", "framework"),
        _schedule_of_framework,
        _explain_schedule_of_framework,
    ),
)
