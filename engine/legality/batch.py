"""The global batch must split into whole micro-batches."""

from __future__ import annotations

import numpy as np

from shardwise.engine.legality.rule import Fix, Rule, batch_divides, divisors, world_divides
from shardwise.engine.legality.suggest import multiples, nearest
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Bools, Table


def _batch(table: Table) -> Bools:
    # Without an exact dp there is no batch to split; the rule on the world size says so.
    return np.asarray(world_divides(table) & ~batch_divides(table))


def _explain_batch(r: Recipe) -> Fix:
    unit = r.mbs * r.dp
    what = f"mbs*dp = {r.mbs}*{r.dp} = {unit} does not divide gbs={r.gbs}"
    return nearest(what, _batch, r, {"gbs": multiples(unit, r.gbs), "mbs": divisors(r.gbs)})


RULES = (
    Rule(
        "global-batch-size",
        "MC-10 megatron/core/num_microbatches_calculator.py",
        ("gbs", "mbs", "tp", "pp", "cp"),
        _batch,
        _explain_batch,
    ),
)
