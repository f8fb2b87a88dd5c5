"""The search space: complete, legal, ordered, and the steps between its points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from legality_samples import (
    DEEPSEEK,
    GPT,
    H100,
    LLAMA,
    MI250X,
    MI355X,
    MIXTRAL,
    V100,
    cluster,
    recipe,
    recipes,
)

from shardwise.engine.errors import ConfigError
from shardwise.engine.layout_string import text_of
from shardwise.engine.legality import check, legal_mask
from shardwise.engine.recipe import Recipe
from shardwise.engine.space import (
    Axes,
    Axis,
    axis_names,
    default_axes,
    legal_chunks,
    legal_space,
    neighbours,
    one_axis,
)
from shardwise.engine.table import COLUMNS, Table

MIXTRAL_32 = recipe(MIXTRAL, cluster(MI355X, 4), pp=4, ep=8, mbs=2)
BASES = (
    MIXTRAL_32,
    recipe(LLAMA, cluster(H100, 1), gbs=32),
    recipe(DEEPSEEK, cluster(H100, 16), pp=16, num_layers_in_last_pipeline_stage=1),
    recipe(GPT, cluster(V100, 2), seq_len=2048, precision="fp16"),
)


def rows(table: Table) -> list[tuple[Any, ...]]:
    return list(zip(*(getattr(table, name).tolist() for name in COLUMNS), strict=True))


def plain(values: Mapping[str, tuple[Any, ...]]) -> Axes:
    return Axes(tuple(Axis(name, (name,), tuple((v,) for v in vs)) for name, vs in values.items()))


@settings(max_examples=25, deadline=None)
@given(recipes(), st.integers(1, 40), st.permutations(["tp", "pp", "vpp", "ep", "etp", "mbs", "recompute"]))
def test_pruning_on_the_way_is_the_product_filtered_at_the_end(
    base: Recipe, chunk: int, order: list[str]
) -> None:
    values: dict[str, tuple[Any, ...]] = {
        "tp": (1, 2, 8), "pp": (1, 2, 4), "vpp": (1, 2), "ep": (1, 8), "etp": (1, 2), "mbs": (1, 3, 4),
        "recompute": ("none", "full"),
    }  # fmt: skip
    values = {name: values[name] for name in order}
    product = Table.product(base, values)
    expected = rows(product.take(legal_mask(product)))
    assert rows(legal_space(base, plain(values))) == expected
    pieces = list(legal_chunks(base, plain(values), rows=chunk))
    assert [row for piece in pieces for row in rows(piece)] == expected
    assert all(len(piece) <= max(chunk, 3) for piece in pieces)


@pytest.mark.parametrize("base", BASES, ids=lambda r: r.model.name)
def test_the_default_space_is_legal_without_repetition_and_contains_its_base(base: Recipe) -> None:
    axes = default_axes(base, names=[n for n in default_axes(base).names if n != "recompute"])
    table = legal_space(base, axes)
    assert check(base) == ()
    assert legal_mask(table).all()
    found = rows(table)
    assert len(set(found)) == len(found) <= axes.size
    assert rows(Table.of([base]))[0] in set(found)
    assert found == rows(legal_space(base, axes))


def test_the_whole_mixtral_space_enumerates() -> None:
    axes = default_axes(MIXTRAL_32)
    assert set(axes.names) == set(axis_names()[:14]) - {"cp", "tp_comm_overlap", "precision"}
    table = legal_space(MIXTRAL_32, axes)
    assert 50_000 < len(table) < axes.size
    assert set(np.unique(table.tp)) == {1, 2, 4, 8}
    # 56 layers over 16 or 32 stages: a balanced layout.
    assert set(np.unique(table.pp)) == {1, 2, 4, 8, 16, 32}
    assert set(np.unique(table.ep)) == {1, 2, 4, 8}
    assert set(np.unique(table.vpp)) == {1, 2, 4, 7, 14, 28}
    assert np.all((table.etp == 1) | (table.etp == table.tp))
    assert np.all(table.sequence_parallel == (table.tp > 1))
    assert np.all(table.gbs == MIXTRAL_32.gbs)
    assert check(table.recipe(len(table) - 1)) == ()


def test_layers_that_no_pipeline_divides_get_uneven_stages() -> None:
    base = recipe(DEEPSEEK, cluster(H100, 16))
    table = legal_space(base, default_axes(base, names=["pp", "pipeline_split"]))
    assert {2, 4, 8, 16} <= set(np.unique(table.pp))
    last = {
        (int(pp), int(n)) for pp, n in zip(table.pp, table.num_layers_in_last_pipeline_stage, strict=True)
    }
    assert {(16, 1), (8, 5), (4, 13), (2, 30)} <= last


def test_layers_that_nothing_divides_interleave_by_a_layout() -> None:
    """61 layers and a prediction layer: no even chunks, so whatever has virtual stages has a layout."""
    base = recipe(DEEPSEEK, cluster(H100, 16))
    table = legal_space(base, default_axes(base, names=["pp", "vpp", "pipeline_split"]))
    laid = {
        (int(pp), int(vpp)): text_of(int(code))
        for pp, vpp, code in zip(table.pp, table.vpp, table.pipeline_model_parallel_layout, strict=True)
        if code
    }
    assert laid[8, 2] == "Et*4|(t*4|)*14tmL"
    assert laid[16, 2] == laid[8, 4] == "Et|(tt|)*30mL"
    # More chunks than layers.
    assert (16, 4) not in laid
    found = {(int(pp), int(vpp)) for pp, vpp in zip(table.pp, table.vpp, strict=True) if 1 < vpp < 8}
    assert found <= laid.keys()


def test_fixed_fields_keep_their_value() -> None:
    axes = default_axes(MIXTRAL_32, fixed=["tp", "recompute", "etp", "dp_sharding"])
    assert not {"tp", "etp", "dp_sharding"} & set(axes.names)
    assert "recompute" not in axes.names  # only one setting is "none"
    full = MIXTRAL_32.with_(recompute="full", recompute_method="uniform", recompute_num_layers=1)
    settings_of_full = default_axes(full, fixed=["recompute"])["recompute"].settings
    assert {setting[0] for setting in settings_of_full} == {"full"}
    assert {setting[1] for setting in settings_of_full} == {"uniform", "block"}


def test_a_base_that_declines_sequence_parallelism_keeps_it_declined() -> None:
    base = recipe(LLAMA, cluster(H100, 1), gbs=32, tp=2, sequence_parallel=False)
    table = legal_space(base, default_axes(base, names=["tp"]))
    assert dict(zip(table.tp.tolist(), table.sequence_parallel.tolist(), strict=True)) == {
        1: False, 2: False, 4: True, 8: True,
    }  # fmt: skip


def test_axes_follow_model_and_hardware() -> None:
    dense = default_axes(recipe(LLAMA, cluster(H100, 4))).names
    assert not {"ep", "etp", "moe_token_dispatcher", "overlap_moe_expert_parallel_comm"} & set(dense)
    assert "tp_comm_overlap" in dense
    assert "tp_comm_overlap" not in default_axes(recipe(LLAMA, cluster(MI355X, 4))).names
    assert "moe_token_dispatcher" not in default_axes(recipe(MIXTRAL, cluster(MI250X, 4))).names
    assert "cp" not in dense
    long = recipe(LLAMA, cluster(H100, 4), seq_len=32768)
    assert [value for (value,) in default_axes(long)["cp"].settings] == [1, 2, 4, 8, 16]
    given_cp = recipe(LLAMA, cluster(H100, 4), cp=4)
    assert [value for (value,) in default_axes(given_cp)["cp"].settings] == [1, 4]
    modules = {
        setting[3] for setting in default_axes(recipe(DEEPSEEK, cluster(H100, 16)))["recompute"].settings
    }
    assert ("layernorm", "mla_up_proj", "mlp", "moe", "shared_experts") in modules
    assert ("moe_act",) in modules


def test_tensor_parallelism_leaves_the_node_only_when_asked() -> None:
    base = recipe(LLAMA, cluster(H100, 4))
    assert max(setting[0] for setting in default_axes(base)["tp"].settings) == 8
    assert max(setting[0] for setting in default_axes(base, across_nodes=True)["tp"].settings) == 32


def test_precision_varies_only_as_allowed() -> None:
    assert "precision" not in default_axes(MIXTRAL_32).names
    axes = default_axes(MIXTRAL_32, precisions=["mxfp8"])
    assert axes["precision"].settings == (("bf16",), ("mxfp8",))


def test_axes_on_request() -> None:
    axes = default_axes(MIXTRAL_32, names=["cross_entropy_fusion", "mbs", "gbs"])
    assert axes.names == ("mbs", "gbs", "cross_entropy_fusion")
    table = legal_space(MIXTRAL_32, one_axis(MIXTRAL_32, "tp", [1, 2, 3, 4]))
    assert table.tp.tolist() == [1, 2, 4]
    assert table.sequence_parallel.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: default_axes(MIXTRAL_32, names=["tpp"]), "unknown axis 'tpp' (nearest: tp"),
        (lambda: default_axes(MIXTRAL_32, precisions=["fp9"]), "unknown precision 'fp9'"),
        (lambda: one_axis(MIXTRAL_32, "recompute", ["full"]), "unknown axis 'recompute'"),
        (
            lambda: one_axis(MIXTRAL_32, "dp_sharding", ["zero9"]),
            "dp_sharding = 'zero9': must be one of none",
        ),
        (lambda: one_axis(MIXTRAL_32, "tp", ["two"]), "tp = 'two': must be a number"),
        (lambda: default_axes(MIXTRAL_32)["cp"], "unknown axis 'cp'"),
        (
            lambda: legal_space(MIXTRAL_32, default_axes(MIXTRAL_32), max_rows=10),
            "more than 10 legal recipes",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(call: Any, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_base_that_no_axis_can_mend_has_an_empty_space() -> None:
    base = recipe(LLAMA, cluster(V100, 2))  # BF16 on a V100
    assert check(base)
    assert len(legal_space(base, default_axes(base))) == 0
    assert list(legal_chunks(base, default_axes(base))) == []


@pytest.mark.parametrize("base", BASES, ids=lambda r: r.model.name)
def test_neighbours_are_legal_distinct_and_reproducible(base: Recipe) -> None:
    axes = default_axes(base)
    found = neighbours(base, axes)
    assert found
    assert all(check(r) == () for r in found)
    assert all(r != base for r in found)
    assert len({rows(Table.of([r]))[0] for r in found}) == len(found)
    assert found == neighbours(base, axes)


def test_neighbours_move_along_every_axis_that_can_move() -> None:
    axes = default_axes(MIXTRAL_32)
    found = neighbours(MIXTRAL_32, axes)
    moved = {
        a.name for a in axes for r in found if any(getattr(r, f) != getattr(MIXTRAL_32, f) for f in a.fields)
    }
    assert moved == set(axes.names) - {"etp", "overlap_moe_expert_parallel_comm"}  # tp=1; no virtual stages
    assert {(r.pp, r.vpp) for r in found} >= {(2, 1), (4, 2)}  # pp=8 with ep=8 needs 64 GPUs
    assert {r.mbs for r in found} == {1, 2, 4}


def test_neighbours_step_to_the_next_legal_size_and_carry_what_follows() -> None:
    base = recipe(MIXTRAL, cluster(MI355X, 4), tp=2, etp=2, ep=8, pp=2)
    steps = {(r.tp, r.etp) for r in neighbours(base, default_axes(base, names=["tp", "etp"]))}
    assert steps == {(1, 1), (2, 1)}  # etp follows tp; tp=4 with etp=4, ep=8, pp=2 needs 64 GPUs
    base = recipe(LLAMA, cluster(H100, 4), tp=8)
    assert {r.tp for r in neighbours(base, default_axes(base, names=["tp"]))} == {4}
    # 61 layers: a deeper pipeline needs another split, which comes along.
    base = recipe(DEEPSEEK, cluster(H100, 16), pp=16, num_layers_in_last_pipeline_stage=1)
    near = neighbours(base, default_axes(base, names=["pp", "pipeline_split"]))
    assert {8, 16} <= {r.pp for r in near}
