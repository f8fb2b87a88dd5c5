"""What every framework format answers to: the values that cross this package's border, and the protocol.

A format owns two directions: writing a recipe in the framework's own words, and reading those words
back into the mapping that ``load_recipe`` takes. Both are pure text work: nothing is executed and no
environment is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shardwise.engine.catalog.documents import read_text
from shardwise.engine.cluster import Cluster
from shardwise.engine.model import Model
from shardwise.engine.recipe import Recipe

MAX_SOURCE_BYTES = 1_000_000
"""Largest configuration that is read; real ones are a few kilobytes."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A recipe in a framework's own words."""

    framework: str
    filename: str
    """Suggested file name."""
    text: str
    """The whole file."""
    launch: str
    """The command that starts it, run once per node unless the launcher does that itself."""
    env: dict[str, str]
    """Environment variables the recipe needs; the launch line or the file sets them too."""
    cannot_say: tuple[str, ...]
    """Recipe fields (``model.x`` for a model's) that the format has no words for. The file's header
    carries them, so reading it back is exact, but the framework will not honour them."""
    notes: tuple[str, ...] = ()
    """What a person should know before launching, one line each."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A framework's configuration as a recipe."""

    framework: str
    recipe: dict[str, Any]
    """What ``load_recipe`` takes: every field the file or the framework's defaults decide."""
    unknown: dict[str, Any]
    """Keys of the file that no recipe field stands for, with their values."""
    notes: tuple[str, ...] = ()
    """What was rewritten, assumed or cannot be represented, one line each."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a format writes."""

    text: str
    launch: str
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class Hints:
    """What is known beside the file: the caller's words first, then our own header's."""

    model: str | Mapping[str, Any] | Path | Model | None = None
    """The caller's model; it wins over the file."""
    cluster: str | Mapping[str, Any] | Path | Cluster | None = None
    header_model: str | None = None
    carried: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the format cannot say, from our own header."""


@dataclass(frozen=True, slots=True)
class Read:
    """What a format reads: recipe fields, what it did not understand, and remarks."""

    fields: dict[str, Any]
    unknown: dict[str, Any]
    notes: tuple[str, ...]


class Framework(Protocol):
    """One training framework's configuration format."""

    @property
    def name(self) -> str:
        """Its name on the command line, e.g. ``megatron-lm``."""

    def filename(self, recipe: Recipe) -> str:
        """The name to suggest for the file."""

    def recognises(self, text: str) -> bool:
        """Whether ``text`` looks like this format."""

    def write(self, recipe: Recipe, header: str) -> Written:
        """``recipe`` in the framework's words, below ``header`` (comment lines)."""

    def read(self, text: str, path: Path | None, hints: Hints) -> Read:
        """The recipe in ``text``. Raises ``ConfigError`` when it cannot be one."""


def slug(name: str) -> str:
    """``name`` reduced to what is safe in a file name, a shell word and a YAML scalar."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name).strip("-.")
    return kept[:80] or "model"


def read_source(path: Path) -> str:
    """The text of a configuration file, bounded and UTF-8. Raises :class:`ConfigError`."""
    return read_text(path, what="file", max_bytes=MAX_SOURCE_BYTES)
