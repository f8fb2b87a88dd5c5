"""Orders of schedules that run the gradients of inputs (``I``) and of weights (``W``) apart.

ZB1P and ZB-V: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241; DualPipeV: the V-shaped
variant of DeepSeek's DualPipe, arXiv 2412.19437. In the order of ``torch.distributed.pipelining.schedules``,
which torchtitan runs. ZB-V and DualPipeV place chunks in a V: rank ``r`` holds virtual stages ``r`` and
``2*pp - 1 - r``, so that the first rank holds both ends of the model.
"""

from __future__ import annotations

from collections import Counter

from shardwise.engine.schedule.actions import Action, Kind


def zb1p(pp: int, vpp: int, m: int, rank: int) -> tuple[Action, ...]:
    """ZB1P, interleaved with ``vpp > 1``: 1F1B whose weight gradients lag behind by ``rank`` backwards.

    ``m`` is a multiple of its rounds, ``max(1, m // pp)``.
    """
    group = m // max(1, m // pp)
    count = m * vpp
    chunks = [i // group % vpp for i in range(count)]
    forwards, inputs, weights = (_Counted(kind) for kind in ("F", "I", "W"))
    warmup = min((vpp - 1) * group + pp - 1 - rank, count)
    order = [forwards.next(chunk) for chunk in chunks[:warmup]]
    for done in range(count):
        if warmup + done < count:
            order.append(forwards.next(chunks[warmup + done]))
        order.append(inputs.next(vpp - 1 - chunks[done]))
        if done >= rank:
            order.append(weights.next(vpp - 1 - chunks[done - rank]))
    late = range(max(count - rank, 0), count)
    return tuple(order + [weights.next(vpp - 1 - chunks[done]) for done in late])


def zbv(pp: int, m: int, rank: int) -> tuple[Action, ...]:
    """ZB-V. Planned for at least ``2*pp - 1`` micro-batches; those that are not there are left out."""
    planned = max(2 * pp - 1, m)
    forwards, inputs, weights = (_Counted(kind) for kind in ("F", "I", "W"))
    order = [forwards.next(0) for _ in range(2 * (pp - rank) - 1)]
    for _ in range(rank):
        order += [forwards.next(1), forwards.next(0)]
    for _ in range(pp - rank):
        order += [forwards.next(1), inputs.next(1), weights.next(1)]
    while forwards.done[1] < forwards.done[0] or forwards.done[0] < planned:
        if forwards.done[0] < planned:
            order.append(forwards.next(0))
        order += [inputs.next(0), weights.next(0), forwards.next(1), inputs.next(1), weights.next(1)]
    for _ in range(rank):
        order += [inputs.next(0), inputs.next(1)]
    for _ in range(pp - rank):
        order += [inputs.next(0), weights.next(0)]
    for chunk in (1, 0):
        order += [weights.next(chunk) for _ in range(inputs.done[chunk] - weights.done[chunk])]
    return tuple(action for action in order if action.micro_batch < m)


def dualpipev(pp: int, m: int, rank: int) -> tuple[Action, ...]:
    """DualPipeV, for ``m >= 2*pp``. A forward and the full backward that run as one have ``paired`` set."""
    forwards, inputs = _Counted("F"), _Counted("I")
    pending: list[Action] = []
    order: list[Action] = []

    def backward(chunk: int, *, apart: bool) -> None:
        action = inputs.next(chunk)
        if apart:
            pending.append(action._replace(kind="W"))
        order.append(action if apart else action._replace(kind="B"))

    def weight() -> None:
        if pending:
            order.append(pending.pop(0))

    def pair(forward_chunk: int) -> None:
        order.append(forwards.next(forward_chunk)._replace(paired=True))
        order.append(inputs.next(1 - forward_chunk)._replace(kind="B", paired=True))

    order += [forwards.next(0) for _ in range(2 * (pp - rank - 1))]
    for _ in range(rank + 1):
        order += [forwards.next(0), forwards.next(1)]
    for _ in range(pp - rank - 1):
        backward(1, apart=True)
        weight()
        order.append(forwards.next(1))
    for i in range(m - 2 * pp + rank + 1):
        if i == 0 and rank == pp - 1:
            # Where the V turns nothing is there to overlap with yet.
            order.append(forwards.next(0))
            backward(1, apart=False)
        else:
            pair(0)
        pair(1)
    for _ in range(pp - rank - 1):
        backward(1, apart=False)
        pair(1)
    # The second half of what is left runs apart, so that weight gradients fill the end.
    half = (rank + 1) // 2
    for i in range(rank + 1):
        backward(1, apart=i > half or (i == half and rank % 2 == 1))
        backward(0, apart=i >= half)
    for _ in range(pp - rank - 1):
        weight()
        backward(0, apart=True)
    while pending:
        weight()
    return tuple(order)


class _Counted:
    """Actions of one kind, the micro-batches of each chunk in order."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.done: Counter[int] = Counter()

    def next(self, chunk: int) -> Action:
        self.done[chunk] += 1
        return Action(self.kind, self.done[chunk] - 1, chunk)
