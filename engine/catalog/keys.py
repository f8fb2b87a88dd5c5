"""Refusing keys that a mapping may not have, with the nearest that it may."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from shardwise.engine.errors import ConfigError


def refuse_unknown_keys(data: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raise :class:`ConfigError` for the first key of ``data`` (in its order) that is not ``known``."""
    names = list(known)
    for key in data:
        if key not in names:
            near = difflib.get_close_matches(str(key).lower().replace("-", "_"), names, n=3, cutoff=0.5)
            hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(names)}"
            raise ConfigError(f"{where}: unknown field {str(key)[:80]!r} ({hint})", field=str(key))
