"""Runs the instruction orders as events: when each action starts and ends on each rank.

A rank does one thing at a time, in its order. An action waits for its data: a forward for the previous
virtual stage's forward, a backward (or its gradients of inputs) for the next virtual stage's (the last one
for its own forward); gradients of weights wait for nothing but their turn. A pair starts when both its
halves can and ends as one. Data that crosses ranks takes the p2p time of that crossing; transfers occupy no
rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwise.engine.errors import ConfigError
from shardwise.engine.recipe import V_SHAPED
from shardwise.engine.schedule.actions import Action, virtual_stage
from shardwise.engine.schedule.orders import instruction_order
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
    """(pp,) peak of chunk forwards whose backward, gradients of weights included, has not ended yet."""

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
    *,
    weight_s: npt.ArrayLike | None = None,
) -> Timeline:
    """Simulate one step of ``m`` micro-batches.

    ``forward_s`` and ``backward_s`` are (pp, vpp) seconds per chunk and micro-batch; ``p2p_s`` is one
    number or (pp,) seconds, entry ``r`` for the crossing between rank ``r`` and rank ``(r+1) % pp`` in
    either direction; ``weight_s``: the part of ``backward_s`` that gradients of weights take, by default
    half. Raises :class:`ConfigError` when shapes do not fit or a time is negative.
    """
    forward, backward = np.asarray(forward_s, float), np.asarray(backward_s, float)
    if forward.ndim != 2 or forward.shape != backward.shape:
        raise ConfigError(
            f"forward_s {forward.shape} and backward_s {backward.shape} must be equal (pp, vpp) shapes",
            field="forward_s",
        )
    pp, vpp = forward.shape
    weight = np.broadcast_to(backward / 2 if weight_s is None else np.asarray(weight_s, float), (pp, vpp))
    p2p = np.broadcast_to(np.asarray(p2p_s, float), (pp,))
    if min(forward.min(), (backward - weight).min(), weight.min(), p2p.min()) < 0:
        raise ConfigError("times must not be negative", field="forward_s")
    orders = [instruction_order(schedule, pp, vpp, m, rank) for rank in range(pp)]
    seconds = {"F": forward, "B": backward, "I": backward - weight, "W": weight}
    return _timeline(_Run(orders, seconds, p2p, v_shaped=schedule in V_SHAPED).spans(), pp)


class _Run:
    """Lets every rank go as far as its data allow, round after round."""

    def __init__(
        self,
        orders: list[tuple[Action, ...]],
        seconds: dict[str, Floats],
        p2p: Floats,
        *,
        v_shaped: bool,
    ) -> None:
        self.orders, self.seconds, self.p2p, self.v_shaped = orders, seconds, p2p, v_shaped
        self.pp, self.vpp = seconds["F"].shape
        self.ended: dict[tuple[str, int, int], float] = {}
        """When forwards (``F``) and gradients of inputs (``B``) of a micro-batch and virtual stage ended."""

    def spans(self) -> list[list[Span]]:
        """The spans per rank."""
        clock = [0.0] * self.pp
        spans: list[list[Span]] = [[] for _ in range(self.pp)]
        left = sum(len(order) for order in self.orders)
        while left:
            before = left
            for rank, order in enumerate(self.orders):
                while len(spans[rank]) < len(order):
                    at = len(spans[rank])
                    unit = order[at : at + (2 if order[at].paired else 1)]
                    ready = [self._ready(action, rank) for action in unit]
                    if any(when is None for when in ready):
                        break
                    start = max(clock[rank], *(when for when in ready if when is not None))
                    for action in unit:
                        clock[rank] = start + float(self.seconds[action.kind][rank, action.chunk])
                        spans[rank].append(Span(rank, action, start, clock[rank]))
                        start = clock[rank]
                    for action in unit:
                        self._done(action, rank, clock[rank])
                    left -= len(unit)
            assert left < before, "the schedule deadlocks: every rank waits for data of another"
        return spans

    def _stage(self, action: Action, rank: int) -> int:
        return virtual_stage(self.pp, rank, action.chunk, v_shaped=self.v_shaped)

    def _done(self, action: Action, rank: int, when: float) -> None:
        if action.kind != "W":
            kind = "F" if action.kind == "F" else "B"
            self.ended[kind, action.micro_batch, self._stage(action, rank)] = when

    def _ready(self, action: Action, rank: int) -> float | None:
        """When the input of ``action`` is there; None when it is not produced yet."""
        stage, batch = self._stage(action, rank), action.micro_batch
        if action.kind == "W" or (action.kind == "F" and stage == 0):
            return 0.0
        if action.kind == "F":
            return self._arrival("F", batch, stage - 1, stage - 1)
        if stage == self.pp * self.vpp - 1:
            return self.ended.get(("F", batch, stage))
        return self._arrival("B", batch, stage + 1, stage)

    def _arrival(self, kind: str, batch: int, source: int, lower: int) -> float | None:
        """When what ``source`` made is here; ``lower``: the smaller stage of the two."""
        done = self.ended.get((kind, batch, source))
        if done is None or self.pp == 1:
            return done
        if self.v_shaped:
            # Where the V turns both stages are on one rank.
            rank = min(lower, 2 * self.pp - 2 - lower)
            return done if lower == self.pp - 1 else done + float(self.p2p[rank])
        return done + float(self.p2p[lower % self.pp])


def _timeline(spans: list[list[Span]], pp: int) -> Timeline:
    busy, peak = np.zeros(pp), np.zeros(pp, dtype=np.int64)
    for rank, own in enumerate(spans):
        busy[rank] = sum(span.end_s - span.start_s for span in own)
        peak[rank] = held([span.action for span in own])
    makespan = max(own[-1].end_s for own in spans)
    return Timeline(tuple(tuple(own) for own in spans), makespan, busy, peak)


def held(order: Sequence[Action]) -> int:
    """Most chunk forwards whose backward, gradients of weights included, has not run yet, along ``order``.

    What lies between the two halves of a backward is counted whole: the inputs of linears and the gradients
    of their outputs stay, most of what a layer saves.
    """
    steps = np.cumsum([{"F": 1, "I": 0, "B": -1, "W": -1}[action.kind] for action in order])
    return int(steps.max())
