"""``shardwise export`` and ``import``: the training framework's own configuration, out and in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwise.cli.groups import add
from shardwise.cli.options import Given, JsonFlag, recipe_options
from shardwise.cli.output import emit_json, emit_text


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    add(
        app,
        recipe_options()(export),
        example="shardwise export best.yaml --to megatron-lm --out train.sh",
    )
    example = "shardwise import train.sh --cluster mi355x:4x8 > recipe.yaml"
    add(app, import_, name="import", example=example)


def export(
    given: Given,
    to: Annotated[
        str, typer.Option("--to", metavar="FRAMEWORK", help="megatron-lm or primus.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write here, not to stdout.", show_default=False),
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Write a recipe as a framework's configuration.

    Exits 1, and writes nothing, when the recipe is illegal.
    """
    from shardwise.cli.inputs import read
    from shardwise.cli.render.console import note, show
    from shardwise.engine import frameworks, legality
    from shardwise.engine.files import write_text

    recipe = read(given)
    broken = legality.check(recipe)
    if broken:
        document = {"legal": False, "violations": [violation.as_json() for violation in broken]}
        if json_:
            emit_json(document)
        else:
            from shardwise.cli.render.legal import legal as render

            show(render(document))
        raise typer.Exit(1)
    written = frameworks.export(recipe, to)
    if out is not None:
        write_text(out, written.text, field="--out")
    if json_:
        emit_json(
            {
                "framework": written.framework,
                "filename": str(out) if out is not None else written.filename,
                "launch": written.launch,
                "env": dict(written.env),
                "cannot_say": list(written.cannot_say),
                "notes": list(written.notes),
                "text": written.text,
            }
        )
        return
    if out is None:
        emit_text(written.text)
    else:
        note(f"wrote {out}; launch with: {written.launch}")
    for line in written.notes:
        note(line)


def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The configuration; - for stdin.")],
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="FRAMEWORK", help="Unset: recognised.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="TEXT", help="When the file does not say.", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", "--gpus", metavar="TEXT", help="When the file does not say.", show_default=False
        ),
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Read a framework's configuration as a recipe.

    Prints YAML that every command takes as RECIPE; what it could not carry over goes to stderr.
    """
    from shardwise.cli.inputs import import_source, recipe_yaml
    from shardwise.cli.render.console import note

    imported = import_source(file, from_=from_, model=model, cluster=cluster)
    if json_:
        emit_json(
            {
                "framework": imported.framework,
                "recipe": dict(imported.recipe),
                "unknown": dict(imported.unknown),
                "notes": list(imported.notes),
            }
        )
        return
    emit_text(recipe_yaml(imported.recipe))
    for line in imported.notes:
        note(line)
    if imported.unknown:
        note(f"kept out of the recipe: {', '.join(sorted(imported.unknown))}")
