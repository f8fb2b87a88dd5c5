"""What tensor parallelism cuts must have that many equal parts."""

from __future__ import annotations

import numpy as np

from shardwise.engine.legality.rule import Fix, Rule, common_divisors, divisors, everywhere
from shardwise.engine.legality.suggest import nearest
from shardwise.engine.model import Model
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Bools, Table


def _heads(table: Table) -> Bools:
    return np.asarray(table.model.num_attention_heads % table.tp != 0)


def _explain_heads(r: Recipe) -> Fix:
    heads = r.model.num_attention_heads
    what = f"tp={r.tp} does not divide num_attention_heads={heads}"
    return nearest(what, _heads, r, {"tp": common_divisors(heads, r.world_size)})


def _groups(table: Table) -> Bools:
    groups = table.model.num_query_groups
    if table.model.multi_latent_attention:
        return everywhere(table, False)
    return np.asarray((groups % table.tp != 0) & (table.tp % groups != 0))


def _explain_groups(r: Recipe) -> Fix:
    groups = r.model.num_query_groups
    what = f"tp={r.tp} neither divides num_query_groups={groups} nor is a multiple of it"
    return nearest(what, _groups, r, {"tp": divisors(r.world_size)})


def dense_widths(model: Model) -> dict[str, int]:
    """The MLP widths that ``tp`` cuts: of dense layers and of shared experts, where the model has them."""
    widths = {}
    if not all(model.moe_layers):
        widths["ffn_hidden_size"] = model.ffn_hidden_size
    if model.is_moe and model.moe_shared_expert_intermediate_size:
        widths["moe_shared_expert_intermediate_size"] = model.moe_shared_expert_intermediate_size
    return widths


def _ffn(table: Table) -> Bools:
    broken = everywhere(table, False)
    for width in dense_widths(table.model).values():
        broken |= width % table.tp != 0
    return broken


def _explain_ffn(r: Recipe) -> Fix:
    widths = dense_widths(r.model)
    name, width = next((name, width) for name, width in widths.items() if width % r.tp)
    what = f"tp={r.tp} does not divide {name}={width}"
    return nearest(what, _ffn, r, {"tp": common_divisors(r.world_size, *widths.values())})


def _expert_ffn(table: Table) -> Bools:
    width = table.model.moe_ffn_hidden_size if table.model.is_moe else None
    return everywhere(table, False) if width is None else np.asarray(width % table.etp != 0)


def _explain_expert_ffn(r: Recipe) -> Fix:
    width = r.model.moe_ffn_hidden_size or 1
    what = f"etp={r.etp} does not divide moe_ffn_hidden_size={width}"
    return nearest(what, _expert_ffn, r, {"etp": common_divisors(width, r.world_size)})


RULES = (
    Rule(
        "attention-heads",
        "MC-20 megatron/core/transformer/transformer_config.py",
        ("tp",),
        _heads,
        _explain_heads,
    ),
    # More tensor ranks than key/value heads replicate the heads; every count between fits neither way.
    Rule(
        "query-groups",
        "MC-21, MC-22 megatron/core/transformer/attention.py",
        ("tp",),
        _groups,
        _explain_groups,
    ),
    Rule(
        "mlp-width",
        "MC-24 megatron/core/tensor_parallel/layers.py",
        ("tp",),
        _ffn,
        _explain_ffn,
    ),
    Rule(
        "expert-mlp-width",
        "MC-24 megatron/core/tensor_parallel/layers.py",
        ("etp",),
        _expert_ffn,
        _explain_expert_ffn,
    ),
)
