"""What activation recomputation can cover."""

from __future__ import annotations

import numpy as np

from shardwise.engine.legality.rule import Fix, Rule, everywhere
from shardwise.engine.legality.suggest import change
from shardwise.engine.model import Model
from shardwise.engine.pipeline_layout import chunk_layers
from shardwise.engine.recipe import PIPELINE_SPLIT, RECOMPUTE_MODULES, Recipe
from shardwise.engine.table import Bools, Ints, Table


def missing_modules(model: Model) -> dict[str, str]:
    """Modules that ``model`` has none of, each with what it would need."""
    missing: dict[str, str] = {}
    if not model.is_moe:
        missing |= {"moe": "a MoE model", "moe_act": "a MoE model"}
    if not model.is_moe or not model.moe_shared_expert_intermediate_size:
        missing["shared_experts"] = "a MoE model with shared experts"
    if not model.multi_latent_attention:
        missing["mla_up_proj"] = "multi-latent attention"
    return missing


def _modules(table: Table) -> Bools:
    broken = everywhere(table, False)
    for module in missing_modules(table.model):
        broken |= table.recompute_module(module)
    return broken


def _explain_modules(r: Recipe) -> Fix:
    missing = missing_modules(r.model)
    word = next(module for module in r.recompute_modules if module in missing)
    allowed = [module for module in RECOMPUTE_MODULES if module not in missing]
    what = (
        f"recompute_modules={word} needs {missing[word]}; {r.model.name} can recompute {', '.join(allowed)}"
    )
    left = tuple(module for module in r.recompute_modules if module not in missing)
    return change(what, recompute_modules=left or ("core_attn",))


def _delayed(table: Table) -> Bools:
    modules = table.recompute_module("moe_act") | table.recompute_module("layernorm")
    return np.asarray(table.is_word("precision", "fp8-delayed") & modules)


def _explain_delayed(r: Recipe) -> Fix:
    what = "recompute_modules moe_act and layernorm exclude precision=fp8-delayed"
    return change(what, precision="fp8-tensorwise")


def _unit(table: Table) -> Bools:
    uniform = table.is_word("recompute", "full") & table.is_word("recompute_method", "uniform")
    return np.asarray(uniform & (table.recompute_num_layers < 1))


def _explain_unit(r: Recipe) -> Fix:
    what = f"recompute_method=uniform needs recompute_num_layers >= 1, not {r.recompute_num_layers}"
    return change(what, recompute_num_layers=1)


def _stage_layers(table: Table) -> Ints:
    """Layers of the fullest stage, (n,), an upper bound where chunks differ by the flagged ends."""
    return np.asarray(chunk_layers(table) * table.vpp)


def _block(table: Table) -> Bools:
    block = table.is_word("recompute", "full") & table.is_word("recompute_method", "block")
    if not block.any():  # the layout is the costly part
        return np.asarray(block)
    return np.asarray(block & (table.recompute_num_layers > _stage_layers(table)))


def _explain_block(r: Recipe) -> Fix:
    most = int(_stage_layers(Table.of([r]))[0])
    what = f"recompute_num_layers={r.recompute_num_layers} exceeds the {most} layers of a stage (pp={r.pp})"
    return change(what, recompute_num_layers=most)


def _mtp(table: Table) -> Bools:
    uniform = table.is_word("recompute", "full") & table.is_word("recompute_method", "uniform")
    return np.asarray(uniform & (table.model.mtp_num_layers > 0) & (table.recompute_num_layers > 1))


def _explain_mtp(r: Recipe) -> Fix:
    what = (
        f"recompute_num_layers={r.recompute_num_layers} (uniform) must be 1 "
        f"with mtp_num_layers={r.model.mtp_num_layers}"
    )
    return change(what, recompute_num_layers=1)


_CONFIG = "megatron/core/transformer/transformer_config.py"
_FULL = ("recompute_num_layers", "recompute", "recompute_method")


def _offload(table: Table) -> Bools:
    layers = table.cpu_offloading_num_layers
    able = table.is_word("framework", "megatron-core") & table.is_word(
        "transformer_impl", "transformer_engine"
    )
    alone = (table.pp == 1) & table.is_word("recompute", "none")
    return np.asarray((layers > 0) & ~(able & alone & (layers < table.model.num_layers)))


def _explain_offload(r: Recipe) -> Fix:
    what = (
        f"cpu_offloading_num_layers={r.cpu_offloading_num_layers} needs Transformer Engine's layers, pp=1, "
        f"recompute=none and fewer layers than num_layers={r.model.num_layers}, not transformer_impl="
        f"{r.transformer_impl}, framework={r.framework}, pp={r.pp}, recompute={r.recompute}"
    )
    return change(what, cpu_offloading_num_layers=0)


RULES = (
    Rule(
        "recompute-modules",
        f"MC-102 {_CONFIG}",
        ("recompute_modules", "recompute"),
        _modules,
        _explain_modules,
    ),
    Rule(
        "recompute-delayed-scaling",
        f"MC-102 {_CONFIG}",
        ("precision", "recompute_modules", "recompute"),
        _delayed,
        _explain_delayed,
    ),
    Rule("recompute-unit", f"MC-100 {_CONFIG}", _FULL, _unit, _explain_unit),
    # The framework documents this bound without enforcing it; past it the number has no meaning.
    Rule(
        "recompute-block",
        f"MC-101 {_CONFIG}",
        (
            *_FULL,
            "pp",
            "vpp",
            *PIPELINE_SPLIT,
        ),
        _block,
        _explain_block,
    ),
    Rule(
        "activation-offload",
        f"MC-104 {_CONFIG}",
        ("cpu_offloading_num_layers", "framework", "transformer_impl", "pp", "recompute"),
        _offload,
        _explain_offload,
    ),
    Rule(
        "recompute-mtp",
        "MC-72 megatron/core/transformer/multi_token_prediction.py",
        _FULL,
        _mtp,
        _explain_mtp,
    ),
)
