"""What ``shardwise trace`` says."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text


def told(lines: Iterable[str]) -> Group:
    """A run's story; long lines go on below themselves, and what starts at the margin stands out."""
    parts: list[RenderableType] = []
    for line in lines:
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        parts.append(Padding(Text(text, style="" if indent else "bold"), (0, 0, 0, indent)))
    return Group(*parts)


def verified(intact: bool, events: int, problem: str | None) -> Text:
    """Whether the chain holds."""
    if intact:
        return Text.assemble(("intact", "bold green"), f": {events} events, the hash chain holds")
    return Text.assemble(("not intact", "bold red"), f": {problem} ({events} events read)")


def replayed(equal: bool, steps: int, difference: str | None) -> Text:
    """Whether the run came out the same again."""
    if equal:
        return Text.assemble(("equal", "bold green"), f": {steps} steps replayed, no difference")
    return Text.assemble(("differs", "bold red"), f" after {steps} steps: {difference}")


def compared(difference: str | None) -> Text:
    """Whether two traces tell the same run."""
    if difference is None:
        return Text.assemble(("equal", "bold green"), ": the same run, clocks and names aside")
    return Text.assemble(("differs", "bold red"), f": {difference}")
