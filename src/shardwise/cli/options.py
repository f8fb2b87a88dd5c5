"""Decorators that give a command its shared options: ``--json`` and the recipe's fields.

``@recipe_options()`` adds the optional RECIPE argument, ``--from`` and one option per row of
:data:`shardwise.cli.fields.FIELDS`, and hands the command one :class:`Given` with what was set.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from shardwise.cli.fields import FIELDS, FieldOption

JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else there.")]
"""Type of every command's ``--json``."""
Fix = Annotated[
    list[str] | None,
    typer.Option("--fix", metavar="FIELD=VALUE", help="Keep a field; repeatable.", show_default=False),
]
"""Type of ``--fix``; ``shardwise.cli.inputs.assignments`` reads it."""
AllowPrecision = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-precision", metavar="WORD", help="Precision to try too; repeatable.", show_default=False
    ),
]
"""Type of ``--allow-precision``."""

_TYPES: dict[str, type] = {"int": int, "float": float, "flag": bool, "word": str, "text": str}


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line said about a recipe; ``shardwise.cli.inputs`` makes a recipe of it."""

    source: str | None
    """The RECIPE argument: a path, ``-`` for stdin, or None."""
    from_: str | None
    """The framework whose configuration the source is, when it was said."""
    fields: dict[str, Any]
    """Recipe field -> value, only those that were set."""


def recipe_options(*, argument: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the command's ``given: Given`` parameter is filled from generated options.

    ``argument``: whether the recipe file is a positional argument; else it is ``--recipe FILE``.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True)
        assert "given" in own.parameters, "a recipe command takes `given`"

        def wrapper(**values: Any) -> Any:
            source = values.pop("recipe_source")
            from_ = values.pop("recipe_from")
            fields = {field.name: values.pop(field.name) for field in FIELDS}
            fields = {name: value for name, value in fields.items() if value is not None}
            return command(given=Given(source, from_, fields), **values)

        kept = [p for p in own.parameters.values() if p.name != "given"]
        made = [_source(argument), _from(), *(_option(field) for field in FIELDS)]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*kept, *made)]
        wrapper.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__name__ = command.__name__
        wrapper.__doc__ = command.__doc__
        wrapper.__annotations__ = {}
        return wrapper

    return decorate


def _option(field: FieldOption) -> inspect.Parameter:
    text = f"{field.help} [{'|'.join(field.words)}]" if field.words else field.help
    metavar = {"int": "N", "float": "X", "word": "WORD", "text": "TEXT"}.get(field.kind)
    info = typer.Option(
        *field.declaration, help=text, metavar=metavar, rich_help_panel=field.panel, show_default=False
    )
    return _parameter(field.name, Annotated[_TYPES[field.kind] | None, info])


def _source(argument: bool) -> inspect.Parameter:
    text = "YAML or JSON file, - for stdin, or a framework's own configuration."
    if argument:
        info = typer.Argument(metavar="RECIPE", help=text, show_default=False)
    else:
        info = typer.Option("--recipe", metavar="FILE", help=text, show_default=False)
    return _parameter("recipe_source", Annotated[str | None, info])


def _from() -> inspect.Parameter:
    info = typer.Option(
        "--from",
        metavar="FRAMEWORK",
        help="The framework whose configuration RECIPE is (unset: recognised).",
        show_default=False,
    )
    return _parameter("recipe_from", Annotated[str | None, info])


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
