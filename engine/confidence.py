"""How far a projection can be trusted: its 80% interval, and what lies outside of what was calibrated.

The interval is the 10% and 90% quantile of measured over predicted throughput of like cases, each predicted
by a calibration that never saw its kind. Like: dense or MoE, Megatron-Core or another framework; where the
GPU with that precision, or a size, was never measured, by a calibration without the case's whole GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.engine.efficiency import Calibration
from shardwise.engine.recipe import Recipe


def sizes(r: Recipe) -> dict[str, float]:
    """The sizes by which a recipe is near to, or far from, what was measured."""
    tokens = r.mbs * r.seq_len / r.cp
    found = {
        "hidden_size": float(r.model.hidden_size),
        "seq_len": float(r.seq_len),
        "GPUs": float(r.world_size),
        "tokens per micro-batch": tokens,
    }
    if r.model.is_moe:
        copies = tokens / r.tp * r.model.moe_router_topk * r.etp * r.ep
        found["tokens per expert"] = copies / (r.model.num_experts or 1)
    return found


def interval(recipe: Recipe, calibration: Calibration) -> tuple[float, float, tuple[str, ...]]:
    """Ends of the 80% interval over the projected throughput, and what is outside of the calibration."""
    outside = tuple(_outside(recipe, calibration))
    kind = "moe" if recipe.model.is_moe else "dense"
    reach = "unknown" if outside else "known"
    software = "megatron-core" if recipe.framework == "megatron-core" else "other"
    low, high = calibration.residuals[f"{kind} {software} {reach}"]
    return low, high, outside


def _outside(recipe: Recipe, calibration: Calibration) -> Iterator[str]:
    gpu = recipe.cluster.gpu.name
    precisions = calibration.known_gpus.get(gpu, ())
    if not precisions:
        yield f"{gpu} was not among the measured GPUs"
    elif recipe.precision not in precisions:
        yield f"{recipe.precision} was not measured on {gpu}, only {', '.join(precisions)}"
    known = calibration.known_sizes.get("moe" if recipe.model.is_moe else "dense", {})
    for name, value in sizes(recipe).items():
        low, high = known.get(name, (0.0, float("inf")))
        if not low <= value <= high:
            yield f"{name} = {value:g} lies outside of what was measured, {low:g} to {high:g}"
