"""The closed forms against the event simulation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.engine.errors import ConfigError
from shardwise.engine.recipe import SCHEDULES
from shardwise.engine.schedule import in_flight, pipeline_seconds, simulate

KINDS = st.sampled_from([("gpipe", False), ("1f1b", False), ("1f1b", True)])
TIMES = st.floats(0.05, 2.0)


def _shape(kind: tuple[str, bool], data: st.DataObject) -> tuple[str, int, int, int]:
    schedule, interleaved = kind
    pp = data.draw(st.integers(1, 7), "pp")
    vpp = data.draw(st.integers(2, 4), "vpp") if interleaved else 1
    if not interleaved:
        return schedule, pp, 1, data.draw(st.integers(1, 20), "m")
    few = data.draw(st.booleans(), "few")
    return (
        schedule,
        pp,
        vpp,
        data.draw(st.integers(1, pp), "m") if few else pp * data.draw(st.integers(1, 4), "m/pp"),
    )


@settings(max_examples=150, deadline=None)
@given(kind=KINDS, forward=TIMES, ratio=st.floats(0.5, 4.0), data=st.data())
def test_equal_stages_agree_exactly(
    kind: tuple[str, bool], forward: float, ratio: float, data: st.DataObject
) -> None:
    schedule, pp, vpp, m = _shape(kind, data)
    chunk = np.full((pp, vpp), forward)
    timeline = simulate(schedule, m, chunk, chunk * ratio)
    stage = vpp * forward * (1 + ratio)
    total, bubble = pipeline_seconds(pp, vpp, m, pp * stage, stage, SCHEDULES.index(schedule))
    assert float(total) == pytest.approx(timeline.makespan_s, rel=1e-9)
    assert float(bubble) == pytest.approx(timeline.bubble_s, rel=1e-7, abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(kind=KINDS, ratio=st.floats(0.5, 4.0), data=st.data())
def test_uneven_stages_stay_within_the_stated_bound(
    kind: tuple[str, bool], ratio: float, data: st.DataObject
) -> None:
    """Backward a fixed multiple of forward: GPipe exact; 1F1B between ``m*max`` and the closed form,
    which an interleaved schedule may exceed by less than one micro-batch of the slowest stage."""
    schedule, pp, vpp, m = _shape(kind, data)
    if vpp > 1:
        m = max(m // pp, 1) * pp
    stages = np.array(data.draw(st.lists(TIMES, min_size=pp, max_size=pp), "forward"))
    chunk = np.repeat(stages[:, None], vpp, axis=1)
    simulated = simulate(schedule, m, chunk, chunk * ratio).makespan_s
    per_stage = stages * vpp * (1 + ratio)
    args = (pp, vpp, m, per_stage.sum(), per_stage.max(), SCHEDULES.index(schedule))
    closed = float(pipeline_seconds(*args)[0])
    if schedule == "gpipe":
        assert closed == pytest.approx(simulated, rel=1e-9)
    assert m * per_stage.max() <= simulated * (1 + 1e-9)
    slack = per_stage.max() if vpp > 1 else 0.0
    assert simulated <= (closed + slack) * (1 + 1e-9)


@settings(max_examples=150, deadline=None)
@given(kind=KINDS, data=st.data())
def test_in_flight_equals_the_simulation(kind: tuple[str, bool], data: st.DataObject) -> None:
    schedule, pp, vpp, m = _shape(kind, data)
    chunk = np.ones((pp, vpp))
    held = simulate(schedule, m, chunk, 2 * chunk).in_flight
    assert in_flight(pp, vpp, m, np.arange(pp), SCHEDULES.index(schedule)).tolist() == held.tolist()


def test_columns_equal_rows() -> None:
    pp, vpp, m = np.array([1, 4, 4, 8, 4]), np.array([1, 1, 2, 3, 1]), np.array([8, 8, 8, 4, 8])
    schedule = np.array([0, 0, 0, 0, 1])
    total, bubble = pipeline_seconds(pp, vpp, m, pp * 3.0, np.full(5, 3.0), schedule)
    for i in range(5):
        row = pipeline_seconds(pp[i], vpp[i], m[i], pp[i] * 3.0, 3.0, schedule[i])
        assert (float(row[0]), float(row[1])) == (total[i], bubble[i])
    assert bubble[0] == 0.0
    assert bubble[2] == bubble[1] / 2
    assert in_flight(pp[:, None], vpp[:, None], m[:, None], np.arange(4), schedule[:, None]).shape == (5, 4)


def test_transfers_are_not_free() -> None:
    chunk = np.ones((4, 1))
    plain = simulate("1f1b", 8, chunk, 2 * chunk)
    slow = simulate("1f1b", 8, chunk, 2 * chunk, p2p_s=0.5)
    assert slow.makespan_s > plain.makespan_s + 2 * 3 * 0.5 - 1e-9
    assert np.array_equal(slow.busy_s, plain.busy_s)
    one = simulate("1f1b", 8, chunk[:1], chunk[:1], p2p_s=9.0)
    assert one.makespan_s == 16.0
    assert one.bubble_fraction == 0.0


def test_spans_respect_rank_and_data_order() -> None:
    timeline = simulate("1f1b", 8, np.full((4, 2), 1.0), np.full((4, 2), 2.0), p2p_s=0.25)
    ends = {
        (s.action.kind, s.action.micro_batch, s.action.chunk * 4 + s.rank): s
        for own in timeline.spans
        for s in own
    }
    for own in timeline.spans:
        assert all(a.end_s <= b.start_s for a, b in pairwise(own))
    for (kind, batch, stage), span in ends.items():
        before = ends.get((kind, batch, stage - 1 if kind == "F" else stage + 1))
        if before is not None:
            assert span.start_s >= before.end_s + 0.25


def test_bad_times_are_named() -> None:
    with pytest.raises(ConfigError, match="shapes"):
        simulate("1f1b", 4, np.ones((4, 1)), np.ones((3, 1)))
    with pytest.raises(ConfigError, match="negative"):
        simulate("1f1b", 4, -np.ones((4, 1)), np.ones((4, 1)))


SPLIT = [("zb1p", 1), ("zb1p", 2), ("zbv", 2), ("dualpipev", 2)]


@pytest.mark.parametrize(("schedule", "vpp"), SPLIT)
@given(pp=st.integers(2, 6), rounds=st.integers(2, 4), ratio=st.floats(0.0, 1.0), wire=st.floats(0.0, 2.0))
def test_splitting_the_backward_shortens_the_ramp(
    schedule: str, vpp: int, pp: int, rounds: int, ratio: float, wire: float
) -> None:
    """No schedule idles less than nothing, transfers never shorten a step, and with equal passes the
    split ones are never slower than the one they came from."""
    m = rounds * pp
    chunk = np.full((pp, vpp), 1.0)
    plain = simulate("1f1b", m, chunk, 2 * chunk)
    split = simulate(schedule, m, chunk, 2 * chunk)
    assert 0 <= split.bubble_s <= plain.bubble_s + 1e-9
    assert np.all(split.busy_s == pytest.approx(plain.busy_s))
    uneven = simulate(schedule, m, chunk, 2 * chunk, weight_s=2 * ratio * chunk)
    assert uneven.bubble_s >= -1e-9
    far = simulate(schedule, m, chunk, 2 * chunk, p2p_s=wire)
    assert far.makespan_s >= split.makespan_s - 1e-9


def test_zb1p_idles_as_its_paper_says() -> None:
    """(p - 1)(T_F + T_B - T_W), arXiv 2401.10241, table 2, for any three times that shrink in that order."""
    pp, chunk = 5, np.full((5, 1), 1.0)
    for weight in (0.5, 1.0):
        timeline = simulate("zb1p", 15, chunk, (1.0 + weight) * chunk, weight_s=weight * chunk)
        assert timeline.bubble_s == pytest.approx((pp - 1) * (1.0 + 1.0 - weight))


@pytest.mark.parametrize(("schedule", "vpp"), SPLIT)
@given(pp=st.integers(2, 6), rounds=st.integers(2, 4))
def test_tables_hold_and_idle_what_the_orders_do(schedule: str, vpp: int, pp: int, rounds: int) -> None:
    m, code = rounds * pp, SCHEDULES.index(schedule)
    chunk = np.full((pp, vpp), 1.0)
    timeline = simulate(schedule, m, chunk, 2 * chunk)
    assert in_flight(pp, vpp, m, np.arange(pp), code).tolist() == timeline.in_flight.tolist()
    total, bubble = pipeline_seconds(pp, vpp, m, pp * 3.0 * vpp, 3.0 * vpp, code)
    assert float(bubble) == pytest.approx(timeline.bubble_s)
    assert float(total) == pytest.approx(timeline.makespan_s)


def test_a_v_holds_both_ends_of_the_model_on_its_first_rank() -> None:
    from recipes import LLAMA, recipe

    from shardwise.engine.lowering import lower
    from shardwise.engine.parameters import stage_parameters
    from shardwise.engine.pipeline_layout import all_stages, layer_range
    from shardwise.engine.table import Table

    base = {**LLAMA, "framework": "torchtitan", "tp": 1, "pp": 4, "vpp": 2}
    loop, v = (recipe(base, pp_schedule=word) for word in ("1f1b", "zbv"))
    table = Table.of([v])
    stages = all_stages(table)
    low = lower(table, stages)
    assert low.first[0].tolist() == low.last[0].tolist() == [True, False, False, False]
    each = v.model.num_layers // 8
    for chunk, order in ((0, [0, 1, 2, 3]), (1, [7, 6, 5, 4])):
        start, end = layer_range(table, stages, chunk)
        assert start[0].tolist() == [each * i for i in order]
        assert (end - start)[0].tolist() == [each] * 4
    whole = [float(stage_parameters(lower(t, all_stages(t))).dense.sum()) for t in (Table.of([loop]), table)]
    assert whole[0] == whole[1]


def test_lagging_gradients_of_weights_hold_the_heads_inputs() -> None:
    """ZB1P's last rank runs the head's gradients of weights ``pp - 1`` micro-batches late: it holds as many
    inputs of the head, and gradients of logits, more than under 1F1B."""
    from recipes import LLAMA, recipe

    from shardwise.engine.memory import report

    base = {**LLAMA, "framework": "torchtitan", "pp": 4, "vpp": 1}
    plain, lagging = (report(recipe(base, pp_schedule=word)).stages[3] for word in ("1f1b", "zb1p"))
    layers = 3 * plain.items["activations"]
    assert lagging.items["activations"] > plain.items["activations"] + layers


@pytest.mark.parametrize("m", [3, 5, 8, 14, 15, 16])
def test_zbv_short_of_micro_batches_is_judged_by_its_fullest_rank(m: int) -> None:
    """The later ranks hold more then, and verdicts over tables look at a few stages only."""
    from recipes import LLAMA, recipe

    from shardwise.engine.memory.table import memory_table
    from shardwise.engine.pipeline_layout import all_stages
    from shardwise.engine.table import Table

    base = {**LLAMA, "framework": "torchtitan", "pp": 8, "vpp": 2}
    table = Table.of([recipe(base, gbs=2 * n, pp_schedule="zbv") for n in (32, m)])
    few, every = memory_table(table), memory_table(table, all_stages(table))
    assert few.peak_bytes.tolist() == every.peak_bytes.tolist()
    assert few.peak_stage.tolist() == every.peak_stage.tolist()


def test_a_layout_turns_with_the_v() -> None:
    from recipes import LLAMA, recipe

    from shardwise.engine.pipeline_layout import all_stages, layer_ranges
    from shardwise.engine.table import Table

    base = {**LLAMA, "framework": "torchtitan", "pp": 2, "vpp": 2, "pp_schedule": "zbv"}
    table = Table.of([recipe(base, pipeline_model_parallel_layout="Et*10|t*20|t*30|t*20L")])
    start, end = layer_ranges(table, all_stages(table))
    assert start[0].tolist() == [[0, 60], [10, 30]]
    assert end[0].tolist() == [[10, 80], [30, 60]]


@pytest.mark.parametrize("schedule", ["zbv", "dualpipev"])
def test_where_a_v_ends_one_micro_batch_waits(schedule: str) -> None:
    """The head's chunk replayed along its order, and its memory: one micro-batch's norm and head inputs."""
    from recipes import LLAMA, recipe

    from shardwise.engine.memory import report
    from shardwise.engine.schedule.orders import instruction_order
    from shardwise.engine.schedule.simulate import held

    for pp in range(2, 9):
        for m in range(2 * pp, 4 * pp + 1):
            order = instruction_order(schedule, pp, 2, m, 0)
            assert held([action for action in order if action.chunk == 1]) == 1
    base = {**LLAMA, "framework": "torchtitan", "pp": 8, "vpp": 2, "gbs": 64}
    first, second = report(recipe(base, pp_schedule=schedule)).stages[:2]
    one = 2 * 2 * 8192 * 8192 // 4
    assert first.items["activations"] - second.items["activations"] == pytest.approx(one, abs=1)
