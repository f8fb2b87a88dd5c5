"""Runs the instruction orders as events: when each action starts and ends on each rank.

A rank does one thing at a time, in its order. An action waits for its data: a forward for the previous
virtual stage's forward, a backward for the next virtual stage's backward (the last one for its own
forward). Data that crosses ranks takes the p2p time of that crossing; transfers occupy no rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwise.engine.errors import ConfigError
from shardwise.engine.schedule.orders import Action, instruction_order
from shardwise.engine.table import Floats, Ints


class Span(NamedTuple):
    """One executed action: seconds from the start of the step."""

    rank: int
    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """One simulated step of the pipeline."""

    spans: tuple[tuple[Span, ...], ...]
    """Per rank, in execution order."""
    makespan_s: float
    """From the first start to the last end over all ranks, seconds."""
    busy_s: Floats
    """(pp,) seconds each rank computes."""
    in_flight: Ints
    """(pp,) peak of chunk forwards whose backward has not ended yet, per rank."""

    @property
    def bubble_s(self) -> float:
        """Idle seconds of the busiest rank."""
        return self.makespan_s - float(self.busy_s.max())

    @property
    def bubble_fraction(self) -> float:
        """``bubble_s`` over the makespan; 0 for an empty step."""
        return self.bubble_s / self.makespan_s if self.makespan_s else 0.0


def simulate(
    schedule: str,
    m: int,
    forward_s: npt.ArrayLike,
    backward_s: npt.ArrayLike,
    p2p_s: npt.ArrayLike = 0.0,
) -> Timeline:
    """Simulate one step of ``m`` micro-batches.

    ``forward_s`` and ``backward_s`` are (pp, vpp) seconds per chunk and micro-batch; ``p2p_s`` is one
    number or (pp,) seconds, entry ``r`` for the crossing between rank ``r`` and rank ``(r+1) % pp`` in
    either direction. Raises :class:`ConfigError` when shapes do not fit or a time is negative.
    """
    forward, backward = np.asarray(forward_s, float), np.asarray(backward_s, float)
    if forward.ndim != 2 or forward.shape != backward.shape:
        raise ConfigError(
            f"forward_s {forward.shape} and backward_s {backward.shape} must be equal (pp, vpp) shapes",
            field="forward_s",
        )
    pp, vpp = forward.shape
    p2p = np.broadcast_to(np.asarray(p2p_s, float), (pp,))
    if min(forward.min(), backward.min(), p2p.min()) < 0:
        raise ConfigError("times must not be negative", field="forward_s")
    orders = [instruction_order(schedule, pp, vpp, m, rank) for rank in range(pp)]
    return _timeline(_run(orders, forward, backward, p2p), pp)


def _run(
    orders: list[tuple[Action, ...]], forward: Floats, backward: Floats, p2p: Floats
) -> list[list[Span]]:
    """List the spans per rank by letting every rank go as far as its data allow, round after round."""
    pp, vpp = forward.shape
    ended: dict[tuple[str, int, int], float] = {}
    clock = [0.0] * pp
    spans: list[list[Span]] = [[] for _ in range(pp)]
    left = sum(len(order) for order in orders)
    while left:
        before = left
        for rank, order in enumerate(orders):
            while len(spans[rank]) < len(order):
                action = order[len(spans[rank])]
                stage = action.chunk * pp + rank
                ready = _data_ready(action, stage, pp * vpp, ended, p2p, pp)
                if ready is None:
                    break
                seconds = (forward if action.kind == "F" else backward)[rank, action.chunk]
                start = max(clock[rank], ready)
                clock[rank] = start + float(seconds)
                ended[action.kind, action.micro_batch, stage] = clock[rank]
                spans[rank].append(Span(rank, action, start, clock[rank]))
                left -= 1
        assert left < before, "the schedule deadlocks: every rank waits for data of another"
    return spans


def _data_ready(
    action: Action, stage: int, stages: int, ended: dict[tuple[str, int, int], float], p2p: Floats, pp: int
) -> float | None:
    """When the input of ``action`` on global virtual ``stage`` is there; None when not produced yet."""
    if action.kind == "F":
        if stage == 0:
            return 0.0
        source, crossing = ("F", action.micro_batch, stage - 1), (stage - 1) % pp
    elif stage == stages - 1:
        return ended.get(("F", action.micro_batch, stage))
    else:
        source, crossing = ("B", action.micro_batch, stage + 1), stage % pp
    done = ended.get(source)
    if done is None:
        return None
    return done + (float(p2p[crossing]) if pp > 1 else 0.0)


def _timeline(spans: list[list[Span]], pp: int) -> Timeline:
    busy, peak = np.zeros(pp), np.zeros(pp, dtype=np.int64)
    for rank, own in enumerate(spans):
        busy[rank] = sum(span.end_s - span.start_s for span in own)
        steps = np.cumsum([1 if span.action.kind == "F" else -1 for span in own])
        peak[rank] = steps.max()
    makespan = max(own[-1].end_s for own in spans)
    return Timeline(tuple(tuple(own) for own in spans), makespan, busy, peak)
