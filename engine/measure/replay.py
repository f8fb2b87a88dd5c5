"""The passes of one rank in its schedule's order, and what is alive in each."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from shardwise.engine.schedule.actions import Action

REAL = 2
"""Micro-batches that are run. Later ones have the same shapes, so the second stands for them."""


class Gauge(Protocol):
    """Bytes alive: counted by a dispatch mode, or the device's allocator's own figures."""

    @property
    def now(self) -> int: ...
    @property
    def peak(self) -> int: ...
    @property
    def where(self) -> str: ...
    def restart(self) -> None: ...
    def book(self, size: int, peak: int = 0) -> None: ...


class Passes(Protocol):
    """What a rank does."""

    def forward(self, chunk: int) -> tuple[Any, int]:
        """Run a chunk; gives what its backward needs, and the bytes of it that logits and loss left."""
        ...

    def backward(self, chunk: int, held: Any) -> None:
        """Run its backward."""
        ...


@dataclass(frozen=True, slots=True)
class Peak:
    """When most was alive, in bytes above what was alive before the first pass."""

    activations: int
    """Saved by layers, of all micro-batches in flight."""
    temporary: int
    """All else."""
    moment: str
    """The pass, e.g. ``backward of micro-batch 3, chunk 0, in SwiGLUFunctionBackward``."""
    forward: int
    """The most of any forward pass."""
    backward: int
    """The most of any backward pass."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one pass did, relative to its start."""

    change: int
    peak: int
    of_loss: int
    where: str


def replay(passes: Passes, order: Iterable[Action], gauge: Gauge, *, real: int = REAL) -> Peak:
    """Run ``order``: the first ``real`` micro-batches of each chunk, the later ones as the last of those."""
    start = gauge.now
    held: dict[tuple[int, int], Any] = {}
    of_loss: dict[tuple[int, int], int] = {}
    seen: dict[tuple[str, int], _Pass] = {}
    most = {"F": 0, "B": 0}
    best, saved, moment = -1, 0, ""
    for action in order:
        key = (action.micro_batch, action.chunk)
        before = gauge.now - start
        gauge.restart()
        if action.micro_batch < real:
            left = 0
            if action.kind == "F":
                held[key], left = passes.forward(action.chunk)
            else:
                passes.backward(action.chunk, held.pop(key))
            gc.collect()  # graphs that hold themselves go at no moment of their own
            done = _Pass(gauge.now - start - before, gauge.peak - start - before, left, gauge.where)
            seen[action.kind, action.chunk] = done
        else:
            done = seen[action.kind, action.chunk]
            # What a forward pass left goes with its backward, whatever else either made for good.
            came = seen["F", action.chunk].change
            gauge.book(came if action.kind == "F" else -came, done.peak)
        peak = before + done.peak
        most[action.kind] = max(most[action.kind], peak)
        if action.kind == "F":
            of_loss[key] = done.of_loss
            alive = gauge.now - start - done.of_loss
        else:
            alive = before - of_loss.pop(key)
        if peak > best:
            best, saved = peak, alive
            name = "forward" if action.kind == "F" else "backward"
            moment = f"{name} of micro-batch {action.micro_batch}, chunk {action.chunk}, in {done.where}"
    return Peak(saved, best - saved, moment, most["F"], most["B"])
