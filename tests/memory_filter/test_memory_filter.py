"""The memory pre-filter over tables: agrees with the engine, is monotone, and explains itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.engine.errors import ConfigError
from shardwise.engine.legality import legal_mask
from shardwise.engine.memory import memory_table
from shardwise.engine.memory import report as memory_report
from shardwise.engine.pipeline_layout import all_stages
from shardwise.engine.recipe_io import load_recipe
from shardwise.engine.space import default_axes, legal_space
from shardwise.engine.table import Table
from shardwise.memory_filter import DEFAULT_MARGIN, FilterResult, filter_recipe, filter_table
from shardwise.memory_filter import filter as implementation

BASES = [
    {"model": "mixtral-8x22b", "cluster": "mi355x:4x8", "gbs": 128, "seq_len": 8192},
    {"model": "deepseek-v3", "cluster": "h100:128x8", "gbs": 8192, "seq_len": 4096},
    {"model": "llama-3-70b", "cluster": "h100:8x8", "gbs": 256, "seq_len": 8192},
    {"model": "gpt-oss-120b", "cluster": "h200:4x8", "gbs": 256, "seq_len": 8192},
]


@pytest.fixture(scope="module", params=BASES, ids=lambda base: str(base["model"]))
def table(request: pytest.FixtureRequest) -> Table:
    base = load_recipe(request.param)
    axes = ["tp", "pp", "vpp", "pipeline_split", "ep", "etp", "mbs", "dp_sharding", "recompute"]
    space = legal_space(base, default_axes(base, names=axes))
    picked = np.random.default_rng(7).choice(len(space), size=400, replace=False)
    return space.take(np.sort(picked))


@pytest.fixture(scope="module")
def result(table: Table) -> FilterResult:
    return filter_table(table)


def with_capacity(table: Table, capacity: int) -> Table:
    gpu = table.cluster.gpu.with_(memory_bytes=capacity)
    return replace(table, cluster=table.cluster.with_(gpu=gpu))


def test_peaks_are_those_of_every_stage_looked_at(table: Table, result: FilterResult) -> None:
    # The engine prices representative stages; looking at all of them must not find a fuller one.
    rows = np.arange(0, len(table), 10)
    some = table.take(rows)
    everywhere = memory_table(some, all_stages(some))
    np.testing.assert_array_equal(result.peak_bytes[rows], everywhere.peak_bytes)
    np.testing.assert_array_equal(result.peak_stage[rows], everywhere.peak_stage)


@pytest.mark.parametrize("base", BASES, ids=lambda base: str(base["model"]))
def test_ten_thousand_recipes_are_judged_as_one_by_one(base: dict[str, object]) -> None:
    """The verdict over a table is the single projection's, for 2,500 random recipes of each model."""
    start = load_recipe(base)
    space = legal_space(start, default_axes(start))
    picked = space.take(np.random.default_rng(11).choice(len(space), size=2500, replace=False))
    found = filter_table(picked)
    for row in range(len(picked)):
        alone = memory_report(picked.recipe(row))
        assert alone.peak_bytes == int(found.peak_bytes[row])
        assert alone.peak_stage == found.peak_stage[row]
        assert found.keep[row] == (alone.peak_bytes <= found.usable_bytes) == (found.reason(row) is None)


def test_the_rule_is_peak_against_capacity_less_margin(table: Table, result: FilterResult) -> None:
    assert result.margin == DEFAULT_MARGIN
    assert result.capacity_bytes == table.cluster.gpu.memory_bytes
    np.testing.assert_array_equal(
        result.keep, result.peak_bytes <= result.capacity_bytes * (1 - DEFAULT_MARGIN)
    )
    assert 0 < result.keep.sum() < len(table)


def test_a_single_recipe_is_judged_as_in_the_table(table: Table, result: FilterResult) -> None:
    for row in range(0, len(table), 50):
        r = table.recipe(row)
        alone = filter_recipe(r)
        assert alone.keep[0] == result.keep[row]
        assert alone.reasons[0] == result.reasons[row]
        assert memory_report(r).peak_bytes == result.peak_bytes[row]


@settings(max_examples=15, deadline=None)
@given(st.floats(0.0, 0.9), st.floats(0.0, 0.9), st.integers(8, 400), st.integers(8, 400))
def test_more_room_never_rejects_what_was_kept(
    table: Table, one: float, other: float, small: int, large: int
) -> None:
    some = table.take(np.arange(40))
    tight = filter_table(with_capacity(some, min(small, large) << 30), max(one, other))
    roomy = filter_table(with_capacity(some, max(small, large) << 30), min(one, other))
    assert not np.any(tight.keep & ~roomy.keep)


def test_reasons_name_stage_item_and_sizes(table: Table, result: FilterResult) -> None:
    assert len(result.reasons) == len(table)
    for row, reason in enumerate(result.reasons):
        assert (reason is None) == bool(result.keep[row])
    row = int(np.flatnonzero(~result.keep)[0])
    reason, some = result.reasons[row], table.take([row])
    memory = memory_table(some)
    worst = int(memory.total[0].argmax())
    item = max(memory.items, key=lambda name: memory.items[name][0, worst])
    gib = 2.0**30
    assert reason == (
        f"stage {memory.stage_index[0, worst]} needs {memory.total[0, worst] / gib:.1f} GiB "
        f"of {memory.capacity_bytes * (1 - DEFAULT_MARGIN) / gib:.1f} GiB usable "
        f"(capacity {memory.capacity_bytes / gib:.1f} GiB less {DEFAULT_MARGIN:.0%} margin); "
        f"largest item: {item} {memory.items[item][0, worst] / gib:.1f} GiB"
    )
    assert result.reasons[-1] == result.reason(len(table) - 1)
    assert result.reasons[:3] == [result.reason(row) for row in range(3)]
    with pytest.raises(IndexError):
        result.reasons[len(table)]


def test_chunks_do_not_show(table: Table, result: FilterResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementation, "CHUNK_ROWS", 7)
    pieces = filter_table(table.take(np.arange(50)))
    np.testing.assert_array_equal(pieces.peak_bytes, result.peak_bytes[:50])
    assert list(pieces.reasons) == result.reasons[:50]


def test_an_empty_table_has_an_empty_result(table: Table) -> None:
    empty = filter_table(table.take(np.zeros(0, dtype=np.int64)))
    assert len(empty.keep) == 0
    assert list(empty.reasons) == []


@pytest.mark.parametrize("margin", [-0.1, 1.0, 5.0, float("nan")])
def test_a_margin_outside_its_range_is_refused(table: Table, margin: float) -> None:
    with pytest.raises(ConfigError, match=r"margin = .*: must be at least 0 and below 1"):
        filter_table(table, margin)


def test_published_recipes_that_ran_are_kept() -> None:
    # Llama 3 70B on 64 H100 as DGX Cloud and NeMo AutoModel publish it, with measured throughput.
    same = {"model": "llama-3-70b", "cluster": "h100:8x8", "mbs": 1, "gbs": 128, "seq_len": 8192}
    ran = [
        {**same, "tp": 4, "pp": 4, "vpp": 5, "cp": 2},
        {**same, "cp": 2, "dp_sharding": "fsdp", "recompute": "full"},
    ]
    for data in ran:
        r = load_recipe(data)
        assert legal_mask(Table.of([r])).all()
        # The first fills 89% of the device: a margin is a choice, and the default one would not take it.
        assert filter_recipe(r, margin=0.1).reasons[0] is None, data
