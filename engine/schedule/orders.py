"""What each pipeline rank does, in which order: GPipe, 1F1B, interleaved 1F1B, and those of
:mod:`~shardwise.engine.schedule.split_backward`.

Words: ``rank`` is the pipeline rank (0 holds the first layers), ``chunk`` the model chunk on that rank
(0 .. vpp-1; chunk ``c`` of rank ``r`` is global virtual stage ``c*pp + r``), ``m`` the number of
micro-batches per step and pipeline.

Sources: GPipe (arXiv 1811.06965); 1F1B, "PipeDream-Flush" (arXiv 2006.09503); interleaved 1F1B (arXiv
2104.04473, section 2.2) in the order of Megatron-Core, whose ``microbatch_group_size_per_vp_stage``
defaults to the pipeline size.
"""

from __future__ import annotations

from shardwise.engine.errors import ConfigError
from shardwise.engine.recipe import SCHEDULES, V_SHAPED
from shardwise.engine.schedule.actions import Action
from shardwise.engine.schedule.split_backward import dualpipev, zb1p, zbv


def instruction_order(schedule: str, pp: int, vpp: int, m: int, rank: int) -> tuple[Action, ...]:
    """The actions of one rank in execution order: each forward, each backward once, whole or in two.

    ``schedule`` is a word of :data:`shardwise.engine.recipe.SCHEDULES`; ``vpp > 1`` makes 1F1B interleaved.
    Raises :class:`ConfigError` for an unknown word, a size below 1, a rank outside the pipeline, GPipe with
    several chunks (no framework runs that), a V-shaped schedule without two, and an ``m`` that the schedule
    cannot run: for interleaved 1F1B above ``pp`` without being a multiple of it (its last, smaller group can
    deadlock; Megatron-Core refuses it), for ZB1P no multiple of its rounds, for DualPipeV below ``2*pp``.
    """
    if schedule not in SCHEDULES:
        raise ConfigError(
            f"pp_schedule = {schedule!r}: allowed are {', '.join(SCHEDULES)}", field="pp_schedule"
        )
    for name, size in (("pp", pp), ("vpp", vpp), ("num_microbatches", m)):
        if size < 1:
            raise ConfigError(f"{name} = {size}: must be at least 1", field=name)
    if not 0 <= rank < pp:
        raise ConfigError(f"rank = {rank}: must be in 0 .. {pp - 1} (pp={pp})", field="rank")
    if schedule == "gpipe":
        if vpp > 1:
            raise ConfigError(f"vpp = {vpp}: GPipe runs one chunk per rank; nearest: vpp=1", field="vpp")
        return _merge(_forwards(pp, 1, m), _backwards(pp, 1, m), warmup=m)
    if schedule in V_SHAPED:
        if vpp != 2:
            raise ConfigError(f"vpp = {vpp}: {schedule} runs two chunks a rank; nearest: vpp=2", field="vpp")
        if schedule == "zbv":
            return zbv(pp, m, rank)
        if m < 2 * pp:
            raise ConfigError(
                f"num_microbatches = {m}: dualpipev needs at least 2*pp = {2 * pp}", field="num_microbatches"
            )
        return dualpipev(pp, m, rank)
    if schedule == "zb1p":
        rounds = max(1, m // pp)
        if m % rounds:
            raise ConfigError(
                f"num_microbatches = {m}: zb1p needs a multiple of its {rounds} rounds; "
                f"nearest: {m - m % rounds}",
                field="num_microbatches",
            )
        return zb1p(pp, vpp, m, rank)
    if vpp > 1 and m > pp and m % pp:
        raise ConfigError(
            f"num_microbatches = {m}: with vpp={vpp} it must be a multiple of pp={pp}; "
            f"nearest: {m - m % pp}, {m - m % pp + pp}",
            field="num_microbatches",
        )
    return _merge(_forwards(pp, vpp, m), _backwards(pp, vpp, m), warmup=warmup_forwards(pp, vpp, m, rank))


def warmup_forwards(pp: int, vpp: int, m: int, rank: int) -> int:
    """Forward chunks a rank runs before its first forward/backward pair (Megatron-Core's rule).

    An interleaved schedule with fewer micro-batches than stages runs all its forwards first.
    """
    if vpp > 1 and m < pp:
        return m * vpp
    wanted = pp - rank - 1 if vpp == 1 else 2 * (pp - rank - 1) + (vpp - 1) * pp
    return min(wanted, m * vpp)


def _merge(forwards: list[Action], backwards: list[Action], *, warmup: int) -> tuple[Action, ...]:
    """Warm-up forwards, then one forward and one backward in turn, then the remaining backwards."""
    order = forwards[:warmup]
    steady = len(forwards) - warmup
    for forward, backward in zip(forwards[warmup:], backwards[:steady], strict=True):
        order += (forward, backward)
    return tuple(order + backwards[steady:])


def _forwards(pp: int, vpp: int, m: int) -> list[Action]:
    """Groups of ``pp`` micro-batches; a group runs through all chunks before the next group starts."""
    return [
        Action("F", batch, chunk)
        for start in range(0, m, pp)
        for chunk in range(vpp)
        for batch in range(start, min(start + pp, m))
    ]


def _backwards(pp: int, vpp: int, m: int) -> list[Action]:
    """As the forwards, with the chunks from last to first."""
    return [Action("B", action.micro_batch, vpp - 1 - action.chunk) for action in _forwards(pp, vpp, m)]
