"""Sharded parameters add up to the model's, whatever the sharding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipes import DEEPSEEK, LLAMA, MIXTRAL, recipe

from shardwise.engine import catalog
from shardwise.engine.lowering import lower, padded_vocab
from shardwise.engine.parameters import active_parameters, stage_parameters, total_parameters
from shardwise.engine.pipeline_layout import all_stages
from shardwise.engine.table import Table


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("mixtral-8x22b", 140.6e9, 39.2e9),
        ("mixtral-8x7b", 46.7e9, 12.9e9),
        ("llama-3-70b", 70.55e9, 70.55e9),
        ("deepseek-v3", 671.0e9, 37.5e9),
        ("qwen3-235b-a22b", 235.1e9, 22.2e9),
        ("gpt3-175b", 175.0e9, 175.0e9),
    ],
)
def test_published_counts(name: str, total: float, active: float) -> None:
    model = catalog.model(name)
    assert total_parameters(model) == pytest.approx(total, rel=0.005)
    assert active_parameters(model) == pytest.approx(active, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(
    base=st.sampled_from([MIXTRAL, LLAMA]),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 4, 8]),
    vpp=st.sampled_from([1, 2]),
)
def test_ranks_sum_to_the_model(base: dict[str, Any], tp: int, pp: int, ep: int, vpp: int) -> None:
    moe = base is MIXTRAL
    r = recipe(base, tp=tp, pp=pp, ep=ep if moe else 1, etp=1, vpp=vpp if pp > 1 else 1)
    table = Table.of([r])
    low = lower(table, all_stages(table))
    held = stage_parameters(low)
    model = r.model
    # What tensor parallelism replicates: norms and routers; padding of the vocabulary comes on top.
    norms = (2 * model.num_layers + 1) * model.hidden_size
    routers = sum(model.moe_layers) * model.hidden_size * (model.num_experts or 0)
    padding = 2 * (int(padded_vocab(model, table.tp)[0]) - model.vocab_size) * model.hidden_size
    dense = float(held.dense.sum()) * tp - (tp - 1) * (norms + routers) - padding
    expert = float(held.expert.sum()) * r.ep * r.etp
    assert dense + expert == pytest.approx(total_parameters(model), rel=1e-9)


def test_stages_of_an_uneven_pipeline_sum_to_the_model() -> None:
    r = recipe(DEEPSEEK)
    table = Table.of([r])
    held = stage_parameters(lower(table, all_stages(table)))
    total = float(held.dense.sum() + held.expert.sum() * r.ep)
    mtp = total - total_parameters(r.model)
    # Multi-token prediction: one MoE layer, a projection and a second copy of the embedding.
    assert 11e9 < mtp < 16e9
