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


def parse_mapping(text: str, *, where: str) -> dict[str, Any]:
    """The mapping that ``text`` (YAML or JSON) holds, bounded in size and depth.

    Raises :class:`ConfigError` with the line of the first fault; ``where`` names the document.
    """
    data = _parse(text, where)
    if not isinstance(data, Mapping):
        got = "nothing" if data is None else f"a {type(data).__name__}"
        raise ConfigError(f"{where}: needs a mapping of fields to values, got {got}", field=where)
    _bound(data, where)
    return dict(data)


def read_mapping(path: str | Path, *, what: str = "file", max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The mapping in the YAML or JSON file ``path`` (``-`` for standard input)."""
    text = read_text(path, what=what, max_bytes=max_bytes)
    return parse_mapping(text, where="standard input" if str(path) == STDIN else str(path))


def _parse(text: str, where: str) -> Any:
    if text.lstrip()[:1] == "{":
        try:
            return json.loads(text, object_pairs_hook=_unique)
        except _TwiceError as err:
            raise ConfigError(f"{where}: {err}", field=where) from err
        except ValueError as err:
            # A YAML flow mapping also starts with a brace; only if YAML cannot read it either is it broken.
            json_fault = (
                f"line {err.lineno}: {err.msg}" if isinstance(err, json.JSONDecodeError) else str(err)
            )
        except RecursionError as err:
            raise ConfigError(
                f"{where}: nested too deeply (at most {MAX_DEPTH} levels)", field=where
            ) from err
    else:
        json_fault = ""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as err:
        raise ConfigError(f"{where}: broken {_fault(err, json_fault)}", field=where) from err
    except RecursionError as err:
        raise ConfigError(f"{where}: nested too deeply (at most {MAX_DEPTH} levels)", field=where) from err
    except (ValueError, TypeError, OverflowError) as err:
        # The safe constructors raise these for impossible dates and numbers, and for unhashable keys.
        raise ConfigError(f"{where}: broken YAML ({_flat(err)})", field=where) from err


class _TwiceError(ValueError):
    """A JSON object names the same key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _TwiceError(f"key {key!r} appears twice")
        result[key] = value
    return result


def _fault(err: yaml.YAMLError, json_fault: str) -> str:
    if json_fault:
        return f"JSON, {json_fault}"
    mark = getattr(err, "problem_mark", None)
    problem = getattr(err, "problem", None) or _flat(err)
    at = f", line {mark.line + 1}" if mark is not None else ""
    return f"YAML{at}: {_flat(problem)}"


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
            raise ConfigError(f"{where}: nested too deeply (at most {MAX_DEPTH} levels)", field=where)
        if isinstance(value, Mapping):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ConfigError(f"{where}: key {key!r} is not text (quote it)", field=where)
                stack.append((item, depth + 1))
        else:
            stack.extend((item, depth + 1) for item in value)
