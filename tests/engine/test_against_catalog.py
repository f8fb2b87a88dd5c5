"""Every catalog model, at its full size, against the class that ``transformers`` has for it (meta device)."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.engine import catalog
from shardwise.engine.model import Model
from shardwise.engine.parameters import total_parameters

_FAMILIES = (
    ("llama", "llama"),
    ("mistral", "mistral"),
    ("mixtral", "mixtral"),
    ("qwen2-57b", "qwen2_moe"),
    ("qwen2.5", "qwen2"),
    ("qwen3-30b", "qwen3_moe"),
    ("qwen3-235b", "qwen3_moe"),
    ("qwen3", "qwen3"),
    ("gpt-oss", "gpt_oss"),
    ("deepseek-v2", "deepseek_v2"),
    ("deepseek-v3", "deepseek_v3"),
    ("kimi-k2", "deepseek_v3"),
    ("moonlight", "deepseek_v3"),
    ("gpt3", "gpt2"),
)
"""Start of a catalog name -> ``model_type``. The first that fits counts."""


def _configuration(m: Model, family: str) -> dict[str, Any]:
    """The family's own words for the sizes of ``m``."""
    if family == "gpt2":
        return {
            "n_embd": m.hidden_size,
            "n_layer": m.num_layers,
            "n_head": m.num_attention_heads,
            "n_inner": m.ffn_hidden_size,
            "n_positions": m.max_position_embeddings,
            "vocab_size": m.vocab_size,
            "tie_word_embeddings": m.share_embeddings_and_output_weights,
        }
    fields: dict[str, Any] = {
        "hidden_size": m.hidden_size,
        "intermediate_size": m.ffn_hidden_size,
        "num_hidden_layers": m.num_layers,
        "num_attention_heads": m.num_attention_heads,
        "num_key_value_heads": m.num_query_groups,
        "vocab_size": m.vocab_size,
        "tie_word_embeddings": m.share_embeddings_and_output_weights,
    }
    if not m.multi_latent_attention:
        fields["head_dim"] = m.kv_channels
    if m.is_moe:
        assert m.moe_ffn_hidden_size is not None
        fields |= {"num_experts_per_tok": m.moe_router_topk, "moe_intermediate_size": m.moe_ffn_hidden_size}
        few = family in ("mixtral", "gpt_oss")
        names = ("num_local_experts",) if few else ("num_experts", "n_routed_experts")
        fields |= dict.fromkeys(names, m.num_experts)
        if few:
            fields["intermediate_size"] = m.moe_ffn_hidden_size
    if family == "qwen2_moe":
        fields["shared_expert_intermediate_size"] = m.moe_shared_expert_intermediate_size
    if m.multi_latent_attention:
        assert m.moe_ffn_hidden_size is not None
        fields |= {
            "q_lora_rank": m.q_lora_rank,
            "kv_lora_rank": m.kv_lora_rank,
            "qk_nope_head_dim": m.qk_head_dim,
            "qk_rope_head_dim": m.qk_pos_emb_head_dim,
            "v_head_dim": m.v_head_dim,
            "n_shared_experts": m.moe_shared_expert_intermediate_size // m.moe_ffn_hidden_size,
            "first_k_dense_replace": m.num_dense_layers,
            "n_group": 1,
            "topk_group": 1,
        }
    return fields


@pytest.mark.parametrize("name", sorted(catalog.models()))
def test_every_parameter_of_a_catalog_model_is_counted(name: str) -> None:
    torch = pytest.importorskip("torch", reason="counts parameters of torch modules")
    transformers = pytest.importorskip("transformers", reason="builds the models to count")
    model = catalog.model(name)
    family = next(family for start, family in _FAMILIES if name.startswith(start))
    config = transformers.AutoConfig.for_model(family, **_configuration(model, family))
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    assert total_parameters(model) == sum(p.numel() for p in theirs.parameters())
