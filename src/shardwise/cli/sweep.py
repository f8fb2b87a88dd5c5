"""``shardwise sweep``: the whole legal space, scored, best first."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwise.cli.groups import add
from shardwise.cli.options import AllowPrecision, Fix, Given, JsonFlag, recipe_options
from shardwise.cli.output import emit_json
from shardwise.engine.results import DEFAULT_MARGIN


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    example = "shardwise sweep --model mixtral-8x22b --cluster mi355x:4x8 --gbs 128 --seq-len 8192"
    add(app, recipe_options()(sweep), example=example)


def sweep(
    given: Given,
    axes: Annotated[
        str | None,
        typer.Option("--axes", metavar="A,B,...", help="Sweep only these axes.", show_default=False),
    ] = None,
    fix: Fix = None,
    allow_precision: AllowPrecision = None,
    margin: Annotated[
        float, typer.Option("--margin", help="Share of memory that must stay free.")
    ] = DEFAULT_MARGIN,
    top: Annotated[int, typer.Option("--top", metavar="N", help="How many of the best to show.")] = 10,
    json_: JsonFlag = False,
) -> None:
    """Score the whole legal space, best first.

    Every recipe field that is given, as an option or with --fix, stays fixed.
    """
    from shardwise.cli.inputs import assignments, merged, read
    from shardwise.cli.render.progress import stepper
    from shardwise.engine import sweep as engine

    fixed = merged(given.fields, assignments(fix or []))
    base = read(Given(given.source, given.from_, fixed))
    names = None if axes is None else [name.strip() for name in axes.split(",") if name.strip()]
    held = [name for name in fixed if name not in ("model", "cluster", "gbs", "seq_len")]
    with stepper("scoring", quiet=json_) as step:
        result = engine.sweep(
            base,
            names,
            fixed=held,
            precisions=allow_precision or (),
            margin=margin,
            top=top,
            progress=lambda seen: step(seen, None),
        )
    document = result.as_json()
    if json_:
        emit_json(document)
    else:
        from shardwise.cli.render.console import show
        from shardwise.cli.render.sweep import sweep as render
        from shardwise.engine.recipe_io import dump_recipe

        show(render(document, base=dump_recipe(base)))
    if not document["fits"]:
        raise typer.Exit(1)
