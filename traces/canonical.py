"""One spelling of an event: plain JSON values, canonical text, and the hash that chains lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from shardwise.traces.errors import TraceFormatError

GENESIS = "0" * 64
"""``prev`` of the first event."""


def canonical(value: Any) -> str:
    """``value`` as JSON text with sorted keys and no spaces: equal values give equal bytes.

    Raises :class:`TraceFormatError` for what JSON has no word for (NaN, infinity, objects).
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as err:
        raise TraceFormatError(f"not JSON: {err}") from err


def digest(event: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of an event's canonical text without its own ``hash``; ``prev`` is part of the text."""
    body = {key: value for key, value in event.items() if key != "hash"}
    return hashlib.sha256(canonical(body).encode()).hexdigest()


def jsonable(value: Any) -> Any:
    """``value`` in JSON's own types: tuples become lists, models and ``as_json`` objects dicts, NumPy scalars
    numbers. What has no JSON form is refused with :class:`TraceFormatError`."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _unicode(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {_unicode(str(key)): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((jsonable(item) for item in value), key=canonical)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if hasattr(value, "as_json"):
        return jsonable(value.as_json())
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return jsonable(value.item())
    raise TraceFormatError(f"a {type(value).__name__} has no JSON form")


def _unicode(text: str) -> str:
    """``text`` with half a surrogate pair, as a reply cut in mid-emoji has it, made U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
