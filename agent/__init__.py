"""The tuning agent: a LangGraph state machine that uses the projection engine as its oracle.

``shardwise.agent.graph.graph`` is the compiled graph; nothing heavy is imported until it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["graph"]


def __getattr__(name: str) -> Any:
    """Import :mod:`shardwise.agent.graph` when it is first asked for (it costs a second)."""
    if name == "graph":
        return import_module("shardwise.agent.graph")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
