"""Reading and writing the training frameworks' own configuration: ``export`` and ``import_config``.

A new format is one more class with the :class:`~shardwise.engine.frameworks.base.Framework` protocol and
one more entry in the registry below. What a format cannot say is not declared by hand: a recipe is
written, read back without help, and every field that did not survive is carried in the header comment
and reported in ``Exported.cannot_say``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardwise.engine import catalog
from shardwise.engine.cluster import Cluster
from shardwise.engine.errors import ConfigError, UnsupportedError
from shardwise.engine.frameworks.base import (
    MAX_SOURCE_BYTES,
    Exported,
    Framework,
    Hints,
    Imported,
    read_source,
)
from shardwise.engine.frameworks.header import read_header, write_header
from shardwise.engine.legality import check
from shardwise.engine.model import Model
from shardwise.engine.recipe import Recipe
from shardwise.engine.recipe_io import load_recipe

__all__ = ["PLANNED", "Exported", "Imported", "export", "framework_names", "import_config", "recognise"]

PLANNED: tuple[str, ...] = ("megatron-bridge", "torchtitan", "deepspeed")
"""Formats whose names are understood and that are not written or read yet."""

_ALIASES = {
    "megatron": "megatron-lm",
    "megatron-core": "megatron-lm",
    "mcore": "megatron-lm",
    "bridge": "megatron-bridge",
}
_NOT_OURS = {
    "torchtitan": re.compile(r"^\[(?:parallelism|activation_checkpoint|training)\]", re.MULTILINE),
    "deepspeed": re.compile(
        r"[\"'](?:zero_optimization|train_micro_batch_size_per_gpu|train_batch_size)[\"']\s*:"
    ),
    "megatron-bridge": re.compile(r"^model\s*:\s*$[\s\S]*^\s+tensor_model_parallel_size\s*:", re.MULTILINE),
}
"""How the files of planned formats look, so that they are named and not called broken."""


@lru_cache(maxsize=1)
def _registry() -> dict[str, Framework]:
    from shardwise.engine.frameworks.megatron_lm import MegatronLM
    from shardwise.engine.frameworks.primus import Primus

    formats: tuple[Framework, ...] = (MegatronLM(), Primus())
    return {one.name: one for one in formats}


def framework_names() -> tuple[str, ...]:
    """The formats that can be written and read, sorted."""
    return tuple(sorted(_registry()))


def _framework(name: str, field: str) -> Framework:
    word = name.strip().lower().replace("_", "-")
    word = _ALIASES.get(word, word)
    known = _registry()
    if word in known:
        return known[word]
    later = "; not yet supported" if word in PLANNED else ""
    raise UnsupportedError(
        f"{field} = {name[:40]!r}: supported: {', '.join(sorted(known))}{later}", field=field
    )


def export(recipe: Recipe, to: str) -> Exported:
    """``recipe`` as the configuration of framework ``to``.

    The text starts with a header comment from which :func:`import_config` restores what the format
    cannot say, so ``import_config(export(recipe, to).text)`` is ``recipe`` again. Raises
    ``UnsupportedError`` (naming what is supported) for an unknown framework.
    """
    framework = _framework(to, "to")
    cluster = catalog.cluster_spec(recipe.cluster)
    spec = catalog.model_spec(recipe.model)
    name = spec if isinstance(spec, str) else None
    # A model without a name must not be taken for a catalog model that shares its sizes.
    carried: dict[str, Any] = (
        {} if name else {"model": {"name": recipe.model.name, "source": recipe.model.source}}
    )
    draft = framework.write(recipe, write_header(framework.name, cluster, name, carried))
    lost = _lost(recipe, load_recipe(import_config(draft.text, from_=framework.name).recipe), carried)
    written = framework.write(recipe, write_header(framework.name, cluster, name, lost))
    said = [key for key in lost if key != "model"] + [f"model.{key}" for key in lost.get("model", {})]
    notes = [
        f"{field}: {framework.name} has no words for it; only the header of the file carries it"
        for field in said
        if field not in ("model.name", "model.source")
    ]
    notes += [
        f"{violation.framework} refuses this recipe: {violation.message}" for violation in check(recipe)
    ]
    return Exported(
        framework.name, framework.filename(recipe), written.text, written.launch, written.env,
        tuple(sorted(said)), tuple(notes),
    )  # fmt: skip


def _lost(recipe: Recipe, back: Recipe, carried: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``recipe`` that did not come back, with their values as JSON."""
    wanted, got = recipe.model_dump(mode="json"), back.model_dump(mode="json")
    fields = {
        key: wanted[key] for key in wanted if key not in ("model", "cluster") and wanted[key] != got[key]
    }
    model = dict(carried.get("model", {}))
    model |= {key: value for key, value in wanted["model"].items() if value != got["model"][key]}
    return {**fields, "model": model} if model else fields


def recognise(text: str) -> str | None:
    """The framework whose configuration ``text`` is, by our header or by its looks; None when it is none."""
    header = read_header(text)
    if header.framework in _registry():
        return header.framework
    return next(
        (name for name, one in sorted(_registry().items(), reverse=True) if one.recognises(text)), None
    )


def import_config(
    source: str | Path,
    *,
    from_: str | None = None,
    model: str | Mapping[str, Any] | Path | Model | None = None,
    cluster: str | Mapping[str, Any] | Path | Cluster | None = None,
) -> Imported:
    """The recipe in ``source``: a file, or the text of one.

    ``from_`` names the framework when it should not be recognised. ``model`` and ``cluster`` win over
    what the file says; a file that we did not write names no cluster, so there ``cluster`` is needed
    (a bare GPU name will do when the launch line gives the node counts). Raises ``ConfigError`` for
    what is no such configuration, ``UnsupportedError`` for a framework that is not read yet.
    """
    text, path = _text(source)
    framework = _framework(from_, "from") if from_ is not None else _recognised(text)
    header = read_header(text)
    hints = Hints(model=model, cluster=cluster if cluster is not None else header.cluster,
                  header_model=header.model, carried=header.carried)  # fmt: skip
    read = framework.read(text, path, hints)
    fields = {**read.fields, **{key: value for key, value in header.carried.items() if key != "model"}}
    recipe = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in fields.items()
        if value is not None
    }
    return Imported(framework.name, recipe, read.unknown, read.notes)


def _recognised(text: str) -> Framework:
    name = recognise(text)
    if name is not None:
        return _registry()[name]
    known = ", ".join(sorted(_registry()))
    for planned, looks in _NOT_OURS.items():
        if looks.search(text):
            raise UnsupportedError(
                f"from: this looks like {planned}, which is not read yet; supported: {known}", field="from"
            )
    raise ConfigError(f"file: not recognised as a configuration of {known}; name it with from", field="file")


def _text(source: str | Path) -> tuple[str, Path | None]:
    """The text behind ``source`` and, when it is a file, its path."""
    if isinstance(source, Path):
        return read_source(source), source
    if len(source) > MAX_SOURCE_BYTES:
        raise ConfigError(
            f"text: larger than {MAX_SOURCE_BYTES:,} characters; not a training configuration", field="file"
        )
    if (
        "\n" not in source
        and len(source) < 4096
        and not source.lstrip().startswith("-")
        and "--" not in source
    ):
        return read_source(Path(source)), Path(source)
    return source, None
