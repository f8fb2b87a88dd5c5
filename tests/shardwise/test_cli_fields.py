"""The command line's table of fields says what the recipe says."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

import pytest
import typer
from typer.main import get_command

from shardwise.cli.fields import FIELDS
from shardwise.cli.main import app
from shardwise.engine.recipe import Recipe

RECIPE_COMMANDS = ("tune", "project", "memory", "legal", "sweep", "export")


def bare(annotation: Any) -> Any:
    """An annotation without Annotated and without None."""
    if get_origin(annotation) in (Union, types.UnionType):
        kept = [arg for arg in get_args(annotation) if arg is not type(None)]
        assert len(kept) == 1
        return bare(kept[0])
    if hasattr(annotation, "__metadata__"):
        return bare(annotation.__origin__)
    return annotation


def test_every_recipe_field_is_an_option_and_no_other() -> None:
    assert sorted(field.name for field in FIELDS) == sorted(Recipe.model_fields)
    assert len({field.name for field in FIELDS}) == len(FIELDS)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_kind_and_words_are_the_recipes(field: Any) -> None:
    annotation = bare(Recipe.model_fields[field.name].annotation)
    if field.name in ("model", "cluster", "recompute_modules", "moe_tokens_per_expert") or (
        field.name == "pipeline_model_parallel_layout"
    ):
        assert field.kind == "text"
    elif get_origin(annotation) is Literal:
        assert field.kind == "word"
        assert field.words == get_args(annotation)
    else:
        assert {"int": int, "float": float, "flag": bool}[field.kind] is annotation


@pytest.mark.parametrize("name", RECIPE_COMMANDS)
def test_every_recipe_command_has_every_option(name: str) -> None:
    root = get_command(app)
    command = root.commands[name]  # type: ignore[attr-defined]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {field.flag for field in FIELDS} <= options
    assert "--gpus" in options
    assert isinstance(app, typer.Typer)
