"""Writing flat YAML in a fixed order with nothing that a YAML 1.1 reader could take for something else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_][\w.\-]*")
_TAKEN = frozenset({"true", "false", "yes", "no", "on", "off", "null", "none", "y", "n"})


def yaml_scalar(value: Any) -> str:
    """``value`` (None, bool, number, word or list of words) as one line of YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        # YAML 1.1 takes 1e-05 for a word: it wants a point in the mantissa.
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(yaml_scalar(item) for item in value) + "]"
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text.lower() not in _TAKEN else json.dumps(text)


def yaml_block(items: Mapping[str, Any], *, indent: int) -> list[str]:
    """``items`` as ``key: value`` lines."""
    return [f"{' ' * indent}{key}: {yaml_scalar(value)}" for key, value in items.items()]
