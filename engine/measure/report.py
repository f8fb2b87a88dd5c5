"""Measured memory beside the formulas' (``shardwise memory --measure``); torch is imported then only."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from typing import TYPE_CHECKING, Any, Literal

from shardwise.engine.errors import ConfigError
from shardwise.engine.measure.limits import PACKAGES, refuse
from shardwise.engine.memory.table import report
from shardwise.engine.recipe import Recipe

if TYPE_CHECKING:
    from shardwise.engine.measure.memory import MeasuredStage

Mode = Literal["fake", "gpu"]
MODES: tuple[str, ...] = Mode.__args__  # type: ignore[attr-defined]

_EXTRA = "pip install 'shardwise[oracles]'"
_ENGINE = "pip install 'transformer_engine[pytorch]', or --transformer-impl local"


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
    packages = PACKAGES[recipe.framework]
    if (mode, recipe.framework, recipe.transformer_impl) == ("gpu", "megatron-core", "transformer_engine"):
        packages = (*packages, "transformer_engine")
    for package in packages:
        if not _installed(package):
            how = _ENGINE if package == "transformer_engine" else _EXTRA
            raise ConfigError(
                f"measure = {mode!r}: runs {recipe.framework}'s modules; {package} is missing: {how}",
                field="measure",
            )
    formula = report(recipe)
    stages = [stage] if stage is not None else sorted({0, recipe.pp - 1, formula.peak_stage})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("megatron").setLevel(logging.ERROR)
        found = [_measure(recipe, mode, at).beside(formula.stages[at]) for at in stages]
    return {"mode": mode, "stages": found}


def _measure(recipe: Recipe, mode: str, stage: int) -> MeasuredStage:
    if mode == "gpu":
        from shardwise.engine.measure.gpu import measure_gpu

        return measure_gpu(recipe, stage)
    from shardwise.engine.measure.memory import measure_fake

    return measure_fake(recipe, stage)


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
