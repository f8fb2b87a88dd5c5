"""Loading and filling prompt templates.

A template is a Markdown file that starts with a ``version`` line between two ``---`` lines; ``{{name}}``
marks what is filled in. A name without a value, or a value without a name, is an error: a prompt with a
hole in it is never sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

_HEAD = re.compile(r"\A---\nversion: (\d+)\n---\n", re.MULTILINE)
_HOLE = re.compile(r"\{\{([a-z_]+)\}\}")


class PromptError(ValueError):
    """A template is missing, malformed, or filled with wrong names: the program's mistake, not the user's."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One template."""

    name: str
    version: int
    text: str

    @property
    def holes(self) -> frozenset[str]:
        """Names that :meth:`fill` wants."""
        return frozenset(_HOLE.findall(self.text))

    def fill(self, **values: str) -> str:
        """The text with every ``{{name}}`` replaced. Raises :class:`PromptError` for one too few or many."""
        missing, extra = sorted(self.holes - set(values)), sorted(set(values) - self.holes)
        if missing or extra:
            wrong = f"lacks {', '.join(missing)}" if missing else f"does not know {', '.join(extra)}"
            raise PromptError(f"prompt {self.name!r} {wrong}; it has: {', '.join(sorted(self.holes))}")
        return _HOLE.sub(lambda found: values[found[1]], self.text)


@cache
def load(name: str) -> Prompt:
    """The template ``name``. Raises :class:`PromptError` when there is none or its head is malformed."""
    known = available()
    if name not in known:
        raise PromptError(f"unknown prompt {name!r} (known: {', '.join(known)})")
    text = resources.files("shardwise.prompts").joinpath(f"{name}.md").read_text("utf-8")
    head = _HEAD.match(text)
    if head is None:
        raise PromptError(f"prompt {name!r} has no version between --- lines at its top")
    return Prompt(name, int(head[1]), text[head.end() :].strip())


@cache
def available() -> tuple[str, ...]:
    """Names of all templates."""
    files = resources.files("shardwise.prompts").iterdir()
    return tuple(sorted(file.name.removesuffix(".md") for file in files if file.name.endswith(".md")))
