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

CONFIG_RULES = {
    "attention-heads", "query-groups", "pipeline-layers", "pipeline-uneven-split", "pipeline-split-options",
    "virtual-stages", "sequence-parallel", "experts", "expert-bias",
    "expert-overlap", "expert-overlap-pipeline", "expert-overlap-dispatcher", "expert-overlap-recompute",
    "expert-overlap-mtp",
}  # fmt: skip
"""Rules that the configuration classes check themselves, without process groups, data or a GPU."""


def config(r: Recipe) -> Any:
    """The recipe as megatron-core's configuration; raises where megatron-core refuses it."""
    import torch
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    m = r.model
    fields: dict[str, Any] = {
        "num_layers": m.num_layers, "hidden_size": m.hidden_size, "ffn_hidden_size": m.ffn_hidden_size,
        "num_attention_heads": m.num_attention_heads, "kv_channels": m.kv_channels,
        "gated_linear_unit": m.gated_linear_unit, "add_bias_linear": m.add_bias_linear,
        "normalization": m.normalization, "mtp_num_layers": m.mtp_num_layers or None,
        "tensor_model_parallel_size": r.tp, "pipeline_model_parallel_size": r.pp,
        "virtual_pipeline_model_parallel_size": r.vpp if r.vpp > 1 else None,
        "context_parallel_size": r.cp, "expert_model_parallel_size": r.ep,
        "expert_tensor_parallel_size": r.etp, "sequence_parallel": r.sequence_parallel,
        "pipeline_dtype": torch.bfloat16, "bf16": True, "params_dtype": torch.bfloat16,
        "num_layers_in_first_pipeline_stage": r.num_layers_in_first_pipeline_stage,
        "num_layers_in_last_pipeline_stage": r.num_layers_in_last_pipeline_stage,
        "account_for_embedding_in_pipeline_split": r.account_for_embedding_in_pipeline_split,
        "account_for_loss_in_pipeline_split": r.account_for_loss_in_pipeline_split,
        "overlap_moe_expert_parallel_comm": r.overlap_moe_expert_parallel_comm,
    }  # fmt: skip
    if m.gated_linear_unit:
        fields["activation_func"] = torch.nn.functional.silu
    if r.recompute != "none":
        fields["recompute_granularity"] = r.recompute
    if r.recompute == "full":
        fields |= {"recompute_method": r.recompute_method, "recompute_num_layers": r.recompute_num_layers}
    if r.recompute == "selective":
        fields["recompute_modules"] = list(r.recompute_modules)
    if m.is_moe:
        flex = r.moe_token_dispatcher in ("deepep", "hybridep")
        fields |= {
            "num_moe_experts": m.num_experts, "moe_router_topk": m.moe_router_topk,
            "moe_ffn_hidden_size": m.moe_ffn_hidden_size, "moe_grouped_gemm": True,
            "moe_token_dispatcher_type": "flex" if flex else r.moe_token_dispatcher,
            "moe_router_load_balancing_type": "aux_loss",
        }  # fmt: skip
    if not m.multi_latent_attention:
        return TransformerConfig(num_query_groups=m.num_query_groups, **fields)
    return MLATransformerConfig(
        q_lora_rank=m.q_lora_rank, kv_lora_rank=m.kv_lora_rank, qk_head_dim=m.qk_head_dim,
        qk_pos_emb_head_dim=m.qk_pos_emb_head_dim, v_head_dim=m.v_head_dim, **fields,
    )  # fmt: skip


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
