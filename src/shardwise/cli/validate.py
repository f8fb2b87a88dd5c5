"""``shardwise validate``: the engine held against measured cases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwise.cli.groups import add
from shardwise.cli.options import JsonFlag
from shardwise.cli.output import emit_json


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    add(app, validate, example="shardwise validate cases/nvidia.jsonl cases/amd.jsonl")


def validate(
    files: Annotated[list[str], typer.Argument(metavar="CASES...", help="JSONL files of measured cases.")],
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", help="Processes.")] = 1,
    worst: Annotated[int, typer.Option("--worst", metavar="N", help="How many of the worst to show.")] = 8,
    json_: JsonFlag = False,
) -> None:
    """Score the engine against measured cases.

    No case is dropped in silence: one that cannot be scored has a status and a reason.
    """
    from shardwise.cli.render.progress import stepper
    from shardwise.engine import validation

    with stepper("scoring cases", quiet=json_) as step:
        document = validation.validate([Path(name) for name in files], jobs=jobs, progress=step)
    if json_:
        emit_json(document)
        return
    from shardwise.cli.render.console import show
    from shardwise.cli.render.validation import validation as render

    show(render(document, worst=worst))
