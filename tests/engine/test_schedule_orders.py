"""Instruction orders: their invariants, Megatron-Core's worked example, and torch's schedules."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.engine.errors import ConfigError
from shardwise.engine.recipe import V_SHAPED
from shardwise.engine.schedule.actions import Action, virtual_stage
from shardwise.engine.schedule.orders import instruction_order

CASES = [
    ("gpipe", 4, 1, 6),
    ("1f1b", 1, 1, 3),
    ("1f1b", 4, 1, 8),
    ("1f1b", 2, 2, 4),
    ("1f1b", 4, 2, 8),
    ("1f1b", 3, 4, 9),
    ("1f1b", 4, 2, 4),
    ("zb1p", 4, 1, 8),
    ("zb1p", 4, 1, 2),
    ("zb1p", 3, 2, 9),
    ("zb1p", 4, 3, 8),
    ("zbv", 2, 2, 4),
    ("zbv", 4, 2, 8),
    ("zbv", 4, 2, 3),
    ("dualpipev", 2, 2, 4),
    ("dualpipev", 4, 2, 8),
    ("dualpipev", 4, 2, 13),
    ("dualpipev", 5, 2, 16),
]


@given(
    schedule=st.sampled_from(["1f1b", "gpipe"]),
    pp=st.integers(1, 6),
    vpp=st.integers(1, 4),
    rounds=st.integers(1, 3),
    data=st.data(),
)
def test_every_chunk_of_every_micro_batch_runs_once_each_way(
    schedule: str, pp: int, vpp: int, rounds: int, data: st.DataObject
) -> None:
    vpp = 1 if schedule == "gpipe" else vpp
    m = rounds * pp
    rank = data.draw(st.integers(0, pp - 1))
    order = instruction_order(schedule, pp, vpp, m, rank)
    assert Counter(order) == Counter(Action(k, b, c) for k in "FB" for b in range(m) for c in range(vpp))  # type: ignore[arg-type]
    at = {action: i for i, action in enumerate(order)}
    assert all(at[Action("F", b, c)] < at[Action("B", b, c)] for b in range(m) for c in range(vpp))


def test_1f1b_alternates_after_the_warm_up() -> None:
    kinds = "".join(a.kind for a in instruction_order("1f1b", 4, 1, 6, 1))
    assert kinds == "FF" + "FB" * 4 + "BB"


def test_interleaved_order_runs_groups_of_pp_micro_batches_chunk_by_chunk() -> None:
    # Forwards go through the chunks up, backwards down, two micro-batches at a time.
    order = instruction_order("1f1b", 2, 2, 4, 1)
    assert [(a.micro_batch, a.chunk) for a in order if a.kind == "F"][:5] == [
        (0, 0),
        (1, 0),
        (0, 1),
        (1, 1),
        (2, 0),
    ]
    assert [(a.micro_batch, a.chunk) for a in order if a.kind == "B"][:5] == [
        (0, 1),
        (1, 1),
        (0, 0),
        (1, 0),
        (2, 1),
    ]
    assert "".join(a.kind for a in order) == "FF" + "FB" * 6 + "BB"


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("zigzag", 2, 1, 4, 0), "pp_schedule"),
        (("1f1b", 0, 1, 4, 0), "pp = 0"),
        (("1f1b", 2, 1, 0, 0), "num_microbatches = 0"),
        (("1f1b", 2, 1, 4, 2), "rank = 2"),
        (("gpipe", 2, 2, 4, 0), "vpp = 2"),
        (("1f1b", 4, 2, 6, 0), "nearest: 4, 8"),
    ],
)
def test_bad_input_is_named(args: tuple[str, int, int, int, int], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        instruction_order(*args)


@pytest.mark.parametrize(("schedule", "pp", "vpp", "m"), CASES)
def test_orders_equal_torch(schedule: str, pp: int, vpp: int, m: int) -> None:
    pytest.importorskip("torch", reason="torch is not installed: its pipeline schedules are the oracle here")
    from torch.distributed.pipelining import schedules as torch_schedules

    theirs = _torch_orders(torch_schedules, schedule, pp, vpp, m)
    for rank in range(pp):
        ours = instruction_order(schedule, pp, vpp, m, rank)
        v_shaped = schedule in V_SHAPED
        stages = [(a.kind, virtual_stage(pp, rank, a.chunk, v_shaped=v_shaped), a.micro_batch) for a in ours]
        assert stages == theirs[rank], f"rank {rank}"


def _torch_orders(
    lib: object, schedule: str, pp: int, vpp: int, m: int
) -> dict[int, list[tuple[str, int, int]]]:
    """torch's per-rank compute order as (F or B, global stage, micro-batch), idle slots dropped."""

    class Stage:
        """What the schedules read of a stage when they only plan."""

        def __init__(self, index: int, own: int) -> None:
            self.group = self.submod = None
            self.device = "cpu"
            self.stage_index = index
            self.num_stages = pp * vpp
            self.group_size = pp
            self.group_rank = own
            self.has_backward = True
            self.is_first, self.is_last = index == 0, index == pp * vpp - 1
            self.stage_index_to_group_rank = {i: i % pp for i in range(pp * vpp)}

    def loss(*_: object) -> None:
        """Only its presence matters: it tells the schedule to run backward."""

    orders: dict[int, list[tuple[str, int, int]]] = {}
    split = {
        "zb1p": "ScheduleInterleavedZeroBubble",
        "zbv": "ScheduleZBVZeroBubble",
        "dualpipev": "ScheduleDualPipeV",
    }
    for rank in range(pp):
        v_shaped = schedule in V_SHAPED
        stages = [Stage(virtual_stage(pp, rank, c, v_shaped=v_shaped), rank) for c in range(vpp)]
        if vpp > 1 or schedule in split:
            kind = split.get(schedule, "ScheduleInterleaved1F1B")
            plan = getattr(lib, kind)(stages, m, loss_fn=loss)
        else:
            kind = "ScheduleGPipe" if schedule == "gpipe" else "Schedule1F1B"
            plan = getattr(lib, kind)(stages[0], m, loss_fn=loss)
        order = getattr(plan, "pipeline_order", None) or plan._get_pipeline_order()
        if order is None:
            pytest.skip("this torch version does not expose the order of a single-stage schedule")
        names = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
        names |= {letter: letter for letter in "FBIW"}
        flat = [part for a in order[rank] if a is not None for part in (a.sub_actions or (a,))]
        orders[rank] = [
            (names[str(a.computation_type).rsplit(".", 1)[-1]], a.stage_index, a.microbatch_index)
            for a in flat
            if a.microbatch_index is not None
        ]
        # torch 2.13 lists the forwards of a 1F1B rank without warm-up from 1 although it runs them from 0.
        shift = min(batch for kind, _, batch in orders[rank] if kind == "F")
        orders[rank] = [(k, stage, b - shift if k == "F" else b) for k, stage, b in orders[rank]]
    return orders
