"""A Hugging Face ``config.json`` -> ``Model``.

Field names and defaults are those of the ``transformers`` configuration classes, which is why a
default differs by family. A family that the engine does not model raises :class:`UnsupportedError`
with its ``model_type``. The file is untrusted: every field is checked for its type and its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.engine.errors import ConfigError, UnsupportedError
from shardwise.engine.model import Model

MAX_INT = 100_000_000
"""Largest value accepted for any size in a configuration."""

_LLAMA_LIKE = ("llama", "mistral", "phi3", "gemma", "gemma2", "gemma3_text", "qwen2", "qwen3")
_MOE = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "glm4_moe")
_DEEPSEEK = ("deepseek_v2", "deepseek_v3", "kimi_k2")
SUPPORTED = (*_LLAMA_LIKE, *_MOE, *_DEEPSEEK, "gpt2")
"""Every ``model_type`` that can be read."""

_TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3_text", "gpt2")
_QK_NORM = ("qwen3", "qwen3_moe", "gemma3_text")
_NESTED = ("text_config", "language_config", "llm_config")


def looks_like_hf_config(data: Mapping[str, Any]) -> bool:
    """Whether ``data`` is a ``config.json`` rather than a mapping of ``Model`` fields."""
    return bool({"model_type", "architectures", "num_hidden_layers", "n_layer", "text_config"} & set(data))


def from_hf_config(
    data: Mapping[str, Any], *, where: str = "config.json", default_name: str = "custom"
) -> Model:
    """The model that a ``config.json`` describes.

    ``where`` names the document in errors; ``default_name`` is the name of the model when the file
    has no ``_name_or_path``. A multimodal file is read for its language model (``text_config``).

    Raises :class:`UnsupportedError` for an architecture that the engine does not model and
    :class:`ConfigError` for a missing field or one of the wrong type or size.
    """
    config = _Config(_language_part(data, where), where)
    kind = _model_type(config)
    if kind == "gpt2":
        fields = _gpt2(config)
    else:
        fields = _common(config, kind)
        if kind in _MOE:
            fields |= _moe(config, kind)
        elif kind in _DEEPSEEK:
            fields |= _deepseek(config)
    named = data.get("_name_or_path")
    name = named.rstrip("/").rpartition("/")[2].lower() if isinstance(named, str) else ""
    source = f"Hugging Face config.json, model_type {kind}"
    return Model.build({"name": name[:100] or default_name, "source": source, **fields}, where=where)


@dataclass(frozen=True, slots=True)
class _Config:
    """Typed access to the fields of one configuration."""

    data: Mapping[str, Any]
    where: str

    def size(self, *names: str, default: int | None = None, low: int = 1) -> int:
        """The first of ``names`` that is set, as an integer in ``[low, MAX_INT]``."""
        for name in names:
            value = self.data.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise self._bad(name, f"needs an integer, got {_short(value)}")
            if not low <= value <= MAX_INT:
                raise self._bad(name, f"= {_short(value)} is out of range ({low} to {MAX_INT})")
            return value
        if default is None:
            raise self._bad(names[0], "is missing")
        return default

    def flag(self, name: str, default: bool) -> bool:
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._bad(name, f"needs true or false, got {_short(value)}")
        return value

    def words(self, name: str) -> list[Any] | None:
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > 10_000:
            raise self._bad(name, f"needs a list, got {_short(value)}")
        return value

    def _bad(self, name: str, message: str) -> ConfigError:
        return ConfigError(f"{self.where}: {name} {message}", field=name)


def _short(value: object) -> str:
    text = (
        " ".join(repr(value).split())
        if not isinstance(value, int) or abs(value) < 10**20
        else "a huge number"
    )
    return text if len(text) <= 60 else text[:57] + "..."


def _language_part(data: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if data.get("is_encoder_decoder") is True:
        raise UnsupportedError(
            f"{where}: model_type {_short(data.get('model_type'))} is an encoder-decoder, not modelled",
            field="model_type",
        )
    for key in _NESTED:
        nested = data.get(key)
        if isinstance(nested, Mapping):
            outer = {k: data[k] for k in ("tie_word_embeddings", "num_nextn_predict_layers") if k in data}
            return {**outer, **nested}
    return data


def _model_type(config: _Config) -> str:
    kind = config.data.get("model_type")
    if kind is None:
        raise ConfigError(
            f"{config.where}: model_type is missing (known: {', '.join(SUPPORTED)})", field="model_type"
        )
    if kind not in SUPPORTED:
        raise UnsupportedError(
            f"{config.where}: model_type {_short(kind)} is not modelled (known: {', '.join(SUPPORTED)})",
            field="model_type",
        )
    if config.data.get("vision_config") is not None:
        raise UnsupportedError(
            f"{config.where}: model_type {_short(kind)} is multimodal without a text_config",
            field="model_type",
        )
    return str(kind)


def _common(config: _Config, kind: str) -> dict[str, Any]:
    layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
    heads = config.size("num_attention_heads")
    if config.data.get("head_dim") is None and hidden % heads:
        raise ConfigError(
            f"{config.where}: head_dim is missing and num_attention_heads = {heads} does not divide "
            f"hidden_size = {hidden}",
            field="head_dim",
        )
    attention_bias = config.flag("attention_bias", kind in ("qwen2", "qwen2_moe", "gpt_oss"))
    qkv_bias = config.flag("qkv_bias", attention_bias)
    mlp_bias = config.flag("mlp_bias", kind == "gpt_oss")
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": config.size("intermediate_size"),
        "num_attention_heads": heads,
        "num_query_groups": config.size("num_key_value_heads", default=heads),
        "kv_channels": config.size("head_dim", default=max(hidden // heads, 1)),
        "vocab_size": config.size("vocab_size"),
        "max_position_embeddings": config.size("max_position_embeddings", default=8192),
        "share_embeddings_and_output_weights": config.flag("tie_word_embeddings", kind in _TIED_BY_DEFAULT),
        "add_bias_linear": qkv_bias and mlp_bias,
        "add_qkv_bias": qkv_bias and not mlp_bias,
        "qk_layernorm": kind in _QK_NORM or config.flag("use_qk_norm", False),
        "attention_sink": kind == "gpt_oss",
        **_window(config, kind, layers),
    }


def _window(config: _Config, kind: str, layers: int) -> dict[str, Any]:
    if config.data.get("sliding_window") is None:
        return {}
    # A configuration that transformers wrote says 0 where the window is off.
    window = config.size("sliding_window", low=0)
    if not window:
        return {}
    if kind in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe") and not config.flag("use_sliding_window", False):
        return {}
    types = config.words("layer_types")
    if types is not None:
        windowed = [word == "sliding_attention" for word in types]
        if len(windowed) != layers or any(
            word not in ("sliding_attention", "full_attention") for word in types
        ):
            raise UnsupportedError(
                f"{config.where}: layer_types of model_type {kind} needs sliding_attention or full_attention "
                f"once for each of {layers} layers",
                field="layer_types",
            )
    elif kind in ("gemma2", "gpt_oss"):
        windowed = [i % 2 == 0 for i in range(layers)]
    elif kind == "gemma3_text":
        pattern = config.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
        windowed = [(i + 1) % pattern != 0 for i in range(layers)]
    elif kind.startswith("qwen"):
        # The lowest ``max_window_layers`` layers attend fully, the others through the window.
        full = config.size("max_window_layers", default=28, low=0)
        windowed = [i >= full for i in range(layers)]
    else:
        windowed = [True] * layers
    if not any(windowed):
        return {}
    every = 1 if all(windowed) else windowed.index(False) + 1
    if windowed != [every == 1 or (i + 1) % every != 0 for i in range(layers)]:
        raise UnsupportedError(
            f"{config.where}: model_type {kind} with windowed layers in no regular pattern is not modelled",
            field="layer_types",
        )
    return {"window_size": window, "window_attn_every": every}


def _moe(config: _Config, kind: str) -> dict[str, Any]:
    width = config.size("moe_intermediate_size", "intermediate_size")
    shared = 0
    if kind == "qwen2_moe":
        shared = config.size("shared_expert_intermediate_size", default=5632, low=0)
    elif kind == "glm4_moe":
        shared = config.size("n_shared_experts", default=1, low=0) * width
    dense, every = _dense_and_every(config, kind)
    fields: dict[str, Any] = {
        "num_experts": config.size("num_local_experts", "num_experts", "n_routed_experts"),
        "moe_router_topk": config.size("num_experts_per_tok", "experts_per_token"),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": shared,
        "moe_shared_expert_gate": kind == "qwen2_moe",
        "num_dense_layers": dense,
        "moe_layer_freq": every,
        "mtp_num_layers": config.size("num_nextn_predict_layers", default=0, low=0),
    }
    if dense == 0 and every == 1:
        fields["ffn_hidden_size"] = width
    return fields


def _dense_and_every(config: _Config, kind: str) -> tuple[int, int]:
    layers = config.size("num_hidden_layers")
    if kind == "glm4_moe":
        return min(config.size("first_k_dense_replace", default=1, low=0), layers), 1
    if kind not in ("qwen2_moe", "qwen3_moe"):
        return 0, 1
    every = config.size("decoder_sparse_step", default=1)
    only_dense = config.words("mlp_only_layers") or []
    if only_dense and (every > 1 or sorted(only_dense, key=str) != sorted(range(len(only_dense)), key=str)):
        raise UnsupportedError(
            f"{config.where}: mlp_only_layers of model_type {kind} are modelled only as the leading layers",
            field="mlp_only_layers",
        )
    return (len(only_dense), 1) if every == 1 else (every - 1, every)


def _deepseek(config: _Config) -> dict[str, Any]:
    heads = config.size("num_attention_heads")
    no_rope, v_dim = config.size("qk_nope_head_dim"), config.size("v_head_dim")
    fields: dict[str, Any] = {
        "num_query_groups": heads,
        "kv_channels": no_rope,
        "multi_latent_attention": True,
        "q_lora_rank": config.size("q_lora_rank") if config.data.get("q_lora_rank") is not None else None,
        "kv_lora_rank": config.size("kv_lora_rank"),
        "qk_head_dim": no_rope,
        "qk_pos_emb_head_dim": config.size("qk_rope_head_dim"),
        "v_head_dim": v_dim,
        "mtp_num_layers": config.size("num_nextn_predict_layers", default=0, low=0),
    }
    if config.data.get("n_routed_experts") is None:
        return fields
    width, every = config.size("moe_intermediate_size"), config.size("moe_layer_freq", default=1)
    dense = config.size("first_k_dense_replace", default=0, low=0)
    # Here a layer is MoE when its own index is a multiple; ``Model`` counts from the first MoE layer.
    dense += -dense % every
    return fields | {
        "num_experts": config.size("n_routed_experts"),
        "moe_router_topk": config.size("num_experts_per_tok"),
        **_router_groups(config),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": config.size("n_shared_experts", default=0, low=0) * width,
        "num_dense_layers": min(dense, config.size("num_hidden_layers")),
        "moe_layer_freq": every,
        **({} if dense or every > 1 else {"ffn_hidden_size": width}),
    }


def _router_groups(config: _Config) -> dict[str, int]:
    """Node-limited routing; one group is no limit."""
    groups = config.size("n_group", default=1)
    if groups == 1:
        return {}
    return {"moe_router_num_groups": groups, "moe_router_group_topk": config.size("topk_group")}


def _gpt2(config: _Config) -> dict[str, Any]:
    hidden, heads = config.size("n_embd", "hidden_size"), config.size("n_head", "num_attention_heads")
    if hidden % heads:
        raise ConfigError(f"{config.where}: n_head = {heads} must divide n_embd = {hidden}", field="n_head")
    return {
        "num_layers": config.size("n_layer", "num_hidden_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": config.size("n_inner", default=4 * hidden),
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "kv_channels": hidden // heads,
        "vocab_size": config.size("vocab_size"),
        "max_position_embeddings": config.size("n_positions", "n_ctx", default=1024),
        "gated_linear_unit": False,
        "share_embeddings_and_output_weights": config.flag("tie_word_embeddings", True),
        "normalization": "LayerNorm",
        "position_embedding_type": "learned_absolute",
        "add_bias_linear": True,
    }
