"""What to do about a recipe that does not fit: by how much, what to cut first, the fewest GPUs.

Every lever is a legal recipe that the same formulas judge again; nothing here is a rule of thumb.
Virtual pipeline stages are no lever: interleaving keeps more activations in flight than 1F1B does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shardwise.engine.legality import check
from shardwise.engine.memory.table import memory_table, report
from shardwise.engine.memory.verdict import usable_bytes
from shardwise.engine.recipe import PIPELINE_SPLIT, Recipe
from shardwise.engine.results import DEFAULT_MARGIN, MemoryReport, Verdict
from shardwise.engine.space import default_axes, legal_chunks
from shardwise.engine.table import Table

MOST_GPUS = 16_384
"""Where the search for enough GPUs ends."""
_SEARCHED = ("tp", "pp", "pipeline_split", "cp", "ep", "dp_sharding")


@dataclass(frozen=True, slots=True)
class Lever:
    """One change, and what the fullest stage needs with it."""

    changes: dict[str, Any]
    peak_bytes: int
    saved_bytes: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class FewestGpus:
    """The smallest cluster of the same GPUs that holds the model, with the recipe's own other choices."""

    gpus: int
    changes: dict[str, Any]
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Advice:
    """What would make a recipe fit, the most bytes first."""

    over_bytes: int
    """How far the peak is above what may be filled (capacity less margin); 0 when it is not."""
    largest_item: str
    """Item of the fullest stage to cut first."""
    levers: tuple[Lever, ...]
    fewest_gpus: FewestGpus | None
    """None when ``MOST_GPUS`` are not enough, or when the recipe fits as it is."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def advise(recipe: Recipe, margin: float = DEFAULT_MARGIN) -> Advice:
    """Advice on one legal recipe. Without a shortage the levers are still told, the GPUs are not searched."""
    now = report(recipe)
    usable = usable_bytes(now.capacity_bytes, margin)
    over = max(int(np.ceil(now.peak_bytes - usable)), 0)
    items = now.fullest.items
    levers = sorted(_levers(recipe, now), key=lambda lever: -lever.saved_bytes)
    return Advice(
        over_bytes=over,
        largest_item=max(items, key=lambda name: items[name]),
        levers=tuple(levers),
        fewest_gpus=fewest_gpus(recipe, margin) if over else None,
    )


def fewest_gpus(recipe: Recipe, margin: float = DEFAULT_MARGIN) -> FewestGpus | None:
    """The fewest GPUs, in powers of two, on which tensor, pipeline, context and expert parallelism and
    sharding of the optimizer make the recipe fit; the global batch grows where a replica each needs it."""
    node, count = recipe.cluster.gpus_per_node, 1
    while count <= MOST_GPUS:
        if count < node or count % node == 0:
            found = _fitting(recipe, max(count // node, 1), min(count, node), margin)
            if found is not None:
                return found
        count *= 2
    return None


def _fitting(recipe: Recipe, nodes: int, per_node: int, margin: float) -> FewestGpus | None:
    world = nodes * per_node
    # A multiple of every data parallel size, near the recipe's own.
    batch = recipe.mbs * world * max(round(recipe.gbs / (recipe.mbs * world)), 1)
    plain = {
        **dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "etp"), 1),
        **{name: Recipe.model_fields[name].default for name in PIPELINE_SPLIT},
        **dict.fromkeys(("sequence_parallel", "tp_comm_overlap", "overlap_moe_expert_parallel_comm"), False),
        "dp_shard_size": None,
        "gbs": batch,
    }
    cluster = recipe.cluster.with_(num_nodes=nodes, gpus_per_node=per_node)
    base = recipe.with_(cluster=cluster, **plain)
    best: tuple[tuple[int, float], Table, int] | None = None
    for part in legal_chunks(base, default_axes(base, names=_SEARCHED)):
        peaks = memory_table(part).peak_bytes
        fitting = np.flatnonzero(peaks <= usable_bytes(cluster.gpu.memory_bytes, margin))
        if not len(fitting):
            continue
        # The most replicas: least of the model's own communication.
        row = int(fitting[np.lexsort((peaks[fitting], -part.dp[fitting]))[0]])
        rank = (-int(part.dp[row]), float(peaks[row]))
        if best is None or rank < best[0]:
            best = (rank, part, row)
    if best is None:
        return None
    (_, peak), part, row = best
    chosen = part.recipe(row)
    names = ("tp", "pp", *PIPELINE_SPLIT, "cp", "ep", "etp", "dp_sharding", "gbs")
    changes = {
        name: getattr(chosen, name) for name in names if getattr(chosen, name) != getattr(recipe, name)
    }
    return FewestGpus(world, changes, int(peak))


def _levers(recipe: Recipe, now: MemoryReport) -> Iterator[Lever]:
    for changes in _changes(recipe):
        changed = recipe.with_(**changes)
        if check(changed):
            continue
        then = report(changed)
        saved = now.peak_bytes - then.peak_bytes
        if saved > 0:
            yield Lever(changes, then.peak_bytes, saved, then.verdict)


def _changes(r: Recipe) -> Iterator[dict[str, Any]]:
    """One step along each way of saving memory."""
    if r.mbs > 1 and r.mbs % 2 == 0:
        yield {"mbs": r.mbs // 2}
    wider: dict[str, Any] = {"tp": r.tp * 2, "sequence_parallel": True}
    yield {**wider, "etp": r.tp * 2} if r.model.is_moe and r.etp == r.tp > 1 else wider
    split = r.num_layers_in_first_pipeline_stage or r.num_layers_in_last_pipeline_stage
    if not split:
        yield {"pp": r.pp * 2}
    yield {"cp": r.cp * 2}
    if r.model.is_moe:
        yield {"ep": r.ep * 2}
    none: dict[str, Any] = {"recompute_method": None, "recompute_num_layers": None, "recompute_modules": ()}
    if r.recompute != "full":
        yield {**none, "recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if r.recompute == "none":
        for module in ("layernorm", "moe_act", "mlp", "moe", "mla_up_proj", "core_attn"):
            yield {**none, "recompute": "selective", "recompute_modules": (module,)}
    sharding = ["none", "zero1", "fsdp"]
    if r.dp_sharding in sharding[:2]:
        yield {"dp_sharding": sharding[sharding.index(r.dp_sharding) + 1]}
    if not r.cross_entropy_fusion:
        yield {"cross_entropy_fusion": True, "cross_entropy_fusion_impl": "te"}
    if r.main_grads_dtype == "fp32":
        yield {"main_grads_dtype": "bf16"}
    if r.optimizer_state_dtype == "fp32":
        yield {"optimizer_state_dtype": "bf16"}
    if r.optimizer_offload_fraction < 1:
        yield {"optimizer_offload_fraction": 1.0}
    if not r.expandable_segments:
        yield {"expandable_segments": True}
