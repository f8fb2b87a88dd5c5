"""``shardwise project``, ``memory`` and ``legal``: one recipe, one answer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardwise.cli.groups import add
from shardwise.cli.options import Given, JsonFlag, recipe_options
from shardwise.cli.output import emit_json

_MIXTRAL = "--model mixtral-8x22b --cluster mi355x:4x8 --pp 4 --ep 8 --mbs 2 --gbs 128 --seq-len 8192"


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for command in (project, memory, legal):
        add(app, recipe_options()(command), example=f"shardwise {command.__name__} {_MIXTRAL}")


def project(given: Given, json_: JsonFlag = False) -> None:
    """Project one recipe: time, throughput, memory.

    Shows where a step's time and each stage's memory go. Exits 1 when the recipe is illegal or does not fit.
    """
    from shardwise.cli.inputs import read
    from shardwise.engine import projection as engine
    from shardwise.engine.recipe_io import dump_recipe

    recipe = read(given)
    document = engine.project(recipe).as_json()
    if json_:
        emit_json(document)
    else:
        from shardwise.cli.render.console import show
        from shardwise.cli.render.projection import projection
        from shardwise.cli.render.recipe import heading

        show(projection(document, head=heading(dump_recipe(recipe))))
    if not document["legal"] or document["memory"]["verdict"] == "out of memory":
        raise typer.Exit(1)


_Measure = Annotated[
    str | None,
    typer.Option(
        "--measure",
        metavar="WORD",
        help="Run the framework's own modules too: on tensors without memory, or on this machine's GPU. "
        "[fake|gpu]",
        show_default=False,
    ),
]
_Stage = Annotated[
    int | None,
    typer.Option(
        "--stage",
        metavar="N",
        help="Pipeline stage to measure (unset: first, last and fullest).",
        show_default=False,
    ),
]


def memory(given: Given, measure: _Measure = None, stage: _Stage = None, json_: JsonFlag = False) -> None:
    """Does one recipe fit? Memory per stage and item.

    Where it does not fit with a margin, it says by how much, what to change first and the fewest GPUs that
    would do. With ``--measure`` it shows what the framework's own modules hold beside the formulas. Exits 1
    when the recipe is illegal or does not fit.
    """
    from shardwise.cli.inputs import read
    from shardwise.engine import legality
    from shardwise.engine import memory as engine
    from shardwise.engine.errors import ConfigError
    from shardwise.engine.recipe_io import dump_recipe

    if stage is not None and measure is None:
        raise ConfigError(f"stage = {stage}: needs --measure fake or --measure gpu", field="stage")
    recipe = read(given)
    broken = legality.check(recipe)
    document: dict[str, Any] = (
        {"verdict": None, "legal": False, "violations": [violation.as_json() for violation in broken]}
        if broken
        else engine.report(recipe).as_json()
    )
    if not broken and document["verdict"] != "fits":
        from shardwise.engine.memory.advice import advise

        document["advice"] = advise(recipe).as_json()
    if measure is not None and not broken:
        from shardwise.engine.measure.report import measured

        document["measured"] = measured(recipe, measure, stage)
    if json_:
        emit_json(document)
    else:
        from shardwise.cli.render.console import show
        from shardwise.cli.render.legal import legal as render_illegal
        from shardwise.cli.render.memory import memory as render_memory
        from shardwise.cli.render.recipe import heading

        head = heading(dump_recipe(recipe))
        show(render_illegal(document, head=head) if broken else render_memory(document, head=head))
    if broken or document["verdict"] == "out of memory":
        raise typer.Exit(1)


def legal(given: Given, json_: JsonFlag = False) -> None:
    """Which rules does one recipe break?

    Says who demands each and what the nearest legal value is. Exits 1 when the recipe is illegal.
    """
    from shardwise.cli.inputs import read
    from shardwise.engine import legality
    from shardwise.engine.recipe_io import dump_recipe

    recipe = read(given)
    broken = legality.check(recipe)
    document = {"legal": not broken, "violations": [violation.as_json() for violation in broken]}
    if json_:
        emit_json(document)
    else:
        from shardwise.cli.render.console import show
        from shardwise.cli.render.legal import legal as render
        from shardwise.cli.render.recipe import heading

        show(render(document, head=heading(dump_recipe(recipe))))
    if broken:
        raise typer.Exit(1)
