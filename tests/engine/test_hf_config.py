"""Hugging Face configurations: the public ones give the catalog's models, the rest a clear refusal."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.engine import catalog
from shardwise.engine.errors import ConfigError, UnsupportedError
from shardwise.engine.model import Model

# The fields that matter of public config.json files.
LLAMA31_70B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False,
    "hidden_size": 8192, "intermediate_size": 28672, "max_position_embeddings": 131072,
    "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"}, "tie_word_embeddings": False,
    "vocab_size": 128256,
}  # fmt: skip
LLAMA32_1B: dict[str, Any] = LLAMA31_70B | {
    "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_hidden_layers": 16,
    "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
MISTRAL_7B: dict[str, Any] = {
    "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 4096,
    "vocab_size": 32000,
}  # fmt: skip
MIXTRAL_8X22B: dict[str, Any] = {
    "model_type": "mixtral", "hidden_size": 6144, "intermediate_size": 16384,
    "max_position_embeddings": 65536,
    "num_attention_heads": 48, "num_experts_per_tok": 2, "num_hidden_layers": 56, "num_key_value_heads": 8,
    "num_local_experts": 8, "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 32000,
}  # fmt: skip
QWEN25_7B: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072,
    "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "sliding_window": 131072, "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 152064,
}  # fmt: skip
QWEN2_57B: dict[str, Any] = {
    "model_type": "qwen2_moe", "decoder_sparse_step": 1, "hidden_size": 3584, "intermediate_size": 18944,
    "max_position_embeddings": 131072, "max_window_layers": 28, "moe_intermediate_size": 2560,
    "num_attention_heads": 28, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "shared_expert_intermediate_size": 20480, "sliding_window": 65536,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_32B: dict[str, Any] = {
    "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "hidden_size": 5120,
    "intermediate_size": 25600, "max_position_embeddings": 40960, "max_window_layers": 64,
    "num_attention_heads": 64, "num_hidden_layers": 64, "num_key_value_heads": 8, "sliding_window": None,
    "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_235B: dict[str, Any] = {
    "model_type": "qwen3_moe", "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128,
    "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960, "mlp_only_layers": [],
    "moe_intermediate_size": 1536, "num_attention_heads": 64, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 94, "num_key_value_heads": 4, "tie_word_embeddings": False, "vocab_size": 151936,
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "attention_bias": False, "first_k_dense_replace": 3, "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_routed_experts": 256, "n_shared_experts": 1,
    "n_group": 8, "topk_group": 4,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "tie_word_embeddings": False, "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
DEEPSEEK_V2_LITE: dict[str, Any] = DEEPSEEK_V3 | {
    "model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16,
    "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
    "num_nextn_predict_layers": None,
    "q_lora_rank": None, "vocab_size": 102400, "n_group": 1, "topk_group": 1,
}  # fmt: skip
KIMI_K2: dict[str, Any] = DEEPSEEK_V3 | {
    "model_type": "kimi_k2", "first_k_dense_replace": 1, "n_routed_experts": 384, "num_attention_heads": 64,
    "num_key_value_heads": 64, "num_nextn_predict_layers": 0, "vocab_size": 163840,
    "max_position_embeddings": 131072, "n_group": 1, "topk_group": 1,
}  # fmt: skip
GPT_OSS_120B: dict[str, Any] = {
    "model_type": "gpt_oss", "attention_bias": True, "experts_per_token": 4, "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 36, "num_key_value_heads": 8, "num_local_experts": 128, "sliding_window": 128,
    "tie_word_embeddings": False, "vocab_size": 201088,
}  # fmt: skip
PUBLIC = {
    "llama-3.1-70b": LLAMA31_70B, "llama-3.2-1b": LLAMA32_1B, "mistral-7b": MISTRAL_7B,
    "mixtral-8x22b": MIXTRAL_8X22B, "qwen2.5-7b": QWEN25_7B, "qwen2-57b-a14b": QWEN2_57B,
    "qwen3-32b": QWEN3_32B,
    "qwen3-235b-a22b": QWEN3_235B, "deepseek-v3": DEEPSEEK_V3, "deepseek-v2-lite": DEEPSEEK_V2_LITE,
    "kimi-k2": KIMI_K2, "gpt-oss-120b": GPT_OSS_120B,
}  # fmt: skip
GPT2_XL: dict[str, Any] = {
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024,
    "vocab_size": 50257,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_configs_give_the_catalog_models(name: str) -> None:
    known = catalog.model(name)
    read = catalog.model(PUBLIC[name])
    assert read.with_(name=name, source=known.source) == known


def test_gpt2() -> None:
    model = catalog.model(GPT2_XL)
    assert (model.num_layers, model.hidden_size, model.ffn_hidden_size, model.kv_channels) == (
        48,
        1600,
        6400,
        64,
    )
    assert model.share_embeddings_and_output_weights
    assert not model.gated_linear_unit
    assert (model.normalization, model.position_embedding_type) == ("LayerNorm", "learned_absolute")


def test_gemma_ties_and_has_its_own_head_dim() -> None:
    model = catalog.model(LLAMA31_70B | {
        "model_type": "gemma2", "hidden_size": 3584, "num_attention_heads": 16, "head_dim": 256,
        "num_hidden_layers": 42, "sliding_window": 4096, "tie_word_embeddings": None,
    })  # fmt: skip
    assert model.share_embeddings_and_output_weights
    assert model.kv_channels == 256
    assert (model.window_size, model.window_attn_every) == (4096, 2)


def test_gemma3_attends_fully_every_sixth_layer() -> None:
    model = catalog.model(LLAMA31_70B | {
        "model_type": "gemma3_text", "num_hidden_layers": 62, "sliding_window": 1024,
        "sliding_window_pattern": 6,
    })  # fmt: skip
    assert [i for i, windowed in enumerate(model.windowed_layers) if not windowed][:3] == [5, 11, 17]
    assert model.qk_layernorm


def test_multimodal_is_read_for_its_language_model() -> None:
    outer = {"model_type": "mistral3", "text_config": MISTRAL_7B, "vision_config": {"hidden_size": 1024}}
    assert catalog.model(outer).num_layers == 32


def test_attention_bias_alone_is_a_qkv_bias() -> None:
    model = catalog.model(LLAMA31_70B | {"attention_bias": True})
    assert (model.add_qkv_bias, model.add_bias_linear) == (True, False)
    both = catalog.model(LLAMA31_70B | {"attention_bias": True, "mlp_bias": True})
    assert (both.add_qkv_bias, both.add_bias_linear) == (False, True)


@pytest.mark.parametrize(
    ("change", "moe"),
    [
        ({"decoder_sparse_step": 2}, [False, True, False, True, False, True]),
        ({"mlp_only_layers": [0, 1]}, [False, False, True, True, True, True]),
        ({"decoder_sparse_step": 1}, [True] * 6),
    ],
)
def test_which_qwen_layers_are_moe(change: dict[str, Any], moe: list[bool]) -> None:
    model = catalog.model(QWEN3_235B | {"num_hidden_layers": 6} | change)
    assert list(model.moe_layers) == moe


@pytest.mark.parametrize(("dense", "every"), [(1, 1), (3, 1), (1, 2), (2, 2), (3, 2), (0, 3)])
def test_which_deepseek_layers_are_moe(dense: int, every: int) -> None:
    model = catalog.model(DEEPSEEK_V3 | {"first_k_dense_replace": dense, "moe_layer_freq": every})
    assert list(model.moe_layers) == [i >= dense and i % every == 0 for i in range(61)]


@pytest.mark.parametrize(
    ("change", "window", "every"),
    [
        ({}, None, 1),
        ({"use_sliding_window": True, "max_window_layers": 28}, None, 1),
        ({"use_sliding_window": True, "max_window_layers": 0}, 131072, 1),
        (
            {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"] * 14},
            131072,
            2,
        ),
        ({"use_sliding_window": True, "layer_types": ["full_attention"] * 28}, None, 1),
    ],
)
def test_qwen_windows(change: dict[str, Any], window: int | None, every: int) -> None:
    model = catalog.model(QWEN25_7B | change)
    assert (model.window_size, model.window_attn_every) == (window, every)


@pytest.mark.parametrize(
    "data",
    [
        {"model_type": "mamba2", "num_hidden_layers": 64, "hidden_size": 4096},
        {"model_type": "qwen3_next", "num_hidden_layers": 48},
        {"model_type": "nemotron_h", "num_hidden_layers": 52},
        {"model_type": "t5", "is_encoder_decoder": True, "num_layers": 24},
        {"model_type": "whisper", "is_encoder_decoder": True, "num_hidden_layers": 24},
        {"model_type": "bert", "num_hidden_layers": 12},
        LLAMA31_70B | {"vision_config": {"hidden_size": 1024}},
        {"model_type": "gemma3", "text_config": {"model_type": "mamba"}},
        QWEN25_7B | {"use_sliding_window": True, "max_window_layers": 10},
        QWEN25_7B | {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"] * 14},
        QWEN25_7B | {"use_sliding_window": True, "layer_types": ["linear_attention"] * 28},
        QWEN3_235B | {"mlp_only_layers": [5]},
    ],
)
def test_what_is_not_modelled_names_its_type(data: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        catalog.model(data)
    inner = data.get("text_config", data)
    assert str(inner["model_type"]) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": None}, "model_type is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "8192"}, "hidden_size needs an integer"),
        ({"hidden_size": True}, "hidden_size needs an integer"),
        ({"hidden_size": 8192.0}, "hidden_size needs an integer"),
        ({"hidden_size": -1}, "hidden_size = -1 is out of range"),
        ({"hidden_size": 10**30}, "hidden_size = a huge number is out of range"),
        ({"num_hidden_layers": 10**6}, "num_layers is out of range (at most 10000)"),
        ({"num_attention_heads": 60}, "num_attention_heads = 60 does not divide"),
        ({"num_key_value_heads": 7}, "must divide num_attention_heads"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings needs true or false"),
    ],
)
def test_bad_fields_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.model(LLAMA31_70B | change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_from_a_file_and_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA31_70B))
    read = catalog.model(folder / "config.json")
    assert read.name == "My-Llama"
    assert catalog.model(folder) == read
    assert catalog.model(str(folder)) == read
    (folder / "config.json").write_text(json.dumps(LLAMA31_70B | {"_name_or_path": "owner/Other-70B"}))
    assert catalog.model(folder).name == "other-70b"


def test_broken_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text in (
        "",
        "[]",
        "{",
        '{"model_type": "llama",',
        "\0",
        '{"a": 1, "a": 2}',
        "[" * 100_000,
        "{" * 100_000,
    ):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            catalog.model(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        catalog.model(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        catalog.model(tmp_path / "absent.json")


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=3)
)


@settings(max_examples=150)
@given(st.sampled_from(sorted(PUBLIC)), st.data())
def test_a_spoilt_config_is_a_model_or_one_clear_line(name: str, data: st.DataObject) -> None:
    config = dict(PUBLIC[name])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), max_size=3)):
        config[key] = data.draw(VALUES)
    try:
        assert isinstance(catalog.model(config), Model)
    except ConfigError as err:
        assert len(str(err).splitlines()) == 1  # noqa: PT017 - either outcome is right
