"""What a user may give for a model or a GPU: a catalog name, a file, a mapping -> ``Model`` / ``GPU``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from shardwise.engine.catalog import names
from shardwise.engine.catalog.documents import read_mapping
from shardwise.engine.catalog.hf_config import from_hf_config, looks_like_hf_config
from shardwise.engine.catalog.keys import refuse_unknown_keys
from shardwise.engine.cluster import GPU, Fabric
from shardwise.engine.errors import ConfigError
from shardwise.engine.model import Model

ModelLike = str | Path | Mapping[str, Any] | Model
GpuLike = str | Path | Mapping[str, Any] | GPU

MAX_LAYERS = 10_000
"""Most decoder layers of a user's model."""
MAX_MODEL_SIZE = 100_000_000
"""Largest other size of a user's model."""
MAX_GPU_SIZE = 10**15
"""Largest integer of a user's GPU (its memory, bytes)."""
MAX_DOMAIN = 1_000_000
"""Most GPUs on one scale-up fabric."""

SUFFIXES = (".yaml", ".yml", ".json")
"""A name that ends so is a file, whatever the catalog holds."""


def models() -> dict[str, Model]:
    """Every catalog model by name, sorted. Parses all entries on the first call."""
    return {name: _model_entry(name) for name in names.names("models")}


def gpus() -> dict[str, GPU]:
    """Every catalog GPU by name, sorted. Parses all entries on the first call."""
    return {name: _gpu_entry(name) for name in names.names("gpus")}


def model(spec: ModelLike) -> Model:
    """The model that ``spec`` means.

    A catalog name in any common spelling; the path of a YAML file or of a Hugging Face
    ``config.json`` (or of the folder that holds one); a mapping of ``Model`` fields or of a
    ``config.json``. A mapping may name a ``base`` model and give only what differs.

    Raises :class:`ConfigError` for an unknown name (with the nearest ones) or a bad field, and
    :class:`UnsupportedError` for an architecture that the engine does not model.
    """
    if isinstance(spec, Model):
        return spec
    if isinstance(spec, Mapping):
        return _model_mapping(spec, "model", default_name="custom")
    path = as_file(_given(spec, "model"))
    if path is not None:
        stem = path.absolute().parent.name if path.stem == "config" else path.stem
        return _model_mapping(read_mapping(path, what="model"), str(path), default_name=stem or "custom")
    return _model_entry(names.resolve("models", str(spec)))


def gpu(spec: GpuLike) -> GPU:
    """The GPU that ``spec`` means: a catalog name in any common spelling, a YAML file, or a mapping.

    A mapping may name a ``base`` GPU and give only what differs (``fabric`` and ``nic`` field by field).
    Raises :class:`ConfigError` for an unknown name (with the nearest ones) or a bad field.
    """
    if isinstance(spec, GPU):
        return spec
    if isinstance(spec, Mapping):
        return _gpu_mapping(spec, "gpu", default_name="custom")
    path = as_file(_given(spec, "gpu"))
    if path is not None:
        return _gpu_mapping(read_mapping(path, what="gpu"), str(path), default_name=path.stem)
    return _gpu_entry(names.resolve("gpus", str(spec)))


def model_spec(model: Model) -> str | dict[str, Any]:
    """The catalog name when ``model`` is the catalog's; else a mapping that :func:`model` reads back."""
    if model.name in names.names("models") and _model_entry(model.name) == model:
        return model.name
    return model.model_dump(mode="json", exclude_defaults=True)


def gpu_spec(gpu: GPU) -> str | dict[str, Any]:
    """The catalog name when ``gpu`` is the catalog's; else a mapping that :func:`gpu` reads back."""
    if gpu.name in names.names("gpus") and _gpu_entry(gpu.name) == gpu:
        return gpu.name
    return gpu.model_dump(mode="json", exclude_defaults=True)


def as_file(spec: str | Path) -> Path | None:
    """The file that ``spec`` names, or None when it is to be read as a name.

    A path object or a text with a document's suffix is always a file. Any other text is one only if
    it lies there and is no catalog name; a folder stands for the ``config.json`` in it.
    """
    if isinstance(spec, str):
        if not spec.strip() or len(spec) > 4096 or "\0" in spec or "\n" in spec:
            return None
        path = Path(os.path.expanduser(spec))
        if not spec.lower().endswith(SUFFIXES):
            if names.find("models", spec) or names.find("gpus", spec):
                return None
            # ``os.path`` says no where ``pathlib`` raises: a name too long for a file, a folder closed to us.
            if os.path.isfile(path / "config.json"):
                return path / "config.json"
            return path if os.path.isfile(path) else None
        return path
    return spec / "config.json" if os.path.isdir(spec) else spec


def not_a_file(base: Any, where: str) -> Any:
    """``base``, refused when it is a file: a file that starts from itself would never end."""
    if isinstance(base, Path) or (isinstance(base, str) and as_file(base) is not None):
        raise ConfigError(
            f"{where}: base = {str(base)[:60]!r}: needs a catalog name, not a file", field="base"
        )
    return base


def merge(base: Mapping[str, Any], changes: Mapping[str, Any], nested: tuple[str, ...]) -> dict[str, Any]:
    """``base`` with ``changes``; the fields in ``nested`` are merged one level down."""
    merged = {**base, **changes}
    for name in nested:
        if isinstance(changes.get(name), Mapping) and isinstance(base.get(name), Mapping):
            merged[name] = {**base[name], **changes[name]}
    return merged


@cache
def _model_entry(name: str) -> Model:
    return Model.build(names.entry("models", name), where=f"model {name}")


@cache
def _gpu_entry(name: str) -> GPU:
    return GPU.build(names.entry("gpus", name), where=f"gpu {name}")


def _model_mapping(data: Mapping[str, Any], where: str, *, default_name: str) -> Model:
    built = _model_fields(data, where, default_name)
    _within({"num_layers": MAX_LAYERS, "mtp_num_layers": MAX_LAYERS}, MAX_MODEL_SIZE, built, where)
    return built


def _model_fields(data: Mapping[str, Any], where: str, default_name: str) -> Model:
    if looks_like_hf_config(data):
        return from_hf_config(data, where=where, default_name=default_name)
    refuse_unknown_keys(data, (*Model.model_fields, "base"), where)
    fields = dict(data)
    if "base" in fields:
        base = model(not_a_file(fields.pop("base"), where))
        changed = {"name": f"{base.name}-variant", "source": f"{base.name}, changed by the user"}
        fields = {**base.model_dump(), **changed, **fields}
    return Model.build({"name": default_name, **fields}, where=where)


def _gpu_mapping(data: Mapping[str, Any], where: str, *, default_name: str) -> GPU:
    refuse_unknown_keys(data, (*GPU.model_fields, "base"), where)
    fields = dict(data)
    if "base" in fields:
        base = gpu(not_a_file(fields.pop("base"), where))
        fields = merge({**base.model_dump(), "name": f"{base.name}-variant"}, fields, ("fabric", "nic"))
    built = GPU.build({"name": default_name, **fields}, where=where)
    _within({}, MAX_GPU_SIZE, built, where)
    _within({"domain_size": MAX_DOMAIN}, MAX_DOMAIN, built.fabric, where)
    return built


def _given(spec: str | Path, what: str) -> str | Path:
    """``spec`` if it can name something at all; callers hand in whatever a document held."""
    if isinstance(spec, Path) or (isinstance(spec, str) and spec.strip()):
        return spec
    raise ConfigError(f"{what} = {str(spec)[:60]!r}: needs a catalog name, a file or a mapping", field=what)


def _within(limits: Mapping[str, int], default: int, spec: Model | GPU | Fabric, where: str) -> None:
    """Refuse integers so large that what is computed from them would overflow or never end."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        limit = limits.get(name, default)
        if isinstance(value, int) and value > limit:
            raise ConfigError(f"{where}: {name} is out of range (at most {limit})", field=name)
