"""What ``shardwise trace`` says."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text


def told(lines: Iterable[str]) -> Text:
    """A run's story, one line each; headings (lines that start at the margin) stand out."""
    text = Text()
    for line in lines:
        text.append(line + "\n", style="" if line.startswith(" ") else "bold")
    text.right_crop(1)
    return text


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
