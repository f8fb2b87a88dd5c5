"""A recipe in one or two lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from shardwise.cli.render.units import word

_SIZES = ("tp", "pp", "vpp", "cp", "ep", "etp")
_BATCH = ("mbs", "gbs", "seq_len")
_ASKED_FOR = {"precision": "bf16", "recompute": "none"}
"""Defaults of the recipe that everybody asks for."""
_FIRST = (*_SIZES, *_BATCH, "precision", "recompute", "dp_sharding")


def place(recipe: Mapping[str, Any]) -> str:
    """``mixtral-8x22b on mi355x:4x8``."""
    return f"{_name(recipe.get('model'))} on {_cluster(recipe.get('cluster'))}"


def settings(recipe: Mapping[str, Any]) -> str:
    """The settings, sizes first; any other field that is not in ``recipe`` stands at its default."""
    known = {**_ASKED_FOR, **recipe}
    shown = [f"{name}={word(known[name])}" for name in _FIRST if name in known]
    rest = sorted(set(recipe) - {*_FIRST, "model", "cluster"})
    return " ".join([*shown, *(f"{name}={word(recipe[name])}" for name in rest)])


def heading(recipe: Mapping[str, Any]) -> Text:
    """Place in bold, settings below."""
    return Text.assemble((place(recipe), "bold"), "\n", settings(recipe))


def _name(value: object) -> str:
    return str(value.get("name", "a model of your own")) if isinstance(value, Mapping) else str(value)


def _cluster(value: object) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    gpu = value.get("gpu")
    name = gpu.get("name", "gpu") if isinstance(gpu, Mapping) else gpu
    return f"{name}:{value.get('num_nodes', '?')}x{value.get('gpus_per_node', '?')}"
