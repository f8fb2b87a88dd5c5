"""A recipe as Megatron arguments, by their names in Megatron's own namespace.

Megatron-LM spells them as flags, Primus as YAML keys below ``overrides``; the names and meanings are
one and the same, read from NVIDIA/Megatron-LM at d98e8a64 (``megatron/training/arguments.py``,
``megatron/core/transformer/transformer_config.py``, ``model_parallel_config.py``). Booleans have their
positive name here; a writer that only has a negative flag (``--disable-bias-linear``) turns it round.
"""

from __future__ import annotations

from typing import Any

from shardwise.engine.frameworks.patterns import format_moe_layers
from shardwise.engine.model import Model
from shardwise.engine.recipe import Recipe

MEGATRON_COMMIT = "d98e8a64"
"""The NVIDIA/Megatron-LM commit whose spellings are written."""

FSDP_STRATEGY = {"zero2": "optim_grads", "fsdp": "optim_grads_params", "hsdp": "optim_grads_params"}
"""``dp_sharding`` -> Megatron-FSDP's ``data_parallel_sharding_strategy``."""

FP8 = {
    "fp8-delayed": ("hybrid", "delayed"),
    "fp8-tensorwise": ("hybrid", "tensorwise"),
    "fp8-blockwise": ("e4m3", "blockwise"),
    "mxfp8": ("e4m3", "mxfp8"),
}
"""``precision`` -> (``fp8`` format, ``fp8_recipe``). Block-scaled recipes keep gradients in E4M3, as
Megatron-Bridge's ready-made precision objects do; per-tensor ones use E5M2 for gradients (``hybrid``)."""

Section = dict[str, Any]


def sections(recipe: Recipe) -> dict[str, Section]:
    """The arguments of ``recipe`` in titled groups, in the order they are written."""
    groups = {
        "model": model_arguments(recipe.model),
        "parallel": _parallel(recipe),
        "batch": {
            "micro_batch_size": recipe.mbs,
            "global_batch_size": recipe.gbs,
            "seq_length": recipe.seq_len,
        },
        "sharding": _sharding(recipe),
        "precision": _precision(recipe),
        "recompute": _recompute(recipe),
        "moe": _moe(recipe),
        "kernels": _kernels(recipe),
    }
    return {title: group for title, group in groups.items() if group}


def model_arguments(model: Model) -> Section:
    """The architecture of ``model``; what a dense or non-MLA model lacks is left out."""
    args: Section = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
    }
    if model.num_query_groups != model.num_attention_heads and not model.multi_latent_attention:
        args |= {"group_query_attention": True, "num_query_groups": model.num_query_groups}
    args |= {
        "kv_channels": model.kv_channels,
        "vocab_size": model.vocab_size,
        "make_vocab_size_divisible_by": 128,
        "max_position_embeddings": model.max_position_embeddings,
        "position_embedding_type": model.position_embedding_type,
        "normalization": model.normalization,
        "swiglu": model.gated_linear_unit,
        "untie_embeddings_and_output_weights": not model.share_embeddings_and_output_weights,
        "add_bias_linear": model.add_bias_linear,
        "add_qkv_bias": model.add_qkv_bias,
        "qk_layernorm": model.qk_layernorm,
    }
    if model.attention_sink:
        args["softmax_type"] = "learnable"
    if model.window_size is not None:
        # Megatron counts the tokens to the left of the query; the window counts the query too.
        args["window_size"] = f"{model.window_size - 1},0"
        if model.window_attn_every > 1:
            args["window_attn_skip_freq"] = model.window_attn_every
    if model.multi_latent_attention:
        args |= {
            "multi_latent_attention": True,
            # For MLA this norms the compressed query and key/value, as every MLA model does.
            "qk_layernorm": True,
            "q_lora_rank": model.q_lora_rank,
            "kv_lora_rank": model.kv_lora_rank,
            "qk_head_dim": model.qk_head_dim,
            "qk_pos_emb_head_dim": model.qk_pos_emb_head_dim,
            "v_head_dim": model.v_head_dim,
        }
    if model.is_moe:
        args |= {
            "num_experts": model.num_experts,
            "moe_router_topk": model.moe_router_topk,
            "moe_router_num_groups": model.moe_router_num_groups,
            "moe_router_group_topk": model.moe_router_group_topk,
            "moe_ffn_hidden_size": model.moe_ffn_hidden_size,
            "moe_layer_freq": format_moe_layers(model.moe_layers),
        }
        if model.moe_shared_expert_intermediate_size:
            args["moe_shared_expert_intermediate_size"] = model.moe_shared_expert_intermediate_size
            if model.moe_shared_expert_gate:
                args["moe_shared_expert_gate"] = True
    if model.mtp_num_layers:
        args["mtp_num_layers"] = model.mtp_num_layers
    return {key: value for key, value in args.items() if value is not None}


def _parallel(recipe: Recipe) -> Section:
    args: Section = {
        "tensor_model_parallel_size": recipe.tp,
        "pipeline_model_parallel_size": recipe.pp,
        "context_parallel_size": recipe.cp,
        "sequence_parallel": recipe.sequence_parallel and recipe.tp > 1,
    }
    if recipe.pipeline_model_parallel_layout is not None:
        # Says the virtual stages too, and excludes the other ways of splitting.
        args["pipeline_model_parallel_layout"] = recipe.pipeline_model_parallel_layout
    elif recipe.vpp > 1:
        args["num_virtual_stages_per_pipeline_rank"] = recipe.vpp
    if recipe.model.is_moe:
        # Written out even at its default, which differs between frameworks.
        args |= {"expert_model_parallel_size": recipe.ep, "expert_tensor_parallel_size": recipe.etp}
    if recipe.cp > 1:
        args["cp_comm_type"] = recipe.cp_comm_type
    if recipe.num_layers_in_first_pipeline_stage is not None:
        args["decoder_first_pipeline_num_layers"] = recipe.num_layers_in_first_pipeline_stage
    if recipe.num_layers_in_last_pipeline_stage is not None:
        args["decoder_last_pipeline_num_layers"] = recipe.num_layers_in_last_pipeline_stage
    args["account_for_embedding_in_pipeline_split"] = recipe.account_for_embedding_in_pipeline_split
    args["account_for_loss_in_pipeline_split"] = recipe.account_for_loss_in_pipeline_split
    args["overlap_p2p_comm"] = recipe.overlap_p2p_comm
    args["tp_comm_overlap"] = recipe.tp_comm_overlap
    return args


def _sharding(recipe: Recipe) -> Section:
    sharded = recipe.dp_sharding != "none"
    args: Section = {
        "use_distributed_optimizer": sharded,
        "overlap_grad_reduce": recipe.overlap_grad_reduce,
        # Plain data parallelism gathers no parameters; Megatron refuses the flag there.
        "overlap_param_gather": recipe.overlap_param_gather and sharded,
    }
    strategy = FSDP_STRATEGY.get(recipe.dp_sharding)
    if strategy is not None:
        args |= {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": strategy,
            # The only checkpoint format that Megatron-FSDP accepts.
            "ckpt_format": "fsdp_dtensor",
        }
    if recipe.dp_sharding == "hsdp" and recipe.dp_shard_size is not None:
        instances = max(1, recipe.dp * recipe.cp // recipe.dp_shard_size)
        args |= {"num_distributed_optimizer_instances": instances, "outer_dp_sharding_strategy": "no_shard"}
    return args


def _precision(recipe: Recipe) -> Section:
    args: Section = {"fp16" if recipe.precision == "fp16" else "bf16": True}
    if recipe.precision in FP8:
        args["fp8"], args["fp8_recipe"] = FP8[recipe.precision]
        args["fp8_param_gather"] = recipe.fp8_param_gather
    elif recipe.precision == "nvfp4":
        args |= {"fp4": "e2m1", "fp4_recipe": "nvfp4", "fp4_param_gather": recipe.fp8_param_gather}
    if recipe.precision == "mxfp8" and recipe.fp8_param_gather and recipe.dp_sharding == "zero1":
        # Without it MXFP8 keeps a second copy of every weight.
        args["reuse_grad_buf_for_mxfp8_param_ag"] = True
    args["optimizer"] = recipe.optimizer
    # Only the fused Adam of Transformer Engine keeps moments or main gradients below FP32.
    aware = recipe.optimizer == "adam" and recipe.dp_sharding != "none"
    low_grads = recipe.main_grads_dtype == "bf16"
    low_state = recipe.optimizer_state_dtype != "fp32" or recipe.main_params_dtype != "fp32"
    if recipe.optimizer_offload_fraction:
        args["optimizer_cpu_offload"] = True
        args["optimizer_offload_fraction"] = recipe.optimizer_offload_fraction
    if aware and (low_state or low_grads):
        args["use_precision_aware_optimizer"] = True
        args["main_grads_dtype"] = recipe.main_grads_dtype
        args |= {
            "main_params_dtype": recipe.main_params_dtype,
            "exp_avg_dtype": recipe.optimizer_state_dtype,
            "exp_avg_sq_dtype": recipe.optimizer_state_dtype,
        }
    elif low_grads:
        args["grad_reduce_in_bf16"] = True
    return args


def _recompute(recipe: Recipe) -> Section:
    if recipe.recompute == "none":
        layers = recipe.cpu_offloading_num_layers
        return {"cpu_offloading_num_layers": layers} if layers else {}
    args: Section = {"recompute_granularity": recipe.recompute}
    if recipe.recompute == "full":
        args["recompute_method"] = recipe.recompute_method
        args["recompute_num_layers"] = recipe.recompute_num_layers
    else:
        args["recompute_modules"] = list(recipe.recompute_modules)
    return args


def _moe(recipe: Recipe) -> Section:
    if not recipe.model.is_moe:
        return {}
    args: Section = {"moe_grouped_gemm": True}
    if recipe.moe_token_dispatcher in ("deepep", "hybridep"):
        args["moe_token_dispatcher_type"] = "flex"
        args["moe_flex_dispatcher_backend"] = recipe.moe_token_dispatcher
        # DeepEP's kernels take the routing probabilities in FP32 only.
        args["moe_router_dtype"] = "fp32"
    else:
        args["moe_token_dispatcher_type"] = recipe.moe_token_dispatcher
    if recipe.moe_expert_capacity_factor is not None:
        args["moe_expert_capacity_factor"] = recipe.moe_expert_capacity_factor
    args["overlap_moe_expert_parallel_comm"] = recipe.overlap_moe_expert_parallel_comm
    return args


def _kernels(recipe: Recipe) -> Section:
    args: Section = {
        "attention_backend": recipe.attention_backend,
        "cross_entropy_loss_fusion": recipe.cross_entropy_fusion,
    }
    if recipe.cross_entropy_fusion and recipe.cross_entropy_fusion_impl != "native":
        args["cross_entropy_fusion_impl"] = recipe.cross_entropy_fusion_impl
    if recipe.transformer_impl == "local":
        args["transformer_impl"] = "local"
    if recipe.cuda_graphs:
        if recipe.recompute == "full":
            # Per-layer graphs and full recomputation exclude each other.
            # One graph over the whole iteration cannot stop to look for NaNs.
            args |= {"cuda_graph_impl": "full_iteration", "check_for_nan_in_loss_and_grad": False}
        elif recipe.model.is_moe:
            # Dropless experts have shapes that change every step; only what precedes them is captured.
            args |= {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn", "moe_router"]}
        else:
            args["cuda_graph_impl"] = "local"
    return args


def environment(recipe: Recipe) -> dict[str, str]:
    """The environment variables that ``recipe`` needs to start or to overlap.

    ``CUDA_DEVICE_MAX_CONNECTIONS`` is 1 under tensor or context parallelism (Megatron refuses to start
    otherwise before Blackwell), must not be 1 under Megatron-FSDP (8 is CUDA's own default) and should
    be 32 when the expert all-to-all overlaps with compute: ``validate_args`` in Megatron's arguments.py.
    """
    if recipe.dp_sharding in FSDP_STRATEGY:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    if recipe.overlap_moe_expert_parallel_comm:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    if recipe.tp > 1 or recipe.cp > 1:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    return {}
