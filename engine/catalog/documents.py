"""Reading YAML and JSON documents that somebody else wrote: safe loader, bounded, one-line errors."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from shardwise.engine.errors import ConfigError

MAX_BYTES = 5_000_000
"""Largest document accepted, bytes."""
MAX_NODES = 200_000
"""Most values in one document, aliases counted each time they are used (an alias bomb ends here)."""
MAX_DEPTH = 64
"""Deepest nesting of mappings and lists."""

_TOO_DEEP = f"nested too deeply (at most {MAX_DEPTH} levels)"

STDIN = "-"

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """The safe loader, with YAML 1.2 floats (``450e9`` is a number) and no duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value!r} appears twice", key.start_mark
                    )
                seen.add(key.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d[\d_]*(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_text(path: str | Path, *, what: str = "file", max_bytes: int = MAX_BYTES) -> str:
    """The text of ``path`` (``-`` for standard input), UTF-8, at most ``max_bytes`` long.

    Raises :class:`ConfigError` when it is missing, unreadable, too long or not text.
    """
    if str(path) == STDIN:
        raw = sys.stdin.buffer.read(max_bytes + 1)
    else:
        try:
            with open(path, "rb") as file:
                raw = file.read(max_bytes + 1)
        except (OSError, ValueError) as err:
            reason = getattr(err, "strerror", None) or str(err)
            raise ConfigError(f"{what} {str(path)!r}: cannot be read ({reason})", field=what) from err
    if len(raw) > max_bytes:
        raise ConfigError(f"{what} {str(path)!r}: larger than the {max_bytes:,} bytes allowed", field=what)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise ConfigError(f"{what} {str(path)!r}: not UTF-8 text (byte {err.start})", field=what) from err


def parse_mapping(text: str, *, where: str, json_only: bool = False) -> dict[str, Any]:
    """The mapping that ``text`` holds, bounded in size and depth: YAML or JSON, or JSON alone.

    Raises :class:`ConfigError` with the line of the first fault; ``where`` names the document.
    """
    data = _parse(text, where, json_only)
    if not isinstance(data, Mapping):
        got = "nothing" if data is None else f"a {type(data).__name__}"
        raise ConfigError(f"{where}: needs a mapping of fields to values, got {got}", field=where)
    _bound(data, where)
    return dict(data)


def read_mapping(path: str | Path, *, what: str = "file", max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The mapping in the YAML or JSON file ``path`` (``-`` for standard input)."""
    text = read_text(path, what=what, max_bytes=max_bytes)
    where = "standard input" if str(path) == STDIN else str(path)
    return parse_mapping(text, where=where, json_only=where.lower().endswith(".json"))


def _parse(text: str, where: str, json_only: bool) -> Any:
    if json_only:
        return _parse_json(text, where)
    if text.lstrip()[:1] != "{":
        return _parse_yaml(text, where)
    # A brace begins a JSON object or a YAML flow mapping: broken only if it is neither.
    try:
        return _parse_json(text, where)
    except ConfigError as json_fault:
        try:
            return _parse_yaml(text, where)
        except ConfigError:
            raise json_fault from None


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as err:
        raise ConfigError(f"{where}: broken JSON, line {err.lineno}: {err.msg}", field=where) from err
    except RecursionError as err:
        raise ConfigError(f"{where}: {_TOO_DEEP}", field=where) from err
    except ValueError as err:
        raise ConfigError(f"{where}: broken JSON: {_flat(err)}", field=where) from err


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        at = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(err, "problem", None) or err
        raise ConfigError(f"{where}: broken YAML{at}: {_flat(problem)}", field=where) from err
    except RecursionError as err:
        raise ConfigError(f"{where}: {_TOO_DEEP}", field=where) from err
    except (ValueError, TypeError, OverflowError, LookupError, AttributeError) as err:
        # The safe constructors raise these for impossible dates and numbers, for unhashable keys, and for
        # a tag that its value does not fit (``!!bool x``).
        raise ConfigError(f"{where}: broken YAML: {_flat(err)}", field=where) from err


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {key!r} appears twice")
        result[key] = value
    return result


def _flat(message: object) -> str:
    return " ".join(str(message).split())[:200]


def _bound(data: Any, where: str) -> None:
    """Refuse documents whose values are too many or too deep, and keys that are not text."""
    nodes = 0
    stack: list[tuple[Any, int]] = [(data, 1)]
    while stack:
        value, depth = stack.pop()
        nodes += 1
        if nodes > MAX_NODES:
            raise ConfigError(f"{where}: more than the {MAX_NODES:,} values allowed", field=where)
        if not isinstance(value, (Mapping, list, tuple, set)):
            continue
        if depth > MAX_DEPTH:
            raise ConfigError(f"{where}: {_TOO_DEEP}", field=where)
        if isinstance(value, Mapping):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ConfigError(f"{where}: key {key!r} is not text (quote it)", field=where)
                stack.append((item, depth + 1))
        else:
            stack.extend((item, depth + 1) for item in value)
