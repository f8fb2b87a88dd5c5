"""shardwise: finds the fastest way to train a large model on a given GPU cluster.

The public names are loaded when they are first used (PEP 562), so that ``import shardwise`` costs
nothing: neither NumPy nor pydantic nor LangGraph is imported before a call needs it.

    >>> import shardwise
    >>> recipe = {"model": "mixtral-8x22b", "cluster": "mi355x:4x8", "pp": 4, "ep": 8, "gbs": 128}
    >>> shardwise.project(recipe).step_time_s  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwise.api import export, legal, memory, project, sweep, tune, validate
    from shardwise.engine.cluster import GPU, Cluster
    from shardwise.engine.errors import ConfigError, ShardwiseError
    from shardwise.engine.model import Model
    from shardwise.engine.recipe import Recipe

__version__ = "0.1.0"

_HOME = {
    "project": "shardwise.api",
    "memory": "shardwise.api",
    "legal": "shardwise.api",
    "sweep": "shardwise.api",
    "tune": "shardwise.api",
    "validate": "shardwise.api",
    "export": "shardwise.api",
    "Model": "shardwise.engine.model",
    "Cluster": "shardwise.engine.cluster",
    "GPU": "shardwise.engine.cluster",
    "Recipe": "shardwise.engine.recipe",
    "ConfigError": "shardwise.engine.errors",
    "ShardwiseError": "shardwise.engine.errors",
}
"""Where each public name lives."""
_ROOMS = ("agent", "engine", "memory_filter", "prompts", "tools", "traces")
"""Sub-packages, imported when first asked for: ``shardwise.agent.graph`` needs no import of its own."""

__all__ = [
    "GPU",
    "Cluster",
    "ConfigError",
    "Model",
    "Recipe",
    "ShardwiseError",
    "__version__",
    "export",
    "legal",
    "memory",
    "project",
    "sweep",
    "tune",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"shardwise.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'shardwise' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_ROOMS})
