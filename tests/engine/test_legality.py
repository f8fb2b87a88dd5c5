"""Legality: what each rule refuses, and that its advice is good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from legality_samples import (
    BIASED_MOE,
    CLUSTERS,
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

from shardwise.engine.legality import RULES, broken, check, legal_mask
from shardwise.engine.model import Model
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import COLUMNS, Table

ON_H100 = cluster(H100, 4)


def names(r: Recipe) -> set[str]:
    return {violation.rule for violation in check(r)}


def message(r: Recipe, rule: str) -> str:
    return next(violation.message for violation in check(r) if violation.rule == rule)


LEGAL: tuple[tuple[Model, Any, Mapping[str, Any]], ...] = (
    # The published Mixtral 8x22B reference on 4 nodes, and variations that tools often refuse.
    (MIXTRAL, CLUSTERS[1], {"pp": 4, "ep": 8, "mbs": 2}),
    (MIXTRAL, CLUSTERS[1], {"tp": 2, "pp": 4, "ep": 8, "etp": 1}),  # ep=8 does not divide dp=4: folding
    (MIXTRAL, CLUSTERS[1], {"pp": 4, "vpp": 7, "ep": 8, "overlap_moe_expert_parallel_comm": True}),
    (MIXTRAL, CLUSTERS[1], {"tp": 16, "sequence_parallel": True, "etp": 1}),  # 8 groups replicated twice
    (LLAMA, ON_H100, {"tp": 8, "cp": 2, "precision": "fp8-tensorwise", "tp_comm_overlap": True}),
    (LLAMA, ON_H100, {"pp": 2, "vpp": 4}),
    (LLAMA, ON_H100, {"pp": 4, "pp_schedule": "gpipe", "dp_sharding": "none"}),
    (LLAMA, ON_H100, {"dp_sharding": "hsdp", "dp_shard_size": 8}),
    (DEEPSEEK, CLUSTERS[1], {"pp": 16, "ep": 2, "num_layers_in_last_pipeline_stage": 1}),
    (DEEPSEEK, CLUSTERS[1], {"ep": 8, "recompute": "selective", "recompute_modules": "mla_up_proj,moe_act"}),
    (GPT, cluster(V100, 2), {"seq_len": 2048, "precision": "fp16", "tp": 8}),
    (GPT, cluster(H100, 2), {"seq_len": 2048, "pp": 2, "recompute": "full", "recompute_method": "block",
                             "recompute_num_layers": 12}),
    (BIASED_MOE, ON_H100, {"tp": 2, "etp": 1, "ep": 8, "moe_token_dispatcher": "deepep"}),
)  # fmt: skip


@pytest.mark.parametrize(("of", "on", "changes"), LEGAL)
def test_recipes_that_run_are_legal(of: Model, on: Any, changes: Mapping[str, Any]) -> None:
    assert check(recipe(of, on, **changes)) == ()


_MOE = (MIXTRAL, CLUSTERS[1])
_DENSE = (LLAMA, ON_H100)
ILLEGAL: tuple[tuple[str, tuple[Model, Any], Mapping[str, Any]], ...] = (
    ("world-size", _MOE, {"tp": 5, "etp": 1}),
    ("world-size", _DENSE, {"pp": 64}),
    ("world-size", _DENSE, {"cp": 3}),
    ("expert-world-size", _MOE, {"ep": 8, "etp": 8}),
    ("global-batch-size", _DENSE, {"gbs": 100}),
    ("global-batch-size", _DENSE, {"gbs": 16}),  # fewer sequences than data-parallel ranks
    ("attention-heads", _MOE, {"tp": 32, "etp": 1}),
    ("query-groups", (LLAMA.with_(num_attention_heads=36, num_query_groups=12), ON_H100), {"tp": 8}),
    ("mlp-width", (LLAMA.with_(ffn_hidden_size=14338), ON_H100), {"tp": 4}),
    ("expert-mlp-width", (BIASED_MOE.with_(add_bias_linear=False), cluster(H100, 16)), {"etp": 128}),
    ("pipeline-layers", _MOE, {"pp": 16}),
    ("pipeline-layers", (DEEPSEEK, CLUSTERS[1]), {"pp": 8}),
    ("pipeline-uneven-split", _MOE, {"pp": 4, "num_layers_in_first_pipeline_stage": 15}),
    ("pipeline-uneven-split", _MOE, {"pp": 1, "num_layers_in_first_pipeline_stage": 15}),
    ("pipeline-uneven-split", _MOE, {"pp": 4, "vpp": 2, "num_layers_in_last_pipeline_stage": 11}),
    (
        "pipeline-uneven-split",  # megatron-core divides by its zero middle stages
        _MOE,
        {
            "pp": 2,
            "vpp": 2,
            "num_layers_in_first_pipeline_stage": 26,
            "num_layers_in_last_pipeline_stage": 30,
        },
    ),
    (
        "pipeline-split-options",
        (DEEPSEEK, CLUSTERS[1]),
        {"pp": 16, "num_layers_in_last_pipeline_stage": 1, "account_for_loss_in_pipeline_split": True},
    ),
    ("virtual-stages", _MOE, {"pp": 4, "vpp": 4}),
    ("virtual-stages-pipeline", _MOE, {"vpp": 2}),
    ("virtual-stages-overlap", _MOE, {"pp": 2, "vpp": 2, "overlap_p2p_comm": False}),
    ("interleaved-micro-batches", _MOE, {"pp": 4, "vpp": 2, "gbs": 48}),  # 6 micro-batches over 4 stages
    ("interleaved-micro-batches", _MOE, {"pp": 8, "vpp": 7, "gbs": 16}),  # fewer micro-batches than stages
    ("schedule", _MOE, {"pp": 4, "vpp": 2, "pp_schedule": "gpipe"}),
    ("schedule", _MOE, {"pp": 4, "pp_schedule": "zbv", "framework": "torchtitan"}),
    ("schedule", _MOE, {"pp": 4, "vpp": 2, "gbs": 32, "pp_schedule": "dualpipev", "framework": "torchtitan"}),
    ("schedule-framework", _MOE, {"pp": 4, "pp_schedule": "zb1p"}),
    ("position-embeddings", (GPT, ON_H100), {"seq_len": 4096}),
    ("sequence-parallel", _DENSE, {"sequence_parallel": True}),
    ("context-parallel-sequence", _DENSE, {"cp": 4, "seq_len": 4100}),
    ("sequence-parallel-length", _DENSE, {"tp": 8, "seq_len": 4100}),
    ("context-parallel-heads", _DENSE, {"tp": 8, "cp": 2, "cp_comm_type": "a2a"}),
    ("tp-overlap", _DENSE, {"tp": 2, "sequence_parallel": False, "tp_comm_overlap": True}),
    ("fp8-alignment", _DENSE, {"precision": "fp8-tensorwise", "seq_len": 4100}),
    ("experts", _DENSE, {"ep": 2}),
    ("expert-count", _MOE, {"ep": 16}),
    ("expert-sequence-parallel", _MOE, {"tp": 2, "sequence_parallel": False}),
    ("pipeline-layout", _DENSE, {"pp": 4, "pipeline_model_parallel_layout": "Et*80L"}),
    ("activation-offload", _DENSE, {"cpu_offloading_num_layers": 4, "recompute": "full"}),
    ("expert-bias", (BIASED_MOE, ON_H100), {"tp": 2}),
    ("expert-capacity", _MOE, {"ep": 8, "moe_expert_capacity_factor": 1.0, "moe_token_dispatcher": "deepep"}),
    ("dispatcher-group", _MOE, {"moe_token_dispatcher": "deepep"}),
    ("dispatcher-hardware", (MIXTRAL, cluster(MI250X, 4)), {"ep": 8, "moe_token_dispatcher": "deepep"}),
    ("dispatcher-hardware", (MIXTRAL, cluster(MI355X, 4)), {"ep": 8, "moe_token_dispatcher": "hybridep"}),
    ("expert-overlap", _MOE, {"overlap_moe_expert_parallel_comm": True}),
    ("expert-overlap-pipeline", _MOE, {"ep": 8, "pp": 4, "overlap_moe_expert_parallel_comm": True}),
    (
        "expert-overlap-dispatcher",
        _MOE,
        {"ep": 8, "overlap_moe_expert_parallel_comm": True, "moe_token_dispatcher": "allgather"},
    ),
    (
        "expert-overlap-recompute",
        _MOE,
        {"ep": 8, "overlap_moe_expert_parallel_comm": True, "recompute": "full"},
    ),
    ("expert-overlap-mtp", (BIASED_MOE, ON_H100), {"ep": 8, "overlap_moe_expert_parallel_comm": True}),
    ("recompute-modules", _DENSE, {"recompute": "selective", "recompute_modules": ("moe_act",)}),
    ("recompute-modules", _MOE, {"recompute": "selective", "recompute_modules": ("mla_up_proj",)}),
    ("recompute-modules", _MOE, {"recompute": "selective", "recompute_modules": ("shared_experts",)}),
    (
        "recompute-delayed-scaling",
        _MOE,
        {"recompute": "selective", "recompute_modules": ("moe_act",), "precision": "fp8-delayed"},
    ),
    ("recompute-unit", _DENSE, {"recompute": "full", "recompute_num_layers": 0}),
    (
        "recompute-block",
        _DENSE,
        {"pp": 4, "recompute": "full", "recompute_method": "block", "recompute_num_layers": 9},
    ),
    ("recompute-mtp", (DEEPSEEK, CLUSTERS[1]), {"recompute": "full", "recompute_num_layers": 2}),
    ("shard-size", _DENSE, {"dp_sharding": "hsdp", "dp_shard_size": 5}),
    (
        "shard-size",
        _MOE,
        {"dp_sharding": "hsdp", "dp_shard_size": 4, "ep": 8},
    ),  # four copies, edp=4, ep needs 8
    ("shard-size-hsdp", _DENSE, {"dp_sharding": "zero1", "dp_shard_size": 8}),
    ("parameter-gather-overlap", _DENSE, {"overlap_grad_reduce": False}),
    ("optimizer-state", _DENSE, {"optimizer": "sgd", "optimizer_state_dtype": "bf16"}),
    ("optimizer-state", _DENSE, {"optimizer": "muon", "optimizer_state_dtype": "fp8"}),
    ("master-weights", _DENSE, {"main_params_dtype": "bf16"}),
    ("optimizer-offload", _DENSE, {"optimizer_offload_fraction": 0.5, "dp_sharding": "fsdp"}),
    ("precision", _DENSE, {"precision": "nvfp4"}),
    ("precision", (GPT, cluster(V100, 2)), {"seq_len": 2048}),
    ("fp8-parameters", _DENSE, {"fp8_param_gather": True}),
    ("fp8-parameters", _DENSE, {"fp8_param_gather": True, "precision": "fp8", "dp_sharding": "none"}),
)


@pytest.mark.parametrize(("rule", "where", "changes"), ILLEGAL)
def test_each_rule_refuses(rule: str, where: tuple[Model, Any], changes: Mapping[str, Any]) -> None:
    r = recipe(*where, **changes)
    assert rule in names(r)


def test_every_rule_has_an_example_above() -> None:
    assert {rule for rule, _, _ in ILLEGAL} == {rule.name for rule in RULES}


def test_messages_name_values_and_the_nearest_legal_choice() -> None:
    assert message(recipe(LLAMA, ON_H100, tp=3), "attention-heads") == (
        "tp=3 does not divide num_attention_heads=32; nearest legal: tp=2 or tp=4"
    )
    assert message(recipe(tp=5, etp=1), "world-size") == (
        "tp*pp*cp = 5*1*1 = 5 does not divide the 32 GPUs; nearest legal: tp=4 or tp=8"
    )
    assert message(recipe(pp=4, vpp=4), "virtual-stages") == (
        "vpp=4 does not divide the 14 layers of a stage; nearest legal: vpp=2 or vpp=7"
    )
    assert message(recipe(LLAMA, ON_H100, gbs=100), "global-batch-size") == (
        "mbs*dp = 1*32 = 32 does not divide gbs=100; nearest legal: gbs=96 or gbs=128"
    )
    assert message(recipe(DEEPSEEK, pp=16), "pipeline-layers") == (
        "pp=16 does not divide num_layers=61; nearest legal: num_layers_in_last_pipeline_stage=1"
    )
    assert message(recipe(LLAMA.with_(num_layers=126), ON_H100, pp=8), "pipeline-layers") == (
        "pp=8 does not divide num_layers=126; nearest legal: account_for_embedding_in_pipeline_split=true, "
        "account_for_loss_in_pipeline_split=true"
    )
    assert message(recipe(GPT, cluster(V100, 2)), "precision") == (
        "precision=bf16 is not supported by v100 (allowed: fp16); nearest legal: precision=fp16"
    )


def test_several_violations_are_all_reported_in_order() -> None:
    r = recipe(tp=5, pp=3, ep=7)
    order = [rule.name for rule in RULES]
    found = [violation.rule for violation in check(r)]
    assert found == sorted(found, key=order.index)
    assert {"world-size", "attention-heads", "pipeline-layers", "expert-count"} <= set(found)


def test_an_advice_that_needs_two_fields_changes_both() -> None:
    violation = next(v for v in check(recipe(LLAMA, ON_H100, tp=3, pp=5)) if v.rule == "world-size")
    assert set(violation.nearest) == {"tp", "pp"}
    assert names(recipe(LLAMA, ON_H100, **violation.nearest)) == set()


@settings(max_examples=250, deadline=None)
@given(recipes())
def test_applying_the_advice_mends_the_rule(r: Recipe) -> None:
    for violation in check(r):
        assert "\n" not in violation.message
        impossible = violation.rule == "fp8-alignment" or not r.cluster.gpu.peak_flops
        assert violation.nearest or impossible, violation
        if violation.nearest:
            mended = r.with_(**violation.nearest)
            assert mended != r
            assert violation.rule not in names(mended), violation


@settings(max_examples=60, deadline=None)
@given(recipes(), recipes(), st.sampled_from([rule.name for rule in RULES]))
def test_a_rule_reads_only_the_fields_it_names(r: Recipe, other: Recipe, name: str) -> None:
    rule = next(rule for rule in RULES if rule.name == name)
    table, noise = Table.of([r]), Table.of([other])
    foreign = {column: getattr(noise, column) for column in COLUMNS if column not in rule.fields}
    assert rule.broken(table)[0] == rule.broken(replace(table, **foreign))[0]


@settings(max_examples=20, deadline=None)
@given(st.lists(recipes(), min_size=1, max_size=30))
def test_a_table_and_its_rows_agree(many: list[Recipe]) -> None:
    alike = [r for r in many if r.model == many[0].model and r.cluster == many[0].cluster]
    table = Table.of(alike)
    found = broken(table)
    assert legal_mask(table).shape == (len(alike),)
    for row, r in enumerate(alike):
        assert names(r) == {name for name, rows in found.items() if rows[row]}
        assert legal_mask(table)[row] == (check(r) == ())


def test_masks_are_boolean_and_writable_copies() -> None:
    table = Table.of([recipe()])
    for rule in RULES:
        mask = rule.broken(table)
        assert mask.dtype == np.bool_
        assert mask.shape == (1,)


def test_rules_are_documented() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.source
        assert set(rule.fields) <= set(COLUMNS)
