"""The consoles: results on stdout, progress and notes on stderr."""

from __future__ import annotations

import os
import sys

from rich.console import Console, RenderableType
from rich.text import Text

PIPED_WIDTH = 100
"""Columns when nobody says how wide the reader is."""


def console(*, stderr: bool = False) -> Console:
    """A console that colours only a terminal (and obeys ``NO_COLOR``), of bounded width."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else PIPED_WIDTH
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def show(*parts: RenderableType) -> None:
    """Print the parts to stdout, without trailing blanks when it is not a terminal.

    Text that must not be broken (:func:`whole`) may run past the page.
    """
    out = console()
    if out.is_terminal:
        for part in parts:
            out.print(part, crop=False)
        return
    with out.capture() as captured:
        for part in parts:
            out.print(part, crop=False)
    sys.stdout.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def whole(text: str, style: str = "") -> Text:
    """Text to be copied, a command or a path: never wrapped, never cut."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def note(text: str) -> None:
    """One line for people on stderr."""
    console(stderr=True).print(text, style="dim", soft_wrap=True)
