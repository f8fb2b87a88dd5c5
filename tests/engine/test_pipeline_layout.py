"""The split of decoder layers over stages and chunks, against a plain retelling of Megatron-Core's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardwise.engine.cluster import GPU, Cluster, Fabric, Nic
from shardwise.engine.model import Model
from shardwise.engine.pipeline_layout import (
    all_stages,
    chunk_layers,
    layer_range,
    representative_stages,
    split_options,
)
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Table

NIC = Nic(bandwidth_bytes_per_s=5e10, latency_s=5e-6)
FABRIC = Fabric(kind="switch", bandwidth_bytes_per_s=4.5e11, latency_s=1e-6, domain_size=8)
H100 = GPU(
    name="h100", vendor="nvidia", architecture="hopper", memory_bytes=80 << 30,
    hbm_bandwidth_bytes_per_s=3.35e12, peak_flops={"bf16": 989e12}, vector_flops=67e12, compute_units=132,
    fabric=FABRIC, nic=NIC,
)  # fmt: skip
CLUSTER = Cluster(gpu=H100, num_nodes=64, gpus_per_node=8, fabric=FABRIC, nic=NIC)


def model(layers: int, **changes: Any) -> Model:
    base = {
        "name": "toy", "num_layers": layers, "hidden_size": 512, "ffn_hidden_size": 1024,
        "num_attention_heads": 8, "num_query_groups": 8, "kv_channels": 64, "vocab_size": 1000,
    }  # fmt: skip
    return Model.build({**base, **changes})


def moe(layers: int, **changes: Any) -> Model:
    return model(layers, num_experts=8, moe_router_topk=2, moe_ffn_hidden_size=512, **changes)


def recipe(of: Model, **changes: Any) -> Recipe:
    return Recipe.build({"model": of, "cluster": CLUSTER, "gbs": 512, "seq_len": 1024, **changes})


def walk(r: Recipe) -> dict[tuple[int, int], list[int]]:
    """(stage, chunk) -> its layers, dealt one by one in the order in which data flows through the chunks."""
    first, last = r.num_layers_in_first_pipeline_stage, r.num_layers_in_last_pipeline_stage
    layers = r.model.num_layers
    if first is None and last is None:
        slots = ["embedding"] * r.account_for_embedding_in_pipeline_split + ["layer"] * layers
        slots += ["loss"] * r.account_for_loss_in_pipeline_split
        per_chunk, left = divmod(len(slots), r.pp * r.vpp)
        assert left == 0
        sizes = [slots[i * per_chunk :][:per_chunk].count("layer") for i in range(r.pp * r.vpp)]
    else:
        totals: dict[int, int] = {}
        if first is not None:
            totals[0] = first
        if last is not None:
            totals[r.pp - 1] = last
        others = [s for s in range(r.pp) if s not in totals]
        rest = layers - sum(totals.values())
        assert rest % len(others) == 0 if others else rest == 0
        for s in others:
            totals[s] = rest // len(others)
        assert all(total % r.vpp == 0 for total in totals.values())
        sizes = [totals[i % r.pp] // r.vpp for i in range(r.pp * r.vpp)]
    dealt, out = 0, {}
    for i, size in enumerate(sizes):
        out[i % r.pp, i // r.pp] = list(range(dealt, dealt + size))
        dealt += size
    assert dealt == layers
    return out


@st.composite
def layouts(draw: st.DrawFn) -> Recipe:
    """A legal layout: built from its parts, so that nothing has to be rejected."""
    pp = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 16]))
    vpp = draw(st.sampled_from([1, 2, 3, 4])) if pp > 1 else 1
    middle = draw(st.integers(1, 4)) * vpp
    changes: dict[str, Any] = {"pp": pp, "vpp": vpp, "tp": 1}
    if draw(st.booleans()):
        embedding, loss = draw(st.booleans()), draw(st.booleans())
        layers = pp * middle - embedding - loss
        assume(layers >= 1)
        changes |= {
            "account_for_embedding_in_pipeline_split": embedding,
            "account_for_loss_in_pipeline_split": loss,
        }
    else:
        first = draw(st.none() | st.integers(1, 4).map(lambda k: k * vpp))
        last = draw(st.none() | st.integers(1, 4).map(lambda k: k * vpp)) if pp > 1 else None
        given_stages = (first is not None) + (last is not None)
        layers = (first or 0) + (last or 0) + max(pp - given_stages, 0) * middle
        changes |= {"num_layers_in_first_pipeline_stage": first, "num_layers_in_last_pipeline_stage": last}
    dense = draw(st.integers(0, min(layers, 5)))
    kinds = draw(
        st.sampled_from(
            [
                model(layers),
                moe(layers, num_dense_layers=dense),
                moe(layers, num_dense_layers=dense, moe_layer_freq=2),
                model(layers, window_size=128, window_attn_every=3),
            ]
        )
    )
    return recipe(kinds, **changes)


def as_lists(table: Table, chunk: int) -> list[list[list[int]]]:
    start, end = layer_range(table, all_stages(table), chunk)
    return [[list(range(a, b)) for a, b in zip(*row, strict=True)] for row in zip(start, end, strict=True)]


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_each_chunk_holds_what_dealing_one_by_one_gives(r: Recipe) -> None:
    table, expected = Table.of([r]), walk(r)
    for chunk in range(r.vpp):
        ranges = as_lists(table, chunk)[0]
        assert {(s, chunk): layers for s, layers in enumerate(ranges)} == {
            key: layers for key, layers in expected.items() if key[1] == chunk
        }
    assert chunk_layers(table)[0] == max(len(layers) for layers in expected.values())


@settings(max_examples=50, deadline=None)
@given(layouts())
def test_chunks_past_the_last_are_empty(r: Recipe) -> None:
    table = Table.of([r])
    assert all(not layers for layers in as_lists(table, r.vpp)[0])


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_every_stage_has_an_earlier_or_equal_representative_of_its_kind(r: Recipe) -> None:
    held, m = walk(r), r.model

    def kind(stage: int) -> tuple[object, ...]:
        chunks = [
            tuple((m.moe_layers[i], m.windowed_layers[i]) for i in held[stage, c]) for c in range(r.vpp)
        ]
        return (stage == 0, stage == r.pp - 1, *chunks)

    picked = representative_stages(Table.of([r]))[0].tolist()
    assert picked == sorted(picked)
    assert picked[0] == 0
    assert picked[-1] == r.pp - 1
    for stage in range(r.pp):
        assert any(s <= stage and kind(s) == kind(stage) for s in picked)


def test_megatron_core_documented_interleavings() -> None:
    # The two examples in the comments of get_num_layers_to_build.
    eight = model(8)
    table = Table.of([recipe(eight, pp=2, vpp=4)])
    assert [as_lists(table, c)[0] for c in range(4)] == [[[0], [1]], [[2], [3]], [[4], [5]], [[6], [7]]]
    table = Table.of([recipe(eight, pp=2, vpp=2)])
    assert [as_lists(table, c)[0] for c in range(2)] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_deepseek_v3_like_stages_are_few() -> None:
    sixty_one = moe(61, num_dense_layers=3)
    table = Table.of([recipe(sixty_one, pp=16, num_layers_in_last_pipeline_stage=1)])
    assert representative_stages(table).tolist() == [[0, 1, 15]]
    table = Table.of([recipe(sixty_one, pp=61)])
    assert representative_stages(table).tolist() == [[0, 1, 3, 60]]


def test_rows_of_different_depth_are_padded_with_their_last_stage() -> None:
    rows = [recipe(model(8), pp=pp) for pp in (1, 2, 4, 8)]
    table = Table.of(rows)
    assert all_stages(table).tolist() == [
        [0] * 8, [0] + [1] * 7, [0, 1, 2] + [3] * 5, [0, 1, 2, 3, 4, 5, 6, 7],
    ]  # fmt: skip
    assert representative_stages(table).tolist() == [[0, 0, 0], [0, 1, 1], [0, 1, 3], [0, 1, 7]]


@pytest.mark.parametrize("of", [model(24), moe(24, num_dense_layers=3, moe_layer_freq=2)])
def test_a_row_in_a_large_table_answers_as_it_does_alone(of: Model) -> None:
    table = Table.product(recipe(of), {"pp": [1, 2, 3, 4, 6, 8, 12, 24], "vpp": [1, 2, 3]})
    table = table.take((24 % (table.pp * table.vpp) == 0) & ((table.pp > 1) | (table.vpp == 1)))
    together = representative_stages(table)
    for row in range(len(table)):
        alone = representative_stages(table.take([row]))[0]
        assert set(together[row]) == set(alone)
        assert np.all(np.diff(together[row]) >= 0)


def test_an_empty_table_has_no_rows() -> None:
    table = Table.of([recipe(model(8))]).take(np.array([], dtype=np.int64))
    assert representative_stages(table).shape[0] == 0
    assert all_stages(table).shape[0] == 0


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 130), st.sampled_from([1, 2, 3, 4, 6, 8, 16]), st.sampled_from([1, 2, 3, 4]))
def test_every_split_on_offer_deals_all_layers(layers: int, pp: int, vpp: int) -> None:
    assume(pp > 1 or vpp == 1)
    options = split_options(layers, pp, vpp)
    for fields in options:
        r = recipe(model(layers), pp=pp, vpp=vpp, **fields)
        assert sum(len(held) for held in walk(r).values()) == layers
    assert options or vpp > 1 or layers < pp


def test_the_usual_splits_come_first() -> None:
    # 126 layers over 8 stages count embedding and loss; 61 over 16 leave one layer to the last stage.
    assert split_options(126, 8)[0]["account_for_embedding_in_pipeline_split"] is True
    assert split_options(61, 16)[0]["num_layers_in_last_pipeline_stage"] == 1
    assert split_options(9, 8)[0]["num_layers_in_first_pipeline_stage"] == 2
    assert split_options(7, 8) == []
