"""From what the command line was given to a validated recipe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.cli.fields import FIELDS, FieldOption
from shardwise.cli.options import Given
from shardwise.engine.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from shardwise.engine.frameworks import Imported
    from shardwise.engine.recipe import Recipe

STDIN = "-"
_BOOLS = {
    "true": True,
    "on": True,
    "yes": True,
    "1": True,
    "false": False,
    "off": False,
    "no": False,
    "0": False,
}


def read(given: Given) -> Recipe:
    """The recipe: the source, if any, with the options on top.

    Raises:
        ConfigError: one line naming the field, the value and what is allowed.
    """
    from shardwise.engine.recipe_io import apply_overrides, load_recipe

    data = apply_overrides(source_fields(given), given.fields)
    if "model" not in data:
        raise ConfigError("model is missing: give a RECIPE file, or --model and --cluster", field="model")
    if "cluster" not in data:
        raise ConfigError(
            "cluster is missing: add --cluster GPU:NODESxGPUS, e.g. mi355x:4x8", field="cluster"
        )
    return load_recipe(data, where=_where(given.source))


def source_fields(given: Given) -> dict[str, Any]:
    """The fields that the RECIPE argument holds; empty without one.

    A mapping of recipe fields is taken as it is; anything that looks like a framework's own
    configuration (or is said to be, with ``--from``) is imported.
    """
    from shardwise.engine.catalog.documents import parse_mapping, read_text
    from shardwise.engine.frameworks import recognise

    if given.source is None:
        if given.from_ is not None:
            raise ConfigError(
                f"--from = {given.from_!r}: there is no RECIPE that it could be the framework of",
                field="from",
            )
        return {}
    model, cluster = given.fields.get("model"), given.fields.get("cluster")
    text = read_text(given.source, what="RECIPE")
    framework = given.from_ or recognise(text)
    if framework is not None:
        # A file is read again by its path, because it may name others beside it.
        origin = text if given.source == STDIN else Path(given.source)
        return dict(_imported(origin, framework, model, cluster).recipe)
    return parse_mapping(text, where=_where(given.source))


def import_source(source: str, *, from_: str | None, model: str | None, cluster: str | None) -> Imported:
    """A framework's configuration from a file or stdin, as a recipe with notes."""
    from shardwise.engine.catalog.documents import read_text

    text = read_text(source, what="FILE")
    return _imported(text if source == STDIN else Path(source), from_, model, cluster)


def assignments(items: Iterable[str]) -> dict[str, Any]:
    """``["tp=1", "recompute=none"]`` as recipe fields with values of the right type.

    Raises:
        ConfigError: no ``=``, an unknown field, or a value of the wrong type.
    """
    known = {field.name: field for field in FIELDS}
    fields: dict[str, Any] = {}
    for item in items:
        name, sign, value = item.partition("=")
        name = name.strip().replace("-", "_")
        if not sign:
            raise ConfigError(f"--fix = {item!r}: needs FIELD=VALUE, e.g. --fix tp=1", field="fix")
        if name not in known:
            raise unknown_name("recipe field", name, known)
        fields = merged(fields, {name: _typed(known[name], value.strip())})
    return fields


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings together; a field that has two different values is an error."""
    for name in first.keys() & second.keys():
        if first[name] != second[name]:
            raise ConfigError(f"{name} is given twice: {first[name]!r} and {second[name]!r}", field=name)
    return {**first, **second}


def duration(text: str, *, field: str) -> float:
    """Seconds of ``90``, ``90s``, ``30m`` or ``2h``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text.lower())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"{field} = {text!r}: needs a time such as 90s, 30m or 2h", field=field)
    return float(match[1]) * {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def recipe_yaml(recipe: Mapping[str, Any]) -> str:
    """A recipe as the YAML that RECIPE reads back."""
    import yaml

    return yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True)


def _imported(origin: str | Path, from_: str | None, model: str | None, cluster: str | None) -> Imported:
    from shardwise.engine.frameworks import import_config

    return import_config(origin, from_=from_, model=model, cluster=cluster)


def _where(source: str | None) -> str:
    return "recipe" if source is None else "stdin" if source == STDIN else source


def _typed(field: FieldOption, value: str) -> Any:
    if value.lower() in ("none", "unset") and field.kind in ("int", "float"):
        return None
    try:
        if field.kind == "int":
            return int(value)
        if field.kind == "float":
            return float(value)
        if field.kind == "flag":
            return _BOOLS[value.lower()]
    except (ValueError, KeyError) as err:
        wanted = {"int": "a whole number", "float": "a number", "flag": "true or false"}[field.kind]
        raise ConfigError(f"{field.name} = {value!r}: needs {wanted}", field=field.name) from err
    return value
