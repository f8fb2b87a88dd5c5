"""Progress on stderr: a bar on a terminal, silence anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def tuning(*, quiet: bool = False) -> Iterator[Callable[[Any], None]]:
    """A live line for a search: trials so far and the best of them; gives the event listener."""
    out = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    hidden = quiet or not out.is_terminal
    with Progress(*columns, console=out, transient=True, disable=hidden) as progress:
        task = progress.add_task("planning", total=None)
        seen = {"trials": 0, "rejected": 0, "best": 0.0}

        def listen(event: Any) -> None:
            kind = getattr(event, "kind", "")
            if kind == "projection":
                seen["trials"] += 1
                seen["best"] = max(seen["best"], float(event.figures.get("tokens_per_s_per_gpu") or 0.0))
            elif kind == "rejection":
                seen["rejected"] += 1
            progress.update(
                task,
                description=f"{seen['trials']:.0f} scored, {seen['rejected']:.0f} rejected, "
                f"best {seen['best']:,.0f} tokens/s/GPU",
            )

        yield listen
