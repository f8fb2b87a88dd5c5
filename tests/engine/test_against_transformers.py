"""Parameter counts against the models that ``transformers`` builds from the same configuration."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.engine.catalog.hf_config import from_hf_config
from shardwise.engine.flops import attention_flops_per_token, matmul_parameters
from shardwise.engine.parameters import total_parameters

_COMMON: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
_MLA: dict[str, Any] = {
    "num_key_value_heads": 8,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 128,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"head_dim": 32},
    "qwen2": {},
    "qwen3": {"head_dim": 64},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128},
    "qwen2_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128},
    "gpt_oss": {"head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v2": {**_MLA, "q_lora_rank": None},
    "deepseek_v3": {**_MLA, "q_lora_rank": 96},
}


@pytest.mark.parametrize("family", _CONFIGS)
@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_is_counted(family: str, tied: bool) -> None:
    torch = pytest.importorskip("torch", reason="counts parameters of torch modules")
    transformers = pytest.importorskip("transformers", reason="builds the models to count")
    fields = {**_COMMON, **_CONFIGS[family], "tie_word_embeddings": tied}
    config = transformers.AutoConfig.for_model(family, **fields)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    ours = from_hf_config({"model_type": family, **config.to_dict()})
    assert total_parameters(ours) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("family", ["llama", "qwen3", "deepseek_v3"])
def test_every_multiplication_is_counted(family: str) -> None:
    """A forward pass under torch's own counter, which does not halve causal attention."""
    torch = pytest.importorskip("torch", reason="counts the FLOPs of torch operators")
    transformers = pytest.importorskip("transformers", reason="builds the models to count")
    flop_counter = pytest.importorskip("torch.utils.flop_counter")
    dense = {"first_k_dense_replace": 4} if family == "deepseek_v3" else {}
    config = transformers.AutoConfig.for_model(family, **{**_COMMON, **_CONFIGS[family], **dense})
    # transformers builds no multi-token prediction.
    ours = from_hf_config({"model_type": family, **config.to_dict()}).with_(mtp_num_layers=0)
    tokens = 128
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    counter = flop_counter.FlopCounterMode(display=False)
    with counter, torch.no_grad():
        theirs(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    attention = 2 * attention_flops_per_token(ours, tokens)
    expected = tokens * (2 * matmul_parameters(ours) + attention)
    assert counter.get_total_flops() == pytest.approx(expected, rel=1e-9)
