"""Our own comment at the top of an exported file: what the format has no words for.

``# shardwise: framework=primus cluster=mi355x:4x8 model=mixtral-8x22b`` and, where needed, a second
line with one JSON object of the recipe fields that the framework cannot express (and of a cluster
or model that no short name stands for). A file without the comment is read just as well; it merely
leaves those fields at their defaults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.engine.errors import ConfigError

_LINE = re.compile(r"^[ \t]*#[ \t]*shardwise:[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]{0,79}")
_WORDS = ("framework", "cluster", "model")


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file, empty when it has none."""

    framework: str | None = None
    cluster: str | dict[str, Any] | None = None
    model: str | None = None
    carried: dict[str, Any] = field(default_factory=dict)
    """Recipe fields the format cannot say; ``model`` in it holds model fields."""


def write_header(
    framework: str, cluster: str | Mapping[str, Any], model: str | None, carried: Mapping[str, Any]
) -> str:
    """The header as comment lines without a final newline."""
    words = [f"framework={framework}"]
    extra = dict(carried)
    if isinstance(cluster, str):
        words.append(f"cluster={cluster}")
    else:
        extra["cluster"] = dict(cluster)
    if model is not None:
        words.append(f"model={model}")
    lines = ["# shardwise: " + " ".join(words)]
    if extra:
        lines.append("# shardwise: " + json.dumps(extra, sort_keys=True, ensure_ascii=True, allow_nan=False))
    return "\n".join(lines)


def read_header(text: str) -> Header:
    """The header in ``text``. Raises ``ConfigError`` when the comment is there but damaged."""
    words: dict[str, str] = {}
    carried: dict[str, Any] = {}
    for content in _LINE.findall(text):
        if content.startswith("{"):
            carried.update(_json(content))
            continue
        for word in content.split():
            key, sign, value = word.partition("=")
            if not sign or key not in _WORDS or not value:
                raise ConfigError(
                    f"shardwise header: {word!r} is not one of {', '.join(w + '=...' for w in _WORDS)}",
                    field="header",
                )
            words[key] = value
    for key, value in words.items():
        # Names only: a comment must not make us open files.
        if not _NAME.fullmatch(value) or value.endswith((".json", ".yaml", ".yml")):
            raise ConfigError(f"shardwise header: {key}={value[:60]} is not a catalog name", field=key)
    inline = carried.pop("cluster", None)
    if inline is not None and not isinstance(inline, dict):
        raise ConfigError("shardwise header: cluster must be an object or a short name", field="cluster")
    if not isinstance(carried.get("model", {}), dict):
        raise ConfigError("shardwise header: model must be an object of model fields", field="model")
    return Header(words.get("framework"), words.get("cluster", inline), words.get("model"), carried)


def _json(content: str) -> dict[str, Any]:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as err:
        raise ConfigError(f"shardwise header: not valid JSON ({err})", field="header") from err
    if not isinstance(data, dict):
        raise ConfigError("shardwise header: the JSON must be one object", field="header")
    return data
