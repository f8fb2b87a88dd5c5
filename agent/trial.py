"""``Trial``: one recipe with what the oracle said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticUndefined

from shardwise.agent.request import TuneRequest
from shardwise.engine.recipe import Recipe

_ALWAYS = (
    "tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "gbs", "seq_len",
    "sequence_parallel", "dp_sharding", "recompute", "precision",
)  # fmt: skip
# What people look for first, and what a recipe derives from other fields when it is left out.

Fields = dict[str, Any]
"""A recipe without model and cluster, JSON types only: what state and trace carry."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A scored recipe."""

    key: str
    """``recipe_key`` of the recipe."""
    fields: Fields
    projection: dict[str, Any]
    """``Projection.as_json()``."""
    fits: bool
    """Whether its peak leaves the request's margin free."""

    def score(self, objective: str) -> float:
        """The objective's figure; 0.0 for an illegal recipe."""
        return float(self.projection.get(objective) or 0.0)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Throughput, tokens/s/GPU; 0.0 for an illegal recipe."""
        return self.score("tokens_per_s_per_gpu")

    @property
    def peak_bytes(self) -> int:
        """Peak memory of the fullest stage, bytes; 0 when there is no report."""
        memory = self.projection.get("memory") or {}
        return int(memory.get("peak_bytes", 0))

    def as_json(self) -> dict[str, Any]:
        return {"key": self.key, "fields": self.fields, "projection": self.projection, "fits": self.fits}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        """The inverse of :meth:`as_json`; ``KeyError`` when a part is missing."""
        fields = {name: data["fields"][name] for name in Recipe.model_fields if name in data["fields"]}
        return cls(str(data["key"]), fields, dict(data["projection"]), bool(data["fits"]))


def fields_of(recipe: Recipe) -> Fields:
    """The recipe without model and cluster, in recipe order.

    Fields at their plain default are left out, except those that a recipe would derive from others
    (``etp``, ``sequence_parallel``), so that the fields say the same wherever they are read.
    """
    dumped = recipe.model_dump(mode="json", exclude={"model", "cluster"})
    return {name: value for name, value in dumped.items() if name in _ALWAYS or value != default_of(name)}


def recipe_of(request: TuneRequest, fields: Mapping[str, Any]) -> Recipe:
    """The full recipe of ``fields`` for the request's model and cluster.

    Raises :class:`ConfigError` when a field has no meaning.
    """
    return Recipe.build({**fields, "model": request.model, "cluster": request.cluster}, where="recipe")


def default_of(name: str) -> Any:
    """The plain default of recipe field ``name`` as JSON; None when it has none."""
    default = Recipe.model_fields[name].get_default()
    if default is PydanticUndefined:
        return None
    return list(default) if isinstance(default, tuple) else default


def value_of(fields: Mapping[str, Any], name: str) -> Any:
    """The value of field ``name``, its default when left out."""
    return fields.get(name, default_of(name))


def changed(base: Mapping[str, Any], other: Mapping[str, Any]) -> Fields:
    """Fields of ``other`` whose value differs from ``base``, in recipe order (both as ``fields_of``)."""
    return {
        name: value_of(other, name)
        for name in Recipe.model_fields
        if name not in ("model", "cluster") and value_of(base, name) != value_of(other, name)
    }


def words(changes: Mapping[str, Any]) -> str:
    """Changes as people write them: ``tp=2 mbs=4``; ``no change`` when empty."""
    return " ".join(f"{name}={word(value)}" for name, value in changes.items()) or "no change"


def word(value: Any) -> str:
    """A field's value as people write it."""
    if isinstance(value, list):
        return "+".join(str(item) for item in value) or "none"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
