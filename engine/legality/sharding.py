"""What the data-parallel sharding of weights, gradients and optimizer state asks for."""

from __future__ import annotations

import numpy as np

from shardwise.engine.legality.rule import Fix, Rule, divisors
from shardwise.engine.legality.suggest import change, nearest
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Bools, Table


def _shard(table: Table) -> Bools:
    # dp * cp = world / (tp * pp); the shards of dense state tile it, and so must those of the experts.
    world = table.cluster.world_size
    given = table.is_word("dp_sharding", "hsdp") & (table.dp_shard_size > 0)
    ranks = np.maximum(table.tp * table.pp * table.dp_shard_size, 1)
    broken = world % ranks != 0
    if table.model.is_moe:
        copies = np.maximum(world // ranks, 1)
        experts = table.etp * table.ep * table.pp
        broken |= (world % experts == 0) & ((world // experts) % copies != 0)
    # A tp * pp that does not divide the world has no dp; the rule on the world size says so.
    return np.asarray(given & broken & (world % (table.tp * table.pp) == 0))


def _explain_shard(r: Recipe) -> Fix:
    ranks = r.world_size // (r.tp * r.pp)
    experts = f" and dp*cp/dp_shard_size divide edp={r.edp}" if r.model.is_moe else ""
    what = f"dp_shard_size={r.dp_shard_size} must divide dp*cp={ranks}{experts}"
    return nearest(what, _shard, r, {"dp_shard_size": divisors(ranks)})


def _shard_without_hsdp(table: Table) -> Bools:
    world, part = table.cluster.world_size, table.tp * table.pp * table.dp_shard_size
    return np.asarray(~table.is_word("dp_sharding", "hsdp") & (part != world) & (table.dp_shard_size > 0))


def _explain_shard_without_hsdp(r: Recipe) -> Fix:
    what = f"dp_shard_size={r.dp_shard_size} needs dp_sharding=hsdp, not {r.dp_sharding}"
    return change(what, dp_shard_size=None)


def _param_gather(table: Table) -> Bools:
    # Without sharding there are no parameters to gather, and the switch means nothing.
    sharded = ~table.is_word("dp_sharding", "none")
    return np.asarray(sharded & table.overlap_param_gather & ~table.overlap_grad_reduce)


def _explain_param_gather(r: Recipe) -> Fix:
    what = "overlap_param_gather=true needs overlap_grad_reduce=true"
    return change(what, overlap_param_gather=False)


def _moments(table: Table) -> Bools:
    return np.asarray(~table.is_word("optimizer_state_dtype", "fp32") & ~table.is_word("optimizer", "adam"))


def _explain_moments(r: Recipe) -> Fix:
    what = (
        f"optimizer_state_dtype={r.optimizer_state_dtype} (precision-aware optimizer) needs optimizer=adam, "
        f"not {r.optimizer}"
    )
    return change(what, optimizer_state_dtype="fp32")


def _no_master(table: Table) -> Bools:
    megatron = table.is_word("framework", "megatron-core")
    return np.asarray(megatron & table.is_word("main_params_dtype", "bf16"))


def _explain_no_master(r: Recipe) -> Fix:
    return change(
        "main_params_dtype=bf16: megatron-core keeps FP32 or FP16 master weights", main_params_dtype="fp32"
    )


def _offload(table: Table) -> Bools:
    possible = table.is_word("optimizer", "adam") & table.is_word("dp_sharding", "zero1", "zero2")
    return np.asarray((table.optimizer_offload_fraction > 0) & ~possible)


def _explain_offload(r: Recipe) -> Fix:
    what = (
        f"optimizer_offload_fraction={r.optimizer_offload_fraction} needs optimizer=adam and the distributed "
        f"optimizer (dp_sharding zero1), not {r.optimizer} with {r.dp_sharding}"
    )
    return change(what, optimizer_offload_fraction=0.0)


RULES = (
    Rule(
        "shard-size",
        "MC-05 megatron/core/parallel_state.py",
        ("dp_shard_size", "dp_sharding", "tp", "pp", "ep", "etp"),
        _shard,
        _explain_shard,
    ),
    Rule(
        "shard-size-hsdp",
        "dp_shard_size says how many ranks share one copy, which only hsdp leaves open",
        ("dp_shard_size", "dp_sharding", "tp", "pp"),
        _shard_without_hsdp,
        _explain_shard_without_hsdp,
        framework="shardwise",
    ),
    Rule(
        "parameter-gather-overlap",
        "MC-110 megatron/training/arguments.py",
        ("overlap_param_gather", "overlap_grad_reduce", "dp_sharding"),
        _param_gather,
        _explain_param_gather,
    ),
    Rule(
        "optimizer-state",
        "MC-108 megatron/core/optimizer/optimizer_config.py",
        ("optimizer_state_dtype", "optimizer"),
        _moments,
        _explain_moments,
    ),
    Rule(
        "master-weights",
        "megatron/core/optimizer/optimizer_config.py: main_params_dtype",
        ("main_params_dtype", "framework"),
        _no_master,
        _explain_no_master,
    ),
    Rule(
        "optimizer-offload",
        "MC-109 megatron/training/arguments.py: optimizer_cpu_offload",
        ("optimizer_offload_fraction", "optimizer", "dp_sharding"),
        _offload,
        _explain_offload,
    ),
)
