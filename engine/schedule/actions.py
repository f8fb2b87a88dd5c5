"""What a pipeline rank can do."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["F", "B", "I", "W"]
"""Forward, whole backward, its gradients of inputs, its gradients of weights."""


class Action(NamedTuple):
    """One pass of one micro-batch through one model chunk."""

    kind: Kind
    micro_batch: int
    chunk: int
    paired: bool = False
    """Whether it runs as one with its neighbour: a forward with the backward behind it."""


def virtual_stage(pp: int, rank: int, chunk: int, *, v_shaped: bool) -> int:
    """Place in the model of a rank's chunk: in rounds over the ranks, or there and back in a V."""
    return 2 * pp - 1 - rank if v_shaped and chunk == 1 else chunk * pp + rank
