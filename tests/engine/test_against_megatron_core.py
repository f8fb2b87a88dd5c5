"""Parameters of every pipeline rank against the modules that megatron-core builds for it."""

from __future__ import annotations

from typing import Any

import pytest
from test_legality_megatron_core import config

from shardwise.engine.lowering import lower
from shardwise.engine.parameters import stage_parameters
from shardwise.engine.pipeline_layout import all_stages
from shardwise.engine.recipe import Recipe
from shardwise.engine.recipe_io import load_recipe
from shardwise.engine.table import Table

torch: Any = pytest.importorskip("torch", reason="builds torch modules")
pytest.importorskip("megatron.core", reason="builds megatron-core's modules")

_SMALL: dict[str, Any] = {
    "name": "small",
    "num_layers": 8,
    "hidden_size": 256,
    "ffn_hidden_size": 640,
    "num_attention_heads": 8,
    "num_query_groups": 4,
    "kv_channels": 32,
    "vocab_size": 1000,
}
_EXPERTS: dict[str, Any] = {"num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 384}
_MLA: dict[str, Any] = {
    "num_query_groups": 8,
    "multi_latent_attention": True,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_head_dim": 32,
    "qk_pos_emb_head_dim": 16,
    "v_head_dim": 32,
}
_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dense": ({}, {"tp": 2, "pp": 4}),
    "one rank": ({}, {}),
    "plain mlp, biases, learned positions": (
        {
            "gated_linear_unit": False,
            "add_bias_linear": True,
            "normalization": "LayerNorm",
            "num_query_groups": 8,
            "position_embedding_type": "learned_absolute",
            "max_position_embeddings": 128,
        },
        {"tp": 2, "pp": 2},
    ),
    "tied": ({"share_embeddings_and_output_weights": True}, {"tp": 2, "pp": 2}),
    "tied on one stage": ({"share_embeddings_and_output_weights": True}, {"tp": 4}),
    "qk norms, qkv bias": ({"qk_layernorm": True, "add_qkv_bias": True}, {"tp": 2, "pp": 2}),
    "uneven": (
        {},
        {"pp": 4, "num_layers_in_first_pipeline_stage": 1, "num_layers_in_last_pipeline_stage": 1},
    ),
    "embedding and loss as layers": (
        {"num_layers": 6},
        {
            "pp": 4,
            "account_for_embedding_in_pipeline_split": True,
            "account_for_loss_in_pipeline_split": True,
        },
    ),
    "experts": (_EXPERTS, {"tp": 2, "pp": 2, "ep": 4, "etp": 1}),
    "experts split too": (_EXPERTS, {"tp": 2, "pp": 2, "ep": 2, "etp": 2}),
    "shared experts, dense first": (
        {**_EXPERTS, "moe_shared_expert_intermediate_size": 512, "num_dense_layers": 2},
        {"tp": 2, "pp": 2, "ep": 2, "etp": 1},
    ),
    # Not split by tp: Transformer Engine repeats the down projections, Megatron's own layers split them.
    "multi-latent attention": (_MLA, {"pp": 2}),
    "multi-latent attention, experts": ({**_MLA, **_EXPERTS}, {"pp": 2, "ep": 4, "etp": 1}),
}


@pytest.mark.parametrize("name", _CASES)
@pytest.mark.filterwarnings("ignore")
def test_every_stage_holds_what_megatron_core_builds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    from shardwise.engine.measure.megatron import rank_of

    # Building a layer asks for streams and devices, and Megatron's own attention core refuses the head sizes
    # of multi-latent attention; it has no parameters, and counting those of others needs none of this.
    start = DotProductAttention.__init__

    def without_head_sizes(
        self: Any, *args: Any, k_channels: Any = None, v_channels: Any = None, **more: Any
    ) -> None:
        start(self, *args, **more)

    monkeypatch.setattr(DotProductAttention, "__init__", without_head_sizes)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    for absent in ("TELinear", "TEColumnParallelLinear"):
        monkeypatch.setattr(multi_latent_attention, absent, type(absent, (), {}), raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    changes, fields = _CASES[name]
    model = {**_SMALL, **changes}
    given = {"cluster": "h100:2x8", "gbs": 64, "seq_len": 128, **fields}
    r = load_recipe({"model": model, **given})
    table = Table.of([r])
    ours = stage_parameters(lower(table, all_stages(table)))
    for stage in range(r.pp):
        with rank_of(r, stage):
            dense, expert = _built(r, stage)
        assert (ours.dense[0, stage], ours.expert[0, stage]) == (dense, expert), f"stage {stage}"


def _built(r: Recipe, stage: int) -> tuple[int, int]:
    """Parameters outside and inside routed experts of the module that megatron-core builds for a stage."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    settings = config(r.with_(sequence_parallel=False))
    settings.use_cpu_initialization, settings.perform_initialization = True, False
    m = r.model
    settings.moe_grouped_gemm = False
    settings.qk_layernorm = m.qk_layernorm or m.multi_latent_attention
    settings.add_qkv_bias = m.add_qkv_bias
    if m.is_moe:
        settings.moe_layer_freq = [int(moe) for moe in m.moe_layers]
        settings.moe_shared_expert_intermediate_size = m.moe_shared_expert_intermediate_size or None
    spec = get_gpt_decoder_block_spec(
        settings, use_transformer_engine=False, normalization=r.model.normalization
    )
    low = lower(Table.of([r]))
    module = GPTModel(
        settings,
        spec,
        vocab_size=round(float(low.vocab[0]) * r.tp),
        max_sequence_length=r.model.max_position_embeddings,
        pre_process=stage == 0,
        post_process=stage == r.pp - 1,
        position_embedding_type=r.model.position_embedding_type,
        share_embeddings_and_output_weights=r.model.share_embeddings_and_output_weights,
    )
    dense = sum(p.numel() for p in module.parameters() if getattr(p, "allreduce", True))
    return dense, sum(p.numel() for p in module.parameters()) - dense
