"""``Model``: what is trained. Field names are Megatron-Core's (``TransformerConfig``)."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from shardwise.engine.spec import Spec


class Model(Spec):
    """One decoder-only transformer. Sizes are counts of elements, not bytes."""

    name: str = Field(min_length=1)
    """Catalog name, lower case with dashes (``mixtral-8x22b``)."""
    source: str = ""
    """Where the numbers come from (a Hugging Face ``config.json``, a paper's table)."""

    num_layers: PositiveInt
    """Decoder layers (without multi-token-prediction layers)."""
    hidden_size: PositiveInt
    ffn_hidden_size: PositiveInt
    """Width of a dense MLP. For a model whose layers are all MoE: equal to ``moe_ffn_hidden_size``."""
    num_attention_heads: PositiveInt
    num_query_groups: PositiveInt
    """Key/value heads: equal to ``num_attention_heads`` for MHA, fewer for GQA, 1 for MQA."""
    kv_channels: PositiveInt
    """Head dimension (of query, key and value; see the MLA fields for MLA)."""
    vocab_size: PositiveInt
    """Unpadded vocabulary."""
    max_position_embeddings: PositiveInt = 131072

    gated_linear_unit: bool = True
    """SwiGLU-like MLP with three matrices instead of two."""
    share_embeddings_and_output_weights: bool = False
    normalization: Literal["RMSNorm", "LayerNorm"] = "RMSNorm"
    position_embedding_type: Literal["rope", "learned_absolute", "none"] = "rope"
    add_bias_linear: bool = False
    """Biases on attention projections and MLP linears."""
    add_qkv_bias: bool = False
    """Biases on the QKV projection only (Qwen2)."""
    qk_layernorm: bool = False
    """A norm over each query and key head (Qwen3)."""
    attention_sink: bool = False
    """A learned softmax sink per head (GPT-OSS)."""
    window_size: PositiveInt | None = None
    """Sliding-window length of the windowed attention layers; None when every layer attends fully."""
    window_attn_every: PositiveInt = 1
    """Of every so many layers, all but the last use the window (1 = every layer, 2 = alternate)."""

    num_experts: PositiveInt | None = None
    """Routed experts of a MoE layer; None for a dense model."""
    moe_router_topk: PositiveInt = 1
    moe_router_num_groups: PositiveInt | None = None
    """Groups of consecutive experts from which the router picks some first (node-limited routing)."""
    moe_router_group_topk: PositiveInt | None = None
    """How many of these groups a token may go to."""
    moe_ffn_hidden_size: PositiveInt | None = None
    """Width of one routed expert."""
    moe_shared_expert_intermediate_size: int = Field(default=0, ge=0)
    """Width of all shared experts together; 0 when there are none."""
    moe_shared_expert_gate: bool = False
    """A sigmoid gate on the shared experts' output (Qwen2-MoE)."""
    num_dense_layers: int = Field(default=0, ge=0)
    """Leading dense layers of a MoE model (``first_k_dense_replace``)."""
    moe_layer_freq: PositiveInt = 1
    """After the leading dense layers, one MoE layer every so many layers."""

    multi_latent_attention: bool = False
    q_lora_rank: PositiveInt | None = None
    kv_lora_rank: PositiveInt | None = None
    qk_head_dim: PositiveInt | None = None
    """Non-rotary dimension of a query/key head (MLA)."""
    qk_pos_emb_head_dim: PositiveInt | None = None
    """Rotary dimension of a query/key head (MLA)."""
    v_head_dim: PositiveInt | None = None
    """Value head dimension (MLA)."""
    mtp_num_layers: int = Field(default=0, ge=0)
    """Multi-token-prediction layers after the decoder (DeepSeek V3)."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.num_attention_heads % self.num_query_groups:
            raise ValueError(
                f"num_query_groups={self.num_query_groups} must divide "
                f"num_attention_heads={self.num_attention_heads}"
            )
        if self.num_experts is not None:
            if self.moe_ffn_hidden_size is None:
                raise ValueError("moe_ffn_hidden_size is needed when num_experts is set")
            if self.moe_router_topk > self.num_experts:
                raise ValueError(
                    f"moe_router_topk={self.moe_router_topk} exceeds num_experts={self.num_experts}"
                )
            self._check_router_groups(self.num_experts)
        if self.num_dense_layers > self.num_layers:
            raise ValueError(f"num_dense_layers={self.num_dense_layers} exceeds num_layers={self.num_layers}")
        if self.multi_latent_attention:
            missing = [
                name
                for name in ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
                if getattr(self, name) is None
            ]
            if missing:
                raise ValueError(f"multi_latent_attention needs {', '.join(missing)}")
        return self

    def _check_router_groups(self, experts: int) -> None:
        """Group-limited routing as Megatron-Core wants it (``moe_utils.group_limited_topk``)."""
        groups, chosen = self.moe_router_num_groups, self.moe_router_group_topk
        if (groups is None) != (chosen is None):
            raise ValueError("moe_router_num_groups and moe_router_group_topk are set together or not at all")
        if groups is None or chosen is None:
            return
        if experts % groups:
            raise ValueError(f"moe_router_num_groups={groups} must divide num_experts={experts}")
        if chosen > groups:
            raise ValueError(f"moe_router_group_topk={chosen} exceeds moe_router_num_groups={groups}")
        if chosen * (experts // groups) < self.moe_router_topk:
            raise ValueError(
                f"moe_router_group_topk={chosen} groups of {experts // groups} experts hold fewer than "
                f"moe_router_topk={self.moe_router_topk}"
            )

    @property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return self.num_experts is not None

    @cached_property
    def moe_layers(self) -> tuple[bool, ...]:
        """For each decoder layer, whether it is a MoE layer."""
        if not self.is_moe:
            return (False,) * self.num_layers
        dense = self.num_dense_layers
        return tuple(i >= dense and (i - dense) % self.moe_layer_freq == 0 for i in range(self.num_layers))

    @cached_property
    def windowed_layers(self) -> tuple[bool, ...]:
        """For each decoder layer, whether its attention uses the sliding window."""
        if self.window_size is None:
            return (False,) * self.num_layers
        every = self.window_attn_every
        return tuple(every == 1 or (i + 1) % every != 0 for i in range(self.num_layers))
