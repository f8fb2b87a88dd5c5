"""The errors a user can meet, split by who must act.

Every message is one line that names the field, the value, what is allowed and, where there is one,
the nearest legal choice. Internal invariants use ``assert``; an infeasible recipe is a *result*
(a verdict, a violation), never an exception.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MAX_SHOWN = 80
"""Longest part of an unknown name that an error repeats."""


class ShardwiseError(Exception):
    """Base of every error that shardwise raises on purpose."""


class ConfigError(ShardwiseError, ValueError):
    """The user gave something that cannot be used; ``field`` says where."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class UnsupportedError(ConfigError):
    """The input is understood, but the engine does not model it (yet)."""


_LISTED = 12
"""Most names in one message."""


def _listed(names: list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """A ``ConfigError`` for a name that is not in a catalog, with the nearest known names."""
    names = sorted(known)
    shown = name if len(name) <= _MAX_SHOWN else name[: _MAX_SHOWN - 3] + "..."
    near = difflib.get_close_matches(shown.lower(), names, n=3, cutoff=0.4)
    hint = f"nearest: {', '.join(near)}" if near else f"known: {_listed(names)}"
    return ConfigError(f"unknown {kind} {shown!r} ({hint})", field=kind)
