"""Why a recipe won, choice by choice, and the files that launch it.

Each choice is judged by taking it back alone: the winner with that one axis at the baseline's value
is projected again. That is cheap (a few projections), repeatable, and true of the winner itself,
where effects seen at the baseline need not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_TOGETHER = (
    ("tp", "sequence_parallel"),
    ("recompute", "recompute_method", "recompute_num_layers", "recompute_modules"),
    ("dp_sharding", "dp_shard_size", "fsdp_reshard_after_forward"),
)
"""Fields that have no meaning apart, each group under the name of its first."""


def choices(best: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each axis on which two recipes (as ``load_recipe`` takes) differ, what taking it back costs.

    Each entry has ``field``, ``baseline``, ``best`` (values of the fields that differ), and one of
    ``without_pct`` (throughput of the winner without the choice over the winner's, in percent, usually
    negative) and ``impossible`` (why the winner cannot be run without it).
    """
    from shardwise.engine.projection import project
    from shardwise.engine.recipe_io import load_recipe

    winner, start = load_recipe(best), load_recipe(baseline)
    full = project(winner).tokens_per_s_per_gpu
    told: list[dict[str, Any]] = []
    for group in _groups(type(winner).model_fields):
        differ = [name for name in group if getattr(winner, name) != getattr(start, name)]
        if not differ:
            continue
        entry: dict[str, Any] = {
            "field": differ[0],
            "baseline": {name: getattr(start, name) for name in differ},
            "best": {name: getattr(winner, name) for name in differ},
        }
        without = project(winner.with_(**{name: getattr(start, name) for name in group}))
        told.append({**entry, **_effect(without, full)})
    return told


def write_launch(best: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write ``best.yaml`` and the framework's own configuration of ``best`` into the run folder.

    The framework is the one that suits the cluster: Primus on AMD, Megatron-LM elsewhere. Returns its name,
    the configuration's path, and the command that launches it.

    Raises:
        ConfigError: a file cannot be written.
    """
    from shardwise.cli.inputs import recipe_yaml, write_file
    from shardwise.engine.frameworks import export
    from shardwise.engine.recipe_io import load_recipe

    recipe = load_recipe(best)
    written = export(recipe, "primus" if recipe.cluster.gpu.vendor == "amd" else "megatron-lm")
    path = folder / written.filename
    write_file(folder / "best.yaml", recipe_yaml(best), field="--out")
    write_file(path, written.text, field="--out")
    return {"framework": written.framework, "configuration": str(path), "launch": written.launch}


def _groups(names: Iterable[str]) -> list[tuple[str, ...]]:
    first = {group[0]: group for group in _TOGETHER}
    inner = {name for group in _TOGETHER for name in group[1:]}
    return [
        first.get(name, (name,)) for name in names if name not in inner and name not in ("model", "cluster")
    ]


def _effect(without: Any, full: float | None) -> dict[str, Any]:
    if without.violations:
        return {"impossible": f"illegal ({without.violations[0].rule})"}
    if without.memory is not None and without.memory.verdict == "out of memory":
        return {"impossible": "does not fit"}
    if not full or without.tokens_per_s_per_gpu is None:
        return {"impossible": "no figure"}
    return {"without_pct": 100.0 * (without.tokens_per_s_per_gpu / full - 1.0)}
