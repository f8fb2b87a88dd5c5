"""Measured memory beside the formulas' (``shardwise memory --measure``); torch is imported then only."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from typing import Any, Literal

from shardwise.engine.errors import ConfigError, UnsupportedError
from shardwise.engine.memory.table import report
from shardwise.engine.recipe import Recipe

Mode = Literal["fake"]
MODES: tuple[str, ...] = Mode.__args__  # type: ignore[attr-defined]

_NEEDED = {"megatron-core": ("torch", "megatron.core")}
"""Framework -> packages whose modules run."""
_EXTRA = "pip install 'shardwise[oracles]'"


def measured(recipe: Recipe, mode: str, stage: int | None = None) -> dict[str, Any]:
    """What the framework's modules hold, per stage and item, beside the formulas, as JSON.

    ``stage``: by default the first, the last and the fullest. The recipe is legal.

    Raises:
        ConfigError: an unknown mode or stage, a package or a GPU that is missing, or what the modules here
            cannot stand for.
    """
    if mode not in MODES:
        raise ConfigError(f"measure = {mode!r}: allowed are {', '.join(MODES)}", field="measure")
    if stage is not None and not 0 <= stage < recipe.pp:
        raise ConfigError(f"stage = {stage}: must be in 0 .. {recipe.pp - 1} (pp={recipe.pp})", field="stage")
    refuse(recipe)
    for package in _NEEDED[recipe.framework]:
        if not _installed(package):
            raise ConfigError(
                f"measure = {mode!r}: runs {recipe.framework}'s modules; {package} is missing: {_EXTRA}",
                field="measure",
            )
    formula = report(recipe)
    stages = [stage] if stage is not None else sorted({0, recipe.pp - 1, formula.peak_stage})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("megatron").setLevel(logging.ERROR)
        from shardwise.engine.measure.memory import measure_fake

        found = [measure_fake(recipe, at).beside(formula.stages[at]) for at in stages]
    return {"mode": mode, "stages": found}


def refuse(recipe: Recipe) -> None:
    """Raise :class:`UnsupportedError` for what the modules here cannot stand for."""
    r = recipe
    for field, value, allowed, fine in (
        ("framework", r.framework, "megatron-core", r.framework == "megatron-core"),
        ("precision", r.precision, "bf16", r.precision == "bf16"),
        ("dp_sharding", r.dp_sharding, "none, zero1", r.dp_sharding in ("none", "zero1")),
        ("optimizer", r.optimizer, "adam", r.optimizer == "adam"),
        ("main_params_dtype", r.main_params_dtype, "fp32", r.main_params_dtype == "fp32"),
        ("optimizer_state_dtype", r.optimizer_state_dtype, "fp32", r.optimizer_state_dtype == "fp32"),
        (
            "optimizer_offload_fraction",
            r.optimizer_offload_fraction,
            "0",
            r.optimizer_offload_fraction == 0.0,
        ),
        ("norm_fusion", r.norm_fusion, "true", r.norm_fusion),
        ("cuda_graphs", r.cuda_graphs, "false", not r.cuda_graphs),
        (
            "cross_entropy_fusion_impl",
            r.cross_entropy_fusion_impl,
            "native",
            not r.cross_entropy_fusion or r.cross_entropy_fusion_impl == "native",
        ),
        ("cp", r.cp, "1 (Megatron's own attention does not split a sequence)", r.cp == 1),
        (
            "overlap_moe_expert_parallel_comm",
            r.overlap_moe_expert_parallel_comm,
            "false",
            not r.overlap_moe_expert_parallel_comm,
        ),
        (
            "tp",
            r.tp,
            "1 under multi-latent attention (Megatron's own layers split what Transformer Engine repeats)",
            r.tp == 1 or not r.model.multi_latent_attention,
        ),
        ("mtp_num_layers", r.model.mtp_num_layers, "0", r.model.mtp_num_layers == 0),
        ("attention_sink", r.model.attention_sink, "false", not r.model.attention_sink),
    ):
        if not fine:
            shown = str(value).lower() if isinstance(value, bool) else value
            raise UnsupportedError(f"{field} = {shown}: measuring allows {allowed}", field=field)


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
