"""The recipe that gains are counted from: the user's own, a published one, or a plain constructed one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.agent.references import reference_for
from shardwise.agent.request import TuneRequest
from shardwise.agent.trial import Fields, fields_of, recipe_of, words
from shardwise.engine import legality
from shardwise.engine.errors import ConfigError
from shardwise.engine.recipe import RECOMPUTE_DETAILS, Recipe
from shardwise.engine.recipe_io import DEFAULT_SEQ_LEN
from shardwise.engine.table import Table
from shardwise.memory_filter import filter_table

SEQUENCES_PER_GPU = 4
"""Sequences of the default global batch per GPU: enough micro-batches to fill a pipeline, and every power of
two up to it divides evenly. It is the published Mixtral reference's ratio (128 on 32 GPUs)."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A recipe with where it comes from."""

    fields: Fields
    origin: str
    """``user``, ``reference`` or ``constructed``."""
    source: str
    """One line for people."""


def choose_baseline(request: TuneRequest) -> Baseline:
    """The baseline of a request: own recipe, else published reference, else constructed.

    Fixed fields, ``gbs`` and ``seq_len`` of the request win over all three. Raises :class:`ConfigError` when
    the user's own recipe, or every recipe with the fixed fields, is illegal.
    """
    if request.recipe:
        fields = _fields(request, request.recipe)
        broken = legality.check(recipe_of(request, fields))
        if broken:
            raise ConfigError(f"the given recipe is illegal: {broken[0].message}", field=broken[0].fields[0])
        return Baseline(fields, "user", "the given recipe")
    reference = reference_for(request.model, request.cluster)
    if reference is not None:
        fields = _fields(request, reference.recipe)
        if not legality.check(recipe_of(request, fields)):
            return Baseline(fields, "reference", f"{reference.name}: {reference.source}")
    return construct(request, reference.recipe if reference else {})


def construct(request: TuneRequest, start: Fields) -> Baseline:
    """A plain legal recipe, the least split one that fits.

    Candidates have micro batch size 1, no interleaving, a short last stage where the layers do not divide,
    and recomputation only when nothing fits without.
    Among those that fit, the smallest product of tensor, context and pipeline sizes wins, where experts that
    leave the scale-up domain count as a split over as many domains; then the smallest tensor size, then the
    most expert parallelism inside the domain. When nothing fits, the one that needs least memory is returned.
    ``start`` gives all other fields (empty: their defaults).
    """
    base = recipe_of(request, _fields(request, {**start, "vpp": 1}))
    least: tuple[float, Fields] | None = None
    for recompute in _free(request, "recompute", ["none", "full"], base.recompute):
        table = _plain_table(request, base, recompute)
        if table is None:
            continue
        kept = filter_table(table, request.margin)
        split = table.tp * table.cp * table.pp * _domains(table)
        order = np.lexsort((table.etp, -_near_domain(table), table.cp, table.tp, split))
        for row in order:
            if kept.keep[row]:
                fields = fields_of(table.recipe(int(row)))
                return Baseline(fields, "constructed", "the least split plain recipe that fits")
        lowest = int(np.argmin(kept.peak_bytes))
        if least is None or kept.peak_bytes[lowest] < least[0]:
            least = (float(kept.peak_bytes[lowest]), fields_of(table.recipe(lowest)))
    if least is None:
        broken = legality.check(base)
        reason = broken[0].message if broken else "no combination of parallel sizes divides the cluster"
        held = f" with {words(request.fixed)}" if request.fixed else ""
        raise ConfigError(
            f"no legal recipe{held} on {request.cluster.world_size} GPUs: {reason}",
            field=next(iter(request.fixed), "cluster"),
        )
    return Baseline(least[1], "constructed", "the plain recipe that needs least memory (none fits)")


def _fields(request: TuneRequest, recipe: dict[str, Any]) -> Fields:
    """``recipe`` completed by batch and sequence defaults, with what the request fixes applied."""
    context = request.model.max_position_embeddings
    fields: dict[str, Any] = {
        "gbs": SEQUENCES_PER_GPU * request.cluster.world_size,
        "seq_len": min(context, DEFAULT_SEQ_LEN),
        **recipe,
        **request.fixed,
    }
    if request.fixed.get("recompute", fields.get("recompute")) != recipe.get("recompute"):
        for name in RECOMPUTE_DETAILS:
            if name not in request.fixed:
                fields.pop(name, None)
    moved = "tp" in request.fixed and request.fixed["tp"] != recipe.get("tp")
    if moved and "sequence_parallel" not in request.fixed:
        fields.pop("sequence_parallel", None)
    own = {"gbs": request.gbs, "seq_len": request.seq_len}
    fields |= {name: value for name, value in own.items() if value is not None}
    return fields_of(recipe_of(request, fields))


def _plain_table(request: TuneRequest, base: Recipe, recompute: str) -> Table | None:
    """Legal plain recipes over the sizes that are free; None when there is none."""
    powers = [1 << i for i in range(request.cluster.world_size.bit_length())]
    domain = request.cluster.scale_up_size
    experts = request.model.num_experts or 1
    layers = request.model.num_layers
    sizes = {
        "tp": _free(request, "tp", [p for p in powers if p <= domain], base.tp),
        "pp": _free(
            request, "pp", [p for p in range(1, layers + 1) if request.cluster.world_size % p == 0], base.pp
        ),
        "ep": _free(request, "ep", [e for e in range(1, experts + 1) if experts % e == 0], base.ep),
        "mbs": _free(request, "mbs", [1], base.mbs),
        "cp": _free(request, "cp", [p for p in powers if p <= domain], base.cp),
        "etp": _free(request, "etp", [1], base.etp),
    }
    start = recipe_of(request, {**_plain(base), "recompute": recompute, **request.fixed})
    pieces: list[Table] = []
    for last, pps in _pipelines(request, start, sizes["pp"]).items():
        split = start.with_(num_layers_in_last_pipeline_stage=last)
        for parallel in (False, True):
            tps = [tp for tp in sizes["tp"] if (tp > 1) == parallel]
            if not tps:
                continue
            fixed_sp = "sequence_parallel" in request.fixed
            tied = split if fixed_sp else split.with_(sequence_parallel=parallel)
            table = Table.product(tied, {**sizes, "tp": tps, "pp": pps})
            mask = legality.legal_mask(table)
            if mask.any():
                pieces.append(table.take(mask))
    return Table.stacked(pieces) if pieces else None


def _pipelines(request: TuneRequest, start: Recipe, sizes: list[int]) -> dict[int | None, list[int]]:
    """Pipeline sizes by the layers of their last stage: None where all stages have the same.

    Where the layers do not divide, the last stage has what the others, one layer fuller, leave over.
    """
    if start.num_layers_in_last_pipeline_stage is not None or any(map(_splits, request.fixed)):
        return {start.num_layers_in_last_pipeline_stage: sizes}
    layers = request.model.num_layers
    found: dict[int | None, list[int]] = {}
    for pp in sizes:
        last = layers - (pp - 1) * -(-layers // pp)
        if last > 0:
            found.setdefault(None if layers % pp == 0 else last, []).append(pp)
    return found


def _splits(field: str) -> bool:
    return field.startswith(("num_layers_in", "account_for"))


def _plain(base: Recipe) -> Fields:
    """The base without what hangs on sizes that are about to change."""
    tied = ("recompute", "num_layers_in", "account_for", "overlap_moe", "pp_schedule")
    return {name: value for name, value in fields_of(base).items() if not name.startswith(tied)}


def _free(request: TuneRequest, name: str, values: list[Any], fixed: Any) -> list[Any]:
    return [fixed] if name in request.fixed else values


def _domains(table: Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Scale-up domains that the experts of one layer are spread over."""
    return -(-table.ep * table.etp // table.cluster.scale_up_size)


def _near_domain(table: Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Expert parallel size where it stays inside the scale-up domain, 0 where it leaves it."""
    inside = table.ep * table.etp <= table.cluster.scale_up_size
    return np.where(inside, table.ep, 0)
