"""A case -> the recipe it measured, with what had to be assumed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shardwise.engine import catalog
from shardwise.engine.cases.architecture import case_model
from shardwise.engine.cases.era import software_year
from shardwise.engine.cases.networks import nic_bytes_per_s
from shardwise.engine.cases.options import option_fields
from shardwise.engine.cases.pipeline import split_fields
from shardwise.engine.cases.reading import Case
from shardwise.engine.cases.scope import CannotScoreError, Unscorable, refuse_out_of_scope
from shardwise.engine.cases.spellings import precision, recompute, schedule, sharding
from shardwise.engine.cluster import Cluster
from shardwise.engine.errors import ConfigError
from shardwise.engine.recipe import Recipe

MICROBATCHES_PER_STAGE = 4
"""A pipeline whose global batch is not stated is given four micro-batches per stage: enough that its
bubble is small, as in every published pipelined run."""


@dataclass(frozen=True, slots=True)
class Interpretation:
    """The recipe of a case and the values that its source does not state."""

    recipe: Recipe
    assumptions: tuple[str, ...]


def to_recipe(case: Case) -> Recipe | Unscorable:
    """The recipe of a case, or why there is none. Never raises for bad input."""
    read = interpret(case)
    return read if isinstance(read, Unscorable) else read.recipe


def interpret(case: Case) -> Interpretation | Unscorable:
    """As :func:`to_recipe`, with the assumptions made."""
    assumptions: list[str] = []
    try:
        refuse_out_of_scope(case)
        recipe = _recipe(case, assumptions)
    except CannotScoreError as err:
        return err.unscorable
    except ConfigError as err:
        return Unscorable("error", str(err))
    return Interpretation(recipe, tuple(assumptions))


def _recipe(case: Case, assumptions: list[str]) -> Recipe:
    cluster = _cluster(case, assumptions)
    model = case_model(case, assumptions)
    parallel, world = case.parallel, cluster.world_size
    tp, pp, cp = (_size(case, name, assumptions) for name in ("tp", "pp", "cp"))
    ep = (parallel.ep or 1) if model.is_moe else 1
    stages = schedule(case, model.num_layers, assumptions)
    split, priced_layers = split_fields(case, model, pp, stages["vpp"], assumptions)
    if priced_layers != model.num_layers:
        model = model.with_(num_layers=priced_layers)
    fields: dict[str, Any] = {
        "model": model,
        "cluster": cluster,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        **stages,
        **precision(case, assumptions),
        **split,
        **recompute(
            case.recompute,
            layers=model.num_layers,
            pp=pp,
            vpp=stages["vpp"],
            moe=model.is_moe,
            assumptions=assumptions,
        ),
    }
    dp = max(world // (tp * pp * cp), 1)
    if ep > 1 and parallel.dp is not None and parallel.dp * ep == dp:
        raise CannotScoreError("expert parallel ranks that share one batch (not folded into data parallel)")
    if parallel.dp is not None and parallel.dp != dp:
        assumptions.append(f"dp={dp} from {world} GPUs: the case says {parallel.dp}")
    fields |= sharding(case, dp * cp, cluster.gpus_per_node, assumptions)
    fields["software_year"] = software_year(case, assumptions)
    fields |= option_fields(case, moe=model.is_moe, precision=fields["precision"])
    if model.is_moe:
        fields["etp"] = _expert_tensor(parallel.etp, world, tp, pp, ep)
    if parallel.sequence_parallel is not None:
        fields["sequence_parallel"] = parallel.sequence_parallel and tp > 1
    fields |= _batch(case, dp, pp, assumptions)
    return Recipe.build(fields, where=case.id)


def _size(case: Case, name: str, assumptions: list[str]) -> int:
    stated: int | None = getattr(case.parallel, name)
    if stated is None and name != "cp":
        if case.parallel.dp != case.hardware.gpus:
            raise CannotScoreError(f"{name} is not stated")
        assumptions.append(f"{name}=1: not stated, but dp is every GPU")
    return stated or 1


def _expert_tensor(stated: int | None, world: int, tp: int, pp: int, ep: int) -> int:
    """Stated, else Megatron's default (``tp``), else 1 when the experts would not fit the ranks."""
    if stated:
        return stated
    return tp if world % (tp * ep * pp) == 0 else 1


def _batch(case: Case, dp: int, pp: int, assumptions: list[str]) -> dict[str, Any]:
    batch = case.batch
    seq_len = batch.seq_len or _derived_seq_len(case, assumptions)
    mbs = batch.mbs
    if not mbs:
        mbs = 1
        assumptions.append("mbs=1: not stated")
    gbs = batch.gbs
    if not gbs:
        gbs = mbs * dp * (MICROBATCHES_PER_STAGE * pp if pp > 1 else 1)
        assumptions.append(f"gbs={gbs}: not stated")
    return {"mbs": mbs, "gbs": gbs, "seq_len": seq_len}


def _derived_seq_len(case: Case, assumptions: list[str]) -> int:
    """Tokens per step over sequences per step, where the case gives both rates."""
    measured, gpus, gbs = case.measured, case.hardware.gpus, case.batch.gbs
    if not (measured.tokens_per_s_per_gpu and measured.step_time_s and gpus and gbs):
        raise CannotScoreError("seq_len is not stated")
    seq_len = round(measured.tokens_per_s_per_gpu * gpus * measured.step_time_s / gbs)
    if seq_len < 1:
        raise CannotScoreError("seq_len is not stated, and the rates contradict each other")
    assumptions.append(f"seq_len={seq_len}: from tokens/s and step time")
    return seq_len


def _cluster(case: Case, assumptions: list[str]) -> Cluster:
    hardware = case.hardware
    if not hardware.gpu or "unknown" in hardware.gpu.lower():
        raise CannotScoreError(f"GPU {hardware.gpu!r} is not stated")
    if not hardware.gpus:
        raise CannotScoreError("number of GPUs is not stated")
    node = hardware.gpus_per_node
    if not node:
        node = 4 if hardware.gpu.lower().startswith("gb") else 8
        assumptions.append(f"gpus_per_node={node}: not stated")
    share = nic_bytes_per_s(hardware.interconnect, node)
    if hardware.gpus <= node:
        node = hardware.gpus
    # Equal nodes only: 12 GPUs on nodes of 8 become 3 of 4.
    node = node if hardware.gpus % node == 0 else math.gcd(hardware.gpus, node)
    return _resolved(hardware.gpu, hardware.gpus // node, node, share)


@lru_cache(maxsize=4096)
def _resolved(name: str, nodes: int, per_node: int, share: float | None) -> Cluster:
    try:
        gpu = catalog.gpu(name)
    except ConfigError as err:
        raise CannotScoreError(str(err)) from err
    fields: dict[str, Any] = {"gpu": gpu, "num_nodes": nodes, "gpus_per_node": per_node}
    if share is not None and nodes > 1:
        fields["nic"] = gpu.nic.with_(bandwidth_bytes_per_s=share)
    return Cluster.build(fields, where=name)
