"""Why a recipe won, change by change, and the files that launch it.

Two views of each change from the baseline to the winner, since the effect of one depends on the others:

- the *walk*: the changes made one after the other, starting from the baseline; the steps add up;
- *taken back*: the winner without this one change.

Both are projections of whole recipes: cheap, repeatable, and the same figures that the search used.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from itertools import chain, combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.engine.recipe import PIPELINE_SPLIT, RECOMPUTE_DETAILS

if TYPE_CHECKING:
    from shardwise.engine.recipe import Recipe
    from shardwise.engine.results import Projection

_TOGETHER = (
    ("precision", "fp8_param_gather"),
    ("tp", "sequence_parallel", "etp"),
    (
        "pp",
        "vpp",
        *PIPELINE_SPLIT,
        "pp_schedule",
    ),
    ("cp", "cp_comm_type"),
    ("mbs",),
    ("recompute", *RECOMPUTE_DETAILS),
    ("dp_sharding", "dp_shard_size", "fsdp_reshard_after_forward"),
)
"""Fields that mean little apart; groups in the order of the walk, all other fields follow alone. The walk
leaves this order where it would pass an illegal recipe."""

_MOST_TOGETHER = 3
"""Most groups tried together before all that are left become one step."""


def changes(best: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What turned the baseline into the winner (both as ``load_recipe`` takes them), and what each is worth.

    Each entry has ``fields`` (name -> value at the baseline and at the winner), ``step`` and ``without``.
    ``step`` is the recipe after this change and all before it: ``gain_pct`` over the recipe before it,
    ``peak_bytes``; ``without`` is the winner with this change taken back: ``gain_pct`` over the winner. Where
    a recipe is illegal or does not fit, ``problem`` says so, and an illegal one has no ``gain_pct``. Changes
    that are only legal together are one entry, so every step has its gain when both ends are legal.
    """
    from shardwise.engine.projection import project
    from shardwise.engine.recipe_io import load_recipe

    winner, here = load_recipe(best), load_recipe(baseline)
    groups = [
        group
        for group in _groups(type(winner).model_fields)
        if _values(winner, group) != _values(here, group)
    ]
    start = here
    full, before = project(winner), project(here)
    told = []
    while groups:
        group, groups = _next_step(groups, here, winner)
        here = here.with_(**_values(winner, group))
        after = project(here)
        without = project(winner.with_(**_values(start, group)))
        differ = [name for name in group if getattr(winner, name) != getattr(start, name)]
        told.append(
            {
                "fields": {name: (getattr(start, name), getattr(winner, name)) for name in differ},
                "step": _told(after, before),
                "without": _told(without, full),
            }
        )
        before = after
    return told


def write_launch(best: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write ``best.yaml`` and the framework's own configuration of ``best`` into the run folder.

    The framework is the one that suits the cluster: Primus on AMD, Megatron-LM elsewhere. Returns its name,
    the configuration's path, and the command that launches it with where to type it.

    Raises:
        ConfigError: a file cannot be written.
    """
    from shardwise.cli.inputs import recipe_yaml
    from shardwise.engine.files import write_text
    from shardwise.engine.frameworks import export
    from shardwise.engine.recipe_io import load_recipe

    recipe = load_recipe(best)
    written = export(recipe, "primus" if recipe.cluster.gpu.vendor == "amd" else "megatron-lm")
    path = folder / written.filename
    write_text(folder / "best.yaml", recipe_yaml(best), field="--out")
    write_text(path, written.text, field="--out")
    quoted = shlex.quote(str(path))
    if written.framework == "primus":
        where = "from a Primus checkout, with data and learning rate added to the file"
        launch = written.launch.replace(written.filename, quoted)
    else:
        nodes = recipe.cluster.num_nodes
        each = f" on each of the {nodes} nodes with NODE_RANK and MASTER_ADDR set," if nodes > 1 else ""
        where = f"from a Megatron-LM checkout,{each} with data, tokenizer and learning rate as arguments"
        launch = f"bash {quoted}"
    return {"framework": written.framework, "configuration": str(path), "where": where, "launch": launch}


def _groups(names: Iterable[str]) -> list[tuple[str, ...]]:
    grouped = {name for group in _TOGETHER for name in group}
    return [*_TOGETHER, *((name,) for name in names if name not in grouped | {"model", "cluster"})]


def _next_step(
    groups: list[tuple[str, ...]], here: Recipe, winner: Recipe
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The first group, or else the first fewest together, that keep the recipe legal; and the groups left."""
    from shardwise.engine import legality

    for size in range(1, min(len(groups), _MOST_TOGETHER) + 1):
        for chosen in combinations(groups, size):
            together = tuple(chain.from_iterable(chosen))
            if not legality.check(here.with_(**_values(winner, together))):
                return together, [group for group in groups if group not in chosen]
    return tuple(chain.from_iterable(groups)), []


def _values(recipe: Recipe, group: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in group}


def _told(projection: Projection, reference: Projection) -> dict[str, Any]:
    memory = projection.memory
    if memory is None:
        return {"problem": f"illegal: {projection.violations[0].rule}"}
    told: dict[str, Any] = {"peak_bytes": memory.peak_bytes}
    if memory.verdict == "out of memory":
        told["problem"] = "does not fit"
    if projection.tokens_per_s_per_gpu and reference.tokens_per_s_per_gpu:
        told["gain_pct"] = 100.0 * (projection.tokens_per_s_per_gpu / reference.tokens_per_s_per_gpu - 1.0)
    return told
