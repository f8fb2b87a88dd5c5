"""Measured memory beside the formulas' (``shardwise memory --measure``); torch is imported then only."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from typing import Any, Literal

from shardwise.engine.errors import ConfigError
from shardwise.engine.measure.limits import PACKAGES, refuse
from shardwise.engine.memory.table import report
from shardwise.engine.recipe import Recipe

Mode = Literal["fake"]
MODES: tuple[str, ...] = Mode.__args__  # type: ignore[attr-defined]

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
    for package in PACKAGES[recipe.framework]:
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


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
