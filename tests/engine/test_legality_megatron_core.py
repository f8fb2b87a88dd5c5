"""Legality and pipeline layout against megatron-core itself, where it and torch are installed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from legality_samples import recipes

from shardwise.engine.legality import check
from shardwise.engine.pipeline_layout import all_stages, layer_range, split_options
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Table

pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from shardwise.engine.measure.megatron import transformer_config as config

CONFIG_RULES = {
    "attention-heads", "query-groups", "pipeline-layers", "pipeline-uneven-split", "pipeline-split-options",
    "virtual-stages", "sequence-parallel", "experts", "expert-bias",
    "expert-overlap", "expert-overlap-pipeline", "expert-overlap-dispatcher", "expert-overlap-recompute",
    "expert-overlap-mtp",
}  # fmt: skip
"""Rules that the configuration classes check themselves, without process groups, data or a GPU."""


def layer_table(core: Any, r: Recipe) -> list[tuple[int, int, int, int]]:
    """(stage, chunk, first layer, layers) of every chunk, as megatron-core places them."""
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    table = []
    for stage in range(r.pp):
        for chunk in range(r.vpp):
            which = chunk if r.vpp > 1 else None
            offset = get_transformer_layer_offset(core, which, stage)
            table.append((stage, chunk, offset, get_num_layers_to_build(core, which, stage)))
    return table


def refusal(r: Recipe) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            layer_table(config(r), r)
        except (AssertionError, ValueError, ZeroDivisionError) as refused:
            return str(refused) or type(refused).__name__
    return None


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(recipes())
def test_what_megatron_core_refuses_breaks_a_rule(r: Recipe) -> None:
    said = refusal(r)
    if said is not None:
        assert check(r), said


@settings(max_examples=200, deadline=None)
@given(recipes())
def test_what_megatron_core_accepts_breaks_no_rule_of_its_configuration(r: Recipe) -> None:
    # megatron-core accepts some layouts without meaning (more layers in a stage than there are).
    first, last = r.num_layers_in_first_pipeline_stage, r.num_layers_in_last_pipeline_stage
    assume((first or 0) + (last or 0) <= r.model.num_layers)
    assume(r.pp > 1 or (r.vpp == 1 and not (first and last)))
    if refusal(r) is None:
        assert not CONFIG_RULES & {violation.rule for violation in check(r)}


@settings(max_examples=100, deadline=None)
@given(recipes(), st.sampled_from([1, 2, 3, 4, 8, 16]), st.sampled_from([1, 2, 3, 4]), st.integers(0, 4))
def test_layers_sit_where_megatron_core_puts_them(r: Recipe, pp: int, vpp: int, choice: int) -> None:
    assume(pp > 1 or vpp == 1)
    options = split_options(r.model.num_layers, pp, vpp)
    assume(options)
    plain = Recipe.build({"model": r.model, "cluster": r.cluster, "gbs": 1, "seq_len": 8})
    laid = plain.with_(pp=pp, vpp=vpp, **options[choice % len(options)])
    table = Table.of([laid])
    stages = all_stages(table)
    for stage, chunk, offset, layers in layer_table(config(laid), laid):
        start, end = layer_range(table, stages, chunk)
        assert (start[0, stage], end[0, stage]) == (offset, offset + layers)
