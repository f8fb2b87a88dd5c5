"""The best of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.cli.render.recipe import place
from shardwise.cli.render.units import count, seconds, word


def sweep(document: Mapping[str, Any], *, base: Mapping[str, Any]) -> Group:
    """Counts, what all of the best share, and the table of what differs between them."""
    best = document["best"]
    parts: list[RenderableType] = [
        Text(place(base), style="bold"),
        Text(
            f"{count(document['space'])} combinations, {count(document['legal'])} legal, "
            f"{count(document['fits'])} fit; {seconds(document['seconds'])}, "
            f"{count(document['projections_per_s'])} projections/s"
        ),
        Text(),
    ]
    if not best:
        parts.append(
            Text("Nothing that is legal fits: more GPUs, a smaller batch or fewer fixed fields.", "bold red")
        )
        return Group(*parts)
    differing, shared = _differing([row["recipe"] for row in best])
    if shared:
        parts.append(Text(f"all of the best: {shared}", style="dim"))
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("tokens/s/GPU", justify="right", no_wrap=True)
    table.add_column("of best", justify="right", no_wrap=True)
    table.add_column("GiB", justify="right", no_wrap=True)
    table.add_column("settings", overflow="fold")
    first = best[0]["tokens_per_s_per_gpu"]
    for index, row in enumerate(best):
        recipe = row["recipe"]
        values = " ".join(f"{name}={word(recipe[name])}" for name in differing if name in recipe)
        table.add_row(
            count(row["tokens_per_s_per_gpu"]),
            f"{100 * row['tokens_per_s_per_gpu'] / first:.1f}%",
            f"{row['peak_mem_gib']:,.1f}",
            values or "(all else at its default)",
            style="bold" if index == 0 else "",
        )
    return Group(*parts, table)


def _differing(recipes: list[Mapping[str, Any]]) -> tuple[list[str], str]:
    names: dict[str, None] = {}
    for recipe in recipes:
        names.update(dict.fromkeys(name for name in recipe if name not in ("model", "cluster")))
    same = [name for name in names if all(recipe.get(name) == recipes[0].get(name) for recipe in recipes)]
    return [name for name in names if name not in same], " ".join(
        f"{name}={word(recipes[0][name])}" for name in same
    )
