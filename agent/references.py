"""Published reference recipes by workload (data in ``references.yaml``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from shardwise.engine.cluster import Cluster
from shardwise.engine.model import Model


@dataclass(frozen=True, slots=True)
class Reference:
    """A recipe that somebody published for one workload."""

    name: str
    source: str
    recipe: dict[str, Any]
    """Recipe fields without model and cluster, as far as the source states them."""


def reference_for(model: Model, cluster: Cluster) -> Reference | None:
    """The published reference for this model on this many of these GPUs, if there is one."""
    return _load().get((model.name, cluster.gpu.name, cluster.world_size))


@cache
def _load() -> dict[tuple[str, str, int], Reference]:
    text = resources.files("shardwise.agent").joinpath("references.yaml").read_text("utf-8")
    found: dict[tuple[str, str, int], Reference] = {}
    for entry in yaml.safe_load(text)["references"]:
        match = entry["match"]
        key = (match["model"], match["gpu"], match["world_size"])
        found[key] = Reference(entry["name"], " ".join(entry["source"].split()), dict(entry["recipe"]))
    return found
