"""``shardwise catalog``: the models, GPUs and clusters that are known, with their sources."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwise.cli.groups import add, new_app, or_help
from shardwise.cli.options import JsonFlag
from shardwise.cli.output import emit_json

app = new_app("Known models, GPUs and clusters, with sources.")

Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Only this one, with every field.", show_default=False)
]


@app.callback(invoke_without_command=True)
def root(ctx: typer.Context) -> None:
    """The models, GPUs and clusters that are known, with their sources."""
    or_help(ctx)


def models(name: Name = None, json_: JsonFlag = False) -> None:
    """List the models, or show one with every field."""
    from shardwise.engine import catalog

    chosen = [catalog.model(name)] if name else list(catalog.models().values())
    documents = [model.model_dump(mode="json") for model in chosen]
    if json_:
        emit_json(documents[0] if name else documents)
        return
    from shardwise.cli.render import catalog as render
    from shardwise.cli.render.console import show

    show(render.one(documents[0]) if name else render.models(documents))


def gpus(name: Name = None, json_: JsonFlag = False) -> None:
    """List the GPUs, or show one with every figure and its source."""
    from shardwise.engine import catalog

    chosen = [catalog.gpu(name)] if name else list(catalog.gpus().values())
    documents = [gpu.model_dump(mode="json") for gpu in chosen]
    if json_:
        emit_json(documents[0] if name else documents)
        return
    from shardwise.cli.render import catalog as render
    from shardwise.cli.render.console import show

    show(render.one(documents[0]) if name else render.gpus(documents))


def clusters(json_: JsonFlag = False) -> None:
    """List the named node designs, usable as NAME:NODES."""
    from shardwise.engine import catalog

    documents = [design.model_dump(mode="json") for design in catalog.clusters().values()]
    if json_:
        emit_json(documents)
        return
    from shardwise.cli.render import catalog as render
    from shardwise.cli.render.console import show

    show(render.clusters(documents))


add(app, models, example="shardwise catalog models mixtral-8x22b")
add(app, gpus, example="shardwise catalog gpus mi355x --json")
add(app, clusters, example="shardwise catalog clusters")
