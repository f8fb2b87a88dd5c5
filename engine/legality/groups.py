"""The process groups must tile the world."""

from __future__ import annotations

import numpy as np

from shardwise.engine.legality.rule import Fix, Rule, divisors
from shardwise.engine.legality.suggest import nearest
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Bools, Table


def _world_size(table: Table) -> Bools:
    return np.asarray(table.cluster.world_size % (table.tp * table.pp * table.cp) != 0)


def _explain_world_size(r: Recipe) -> Fix:
    sizes = divisors(r.world_size)
    what = f"tp*pp*cp = {r.tp}*{r.pp}*{r.cp} = {r.tp * r.pp * r.cp} does not divide the {r.world_size} GPUs"
    return nearest(what, _world_size, r, {"tp": sizes, "pp": sizes, "cp": sizes})


def _expert_grid(table: Table) -> Bools:
    return np.asarray(table.cluster.world_size % (table.etp * table.ep * table.pp) != 0)


def _explain_expert_grid(r: Recipe) -> Fix:
    sizes = divisors(r.world_size)
    experts = [e for e in sizes if r.model.num_experts is None or r.model.num_experts % e == 0]
    product = r.etp * r.ep * r.pp
    what = f"etp*ep*pp = {r.etp}*{r.ep}*{r.pp} = {product} does not divide the {r.world_size} GPUs"
    return nearest(what, _expert_grid, r, {"ep": experts, "etp": sizes, "pp": sizes})


RULES = (
    Rule(
        "world-size",
        "MC-01 megatron/core/parallel_state.py",
        ("tp", "pp", "cp"),
        _world_size,
        _explain_world_size,
    ),
    # The expert grid folds over all ranks of a stage: neither tp nor cp nor dp appear in it.
    Rule(
        "expert-world-size",
        "MC-02 megatron/core/parallel_state.py",
        ("ep", "etp", "pp"),
        _expert_grid,
        _explain_expert_grid,
    ),
)
