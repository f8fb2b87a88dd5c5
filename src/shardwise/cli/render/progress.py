"""Progress on stderr: a bar on a terminal, silence anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from shardwise.cli.render.console import console

Step = Callable[[int, int | None], None]
"""Called with how many are done and, where it is known, how many there are in all."""


@contextmanager
def stepper(what: str, *, quiet: bool = False) -> Iterator[Step]:
    """A progress bar for as long as the block runs; gives the function that moves it."""
    out = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = quiet or not out.is_terminal
    with Progress(*columns, console=out, transient=True, disable=hidden) as progress:
        task = progress.add_task(what, total=None)

        def step(done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total)

        yield step


@dataclass(slots=True)
class Tally:
    """A search so far, in one line."""

    scored: int = 0
    rejected: int = 0
    best: float = 0.0
    """Most tokens/s/GPU of a recipe that fits."""

    def add(self, event: Any) -> None:
        """Count one event of the trace."""
        kind = getattr(event, "kind", "")
        if kind == "projection":
            self.scored += 1
            if event.figures.get("fits"):
                self.best = max(self.best, float(event.figures.get("tokens_per_s_per_gpu") or 0.0))
        elif kind == "rejection":
            self.rejected += 1

    def line(self) -> str:
        """What the terminal shows."""
        best = f"best {self.best:,.0f} tokens/s/GPU" if self.best else "nothing that fits yet"
        return f"{self.scored} scored, {self.rejected} rejected, {best}"


@contextmanager
def tuning(*, quiet: bool = False) -> Iterator[Callable[[Any], None]]:
    """A live line for a search: trials so far and the best of them; gives the event listener."""
    out = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    hidden = quiet or not out.is_terminal
    with Progress(*columns, console=out, transient=True, disable=hidden) as progress:
        task = progress.add_task("planning", total=None)
        tally = Tally()

        def listen(event: Any) -> None:
            tally.add(event)
            progress.update(task, description=tally.line())

        yield listen
