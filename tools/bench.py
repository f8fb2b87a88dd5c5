"""``Bench``: what the tools look at. The agent fills it in anew for every round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.engine.errors import ConfigError
from shardwise.engine.recipe import Recipe


@dataclass(frozen=True, slots=True)
class TrialView:
    """One scored recipe as the tools show it."""

    name: str
    """``T0``, ``T1``, ... in the order they were scored."""
    fields: Mapping[str, Any]
    """Recipe fields without model and cluster."""
    projection: Mapping[str, Any]
    """``Projection.as_json()``."""
    fits: bool


@dataclass(frozen=True, slots=True)
class Bench:
    """The state of a search, read only."""

    trials: Sequence[TrialView]
    incumbent: TrialView
    apply: Callable[[Mapping[str, Any]], Recipe]
    """The incumbent with changes applied; raises :class:`ConfigError` for what cannot be."""
    margin: float
    """Share of device memory that must stay free."""
    choices: Mapping[str, Sequence[Any]]
    """Recipe field -> values that occur in the search space."""
    notes: Sequence[str]

    def trial(self, name: str) -> TrialView:
        """The trial called ``name``. Raises :class:`ConfigError` naming the known range."""
        for view in self.trials:
            if view.name == name.strip().upper():
                return view
        last = self.trials[-1].name if self.trials else "none"
        raise ConfigError(f"unknown trial {name!r}; known: T0 to {last}", field="trial")
