"""Recipes in and out: a file or mapping -> ``Recipe`` -> the shortest mapping that says it, and its key.

A recipe's mapping has the field names of :class:`~shardwise.engine.recipe.Recipe`; ``model`` and
``cluster`` are whatever the catalog understands (a name, a file, a mapping). Two fields have
defaults here because they depend on others:

- ``seq_len``: the model's ``max_position_embeddings``, at most :data:`DEFAULT_SEQ_LEN`;
- ``gbs``: :data:`DEFAULT_MICROBATCHES` micro-batches for every data-parallel rank,
  ``8 x mbs x dp`` with ``dp = world // (tp * pp * cp)``, at least one rank.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.engine.catalog import cluster as find_cluster
from shardwise.engine.catalog import cluster_spec, model_spec
from shardwise.engine.catalog import model as find_model
from shardwise.engine.catalog.documents import read_mapping
from shardwise.engine.catalog.keys import refuse_unknown_keys
from shardwise.engine.cluster import Cluster
from shardwise.engine.errors import ConfigError
from shardwise.engine.model import Model
from shardwise.engine.recipe import RECOMPUTE_DETAILS, Recipe

DEFAULT_SEQ_LEN = 4096
"""Sequence length when none is given, tokens (less for a model with fewer positions)."""
DEFAULT_MICROBATCHES = 8
"""Micro-batches of one pipeline when no global batch size is given."""

_ALWAYS = ("model", "cluster", "tp", "pp", "cp", "ep", "mbs", "gbs", "seq_len")
_FIELDS = tuple(Recipe.model_fields)
_COUNTS = tuple(name for name, field in Recipe.model_fields.items() if "int" in str(field.annotation))


def load_recipe(data: Mapping[str, Any], *, where: str = "recipe") -> Recipe:
    """The recipe that ``data`` describes, complete and validated (not checked for legality).

    ``where`` names the source in errors. Keys set to None count as not given. Raises
    :class:`ConfigError` for an unknown field (with the nearest), a missing ``model`` or
    ``cluster``, or a bad value.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"{where}: needs a mapping of fields to values, got a {type(data).__name__}", field=where
        )
    refuse_unknown_keys(data, _FIELDS, where)
    fields = {key: value for key, value in data.items() if value is not None}
    for name, example in (("model", "mixtral-8x22b"), ("cluster", "mi355x:4x8")):
        if name not in fields:
            raise ConfigError(f"{where}: {name} is missing, e.g. {name}: {example}", field=name)
    for key in _COUNTS:
        # Python takes true for 1; as a size it is a slip.
        if isinstance(fields.get(key), bool):
            raise ConfigError(f"{where}: {key} = {fields[key]}: needs an integer", field=key)
    model, cluster = find_model(fields["model"]), find_cluster(fields["cluster"])
    fields |= {"model": model, "cluster": cluster}
    fields.setdefault("seq_len", min(model.max_position_embeddings, DEFAULT_SEQ_LEN))
    if "gbs" not in fields:
        fields["gbs"] = _default_gbs(fields, model, cluster, where)
    return Recipe.build(fields, where=where)


def dump_recipe(recipe: Recipe) -> dict[str, Any]:
    """The shortest mapping that :func:`load_recipe` reads back as ``recipe``.

    Only JSON types, fields in fixed order. ``model`` and ``cluster`` are names when they are the catalog's.
    The sizes that everybody asks for are always there; any other field only where it differs from what it
    would be if left out.
    """
    sizes: dict[str, Any] = {name: getattr(recipe, name) for name in _ALWAYS}
    # What the fields left out would be, given those that are there.
    implied = Recipe.build({**sizes, "recompute": recipe.recompute})
    result: dict[str, Any] = {"model": model_spec(recipe.model), "cluster": cluster_spec(recipe.cluster)}
    for name in _FIELDS:
        value = getattr(recipe, name)
        needed = recipe.recompute != "none" if name == "recompute" else value != getattr(implied, name)
        if name not in result and (needed or name in _ALWAYS):
            result[name] = list(value) if isinstance(value, tuple) else value
    return result


def recipe_key(recipe: Recipe) -> str:
    """A stable name of exactly this recipe: the first 16 hex digits of the SHA-256 of its canonical JSON.

    The JSON holds every field in full, model and cluster included (without the words on where their
    figures come from), so the key changes when a catalog entry does and not with the spelling.
    """
    words: dict[str, Any] = {"model": {"source"}, "cluster": {"gpu": {"sources"}}}
    canonical = json.dumps(
        recipe.model_dump(mode="json", exclude=words), sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def read_recipe_file(path: str | Path) -> dict[str, Any]:
    """The mapping in the recipe file ``path`` (YAML or JSON, ``-`` for standard input), at most 5 MB.

    Raises :class:`ConfigError`, with the line when the document is broken.
    """
    return read_mapping(path, what="recipe")


def apply_overrides(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with every override that is not None.

    When an override changes ``recompute``, the details of the old choice (``recompute_method``,
    ``recompute_num_layers``, ``recompute_modules``) go with it. Raises :class:`ConfigError` for an
    unknown field.
    """
    refuse_unknown_keys(overrides, _FIELDS, "override")
    given = {key: value for key, value in overrides.items() if value is not None}
    dropped = (
        RECOMPUTE_DETAILS if given.get("recompute", data.get("recompute")) != data.get("recompute") else ()
    )
    return {**{key: value for key, value in data.items() if key not in dropped}, **given}


def _default_gbs(fields: Mapping[str, Any], model: Model, cluster: Cluster, where: str) -> int:
    """``DEFAULT_MICROBATCHES x mbs x dp``, from the sizes as the recipe itself validates them."""
    sizes = ("tp", "pp", "cp", "mbs")
    draft = {key: fields[key] for key in sizes if key in fields}
    checked = Recipe.build({"model": model, "cluster": cluster, "gbs": 1, "seq_len": 1, **draft}, where=where)
    dp = max(cluster.world_size // (checked.tp * checked.pp * checked.cp), 1)
    return DEFAULT_MICROBATCHES * checked.mbs * dp
