"""Names as people write them -> the catalog's own: normalised, then an alias table; and the data folder.

Every entry is one YAML file, named after its entry, so a lookup parses one file and no other.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

from shardwise.engine.catalog.documents import read_mapping
from shardwise.engine.errors import unknown_name

Kind = Literal["models", "gpus"]

FOLDER = Path(__file__).resolve().parent
"""Where the catalog's data lies."""

_SEPARATORS = re.compile(r"[\s_\-,:()]+")
_LEADING = {"models": {"meta"}, "gpus": {"nvidia", "amd", "instinct", "tesla", "radeon"}}
_EDITIONS = re.compile(r"instruct|base|hf|chat|it|text|bf16|fp8|v0\d|0324|2507|0905")
_TRAILING = {"models": _EDITIONS, "gpus": re.compile(r"gpu|accelerator")}
_GIGABYTES = re.compile(r"^(\d{2,3})g$")
_VERSION = re.compile(r"(?<![a-z0-9])v0\.(\d)")


def compact(kind: Kind, name: str) -> str:
    """``name`` without case, owner, separators, maker and edition.

    ``meta-llama/Llama-3.1-70B`` becomes ``llama3.170b``. Points stay, or ``qwen2.5-7b`` and
    ``qwen2-57b`` were one.
    """
    return "".join(_words(kind, name))


def _pointless(kind: Kind, name: str) -> str:
    """For names written without their point (``llama31_405b``, ``llama-3-1-405b``): family, bar, size."""
    *family, size = _words(kind, name) or [""]
    return "".join(family).replace(".", "") + "|" + size


def _words(kind: Kind, name: str) -> list[str]:
    text = _VERSION.sub(r"v0\1", name.strip().lower())
    owner, slash, rest = text.rpartition("/")
    if slash and rest and " " not in owner:
        text = rest
    words = [_GIGABYTES.sub(r"\1gb", word) for word in _SEPARATORS.split(text.replace("/", " ")) if word]
    while len(words) > 1 and words[0] in _LEADING[kind]:
        del words[0]
    while len(words) > 1 and _TRAILING[kind].fullmatch(words[-1]):
        del words[-1]
    return words


@cache
def names(kind: Kind) -> tuple[str, ...]:
    """The catalog's own names, sorted; no file is read."""
    return tuple(sorted(path.stem for path in (FOLDER / kind).glob("*.yaml")))


@cache
def spellings(kind: Kind) -> dict[str, str]:
    """Compact spelling -> catalog name, for every name and every alias."""
    table = {compact(kind, name): name for name in names(kind)}
    for name, others in _aliases()[kind].items():
        assert name in names(kind), f"aliases.yaml: {name!r} is not in the catalog"
        for other in others:
            spelling = compact(kind, other)
            assert table.setdefault(spelling, name) == name, f"aliases.yaml: {other!r} means two entries"
    return table


@cache
def _aliases() -> dict[str, dict[str, list[str]]]:
    return read_mapping(FOLDER / "aliases.yaml", what="catalog")


@cache
def _pointless_spellings(kind: Kind) -> dict[str, str]:
    """The spellings of names with a point that do without it."""
    table: dict[str, str] = {}
    for name in names(kind):
        for spelling in (name, *_aliases()[kind].get(name, ())):
            if "." in spelling:
                table.setdefault(_pointless(kind, spelling), name)
    return table


def find(kind: Kind, name: str) -> str | None:
    """The catalog name that ``name`` means, or None."""
    if name in names(kind):
        return name
    return spellings(kind).get(compact(kind, name)) or _pointless_spellings(kind).get(_pointless(kind, name))


def resolve(kind: Kind, name: str) -> str:
    """The catalog name that ``name`` means; :class:`ConfigError` with the nearest names when none."""
    found = find(kind, name)
    if found is None:
        raise unknown_name("model" if kind == "models" else "GPU", name[:80], names(kind))
    return found


def entry(kind: Kind, name: str) -> dict[str, Any]:
    """The data of the catalog entry ``name`` (its own name, not an alias)."""
    return {"name": name, **read_mapping(FOLDER / kind / f"{name}.yaml", what="catalog")}
