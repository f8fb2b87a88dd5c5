"""What the modules that are measured cannot stand for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise.engine.errors import UnsupportedError
from shardwise.engine.recipe import Recipe

PACKAGES: dict[str, tuple[str, ...]] = {
    "megatron-core": ("torch", "megatron.core"),
    "pytorch": ("torch", "transformers"),
    "deepspeed": ("torch", "transformers"),
}
"""Framework -> packages whose modules run: megatron-core's ``GPTModel``, or transformers' model classes."""

_Limit = tuple[str, Any, str, bool]
"""Field, value, what is allowed, whether the value is."""


def refuse(recipe: Recipe) -> None:
    """Raise :class:`UnsupportedError` for the first thing that cannot be measured."""
    own = _megatron if recipe.framework == "megatron-core" else _transformers
    for limits in (_common, own):
        for field, value, allowed, fine in limits(recipe):
            if not fine:
                shown = str(value).lower() if isinstance(value, bool) else value
                raise UnsupportedError(f"{field} = {shown}: measuring allows {allowed}", field=field)


def _common(r: Recipe) -> Iterator[_Limit]:
    yield "framework", r.framework, ", ".join(PACKAGES), r.framework in PACKAGES
    yield "precision", r.precision, "bf16", r.precision == "bf16"
    yield "dp_sharding", r.dp_sharding, "none, zero1", r.dp_sharding in ("none", "zero1")
    yield "optimizer", r.optimizer, "adam", r.optimizer == "adam"
    yield "main_params_dtype", r.main_params_dtype, "fp32", r.main_params_dtype == "fp32"
    yield "optimizer_state_dtype", r.optimizer_state_dtype, "fp32", r.optimizer_state_dtype == "fp32"
    offload = r.optimizer_offload_fraction
    yield "optimizer_offload_fraction", offload, "0", offload == 0.0
    yield "cuda_graphs", r.cuda_graphs, "false", not r.cuda_graphs
    yield "torch_compile", r.torch_compile, "false", not r.torch_compile
    yield "mtp_num_layers", r.model.mtp_num_layers, "0", r.model.mtp_num_layers == 0
    yield "attention_sink", r.model.attention_sink, "false", not r.model.attention_sink


def _megatron(r: Recipe) -> Iterator[_Limit]:
    native = not r.cross_entropy_fusion or r.cross_entropy_fusion_impl == "native"
    latent = "1 under multi-latent attention (Megatron's own layers split what Transformer Engine repeats)"
    overlap = r.overlap_moe_expert_parallel_comm
    ring = r.attention_backend == "flash" and r.cp_comm_type == "p2p"
    yield "cp", r.cp, "1, or more with attention_backend flash and cp_comm_type p2p", r.cp == 1 or ring
    yield "tp", r.tp, latent, r.tp == 1 or not r.model.multi_latent_attention
    yield "norm_fusion", r.norm_fusion, "true", r.norm_fusion
    yield "cross_entropy_fusion_impl", r.cross_entropy_fusion_impl, "native", native
    yield "overlap_moe_expert_parallel_comm", overlap, "false", not overlap


def _transformers(r: Recipe) -> Iterator[_Limit]:
    m = r.model
    for field in ("tp", "pp", "cp", "ep"):
        size = getattr(r, field)
        yield field, size, f"1 with {r.framework}, which runs transformers' models", size == 1
    yield (
        "norm_fusion",
        r.norm_fusion,
        f"false with {r.framework}: transformers fuses none",
        not r.norm_fusion,
    )
    yield "cross_entropy_fusion", r.cross_entropy_fusion, "false", not r.cross_entropy_fusion
    yield "attention_backend", r.attention_backend, "flash", r.attention_backend == "flash"
    yield "recompute", r.recompute, "none, full", r.recompute in ("none", "full")
    whole = r.recompute != "full" or (r.recompute_method, r.recompute_num_layers) == ("uniform", 1)
    yield "recompute_num_layers", r.recompute_num_layers, "1, with recompute_method uniform", whole
    dense = not m.is_moe and not m.multi_latent_attention and m.window_size is None
    plain = m.gated_linear_unit and not m.add_bias_linear and m.normalization == "RMSNorm"
    llama = dense and plain and m.position_embedding_type == "rope"
    yield "model", m.name, f"Llama, Qwen2 and Qwen3 layers, dense, with {r.framework}", llama
