"""One pipeline rank of a recipe as megatron-core's own modules, on fake tensors: no GPU, no memory.

A process group that does nothing stands in for the others, so every shape is the rank's own. Of
Transformer Engine, which runs on GPUs only, there are stand-ins that keep what it keeps: fused attention
(output and softmax statistics), a fused norm (input and deviation), one product over all local experts.
Experts get the same number of tokens each, since a fake router has no values to route by.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from shardwise.engine.measure.live import LiveStorages
from shardwise.engine.measure.stand_ins import (
    FlashAttention,
    FusedNorm,
    GroupedExperts,
    Rotary,
    TorchAttention,
)
from shardwise.engine.recipe import Recipe


def transformer_config(recipe: Recipe) -> Any:
    """The recipe as megatron-core's configuration; raises where megatron-core refuses it."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    r, m = recipe, recipe.model
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


@contextlib.contextmanager
def rank_of(recipe: Recipe, stage: int) -> Iterator[None]:
    """A world of which this process is a rank of pipeline stage ``stage``."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import moe_utils
    from torch.testing._internal.distributed.fake_pg import FakeStore

    rank = stage * recipe.world_size // recipe.pp
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=recipe.world_size)
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=recipe.tp,
            pipeline_model_parallel_size=recipe.pp,
            virtual_pipeline_model_parallel_size=recipe.vpp if recipe.vpp > 1 else None,
            context_parallel_size=recipe.cp,
            expert_model_parallel_size=recipe.ep,
            expert_tensor_parallel_size=recipe.etp,
            create_gloo_process_groups=False,
        )
        yield
    finally:
        moe_utils.get_moe_layer_wise_logging_tracker().clear()
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


@contextlib.contextmanager
def without_gpu(*, fused: bool) -> Iterator[None]:
    """megatron-core where there is no GPU: no streams, no generators of random numbers, no compiling, and
    parameters that say they are on a GPU. ``fused``: rotary embeddings as one kernel."""
    import torch.distributed as dist
    from megatron.core.fusions import fused_softmax
    from megatron.core.models.common.embeddings import rotary_pos_embedding
    from megatron.core.tensor_parallel import random as rng
    from megatron.core.transformer import attention, multi_latent_attention, torch_norm

    def mask(size: int) -> torch.Tensor:
        return torch.triu(torch.ones(size, size, dtype=torch.bool), diagonal=1)

    def norm(cls: object, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> torch.nn.Module:
        return FusedNorm(hidden_size, eps, centred=config.normalization == "LayerNorm")

    def rotary(x: torch.Tensor, freqs: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        turned: torch.Tensor = Rotary.apply(x, freqs)
        return turned

    def own_part(angles: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
        # As many as the load-balanced chunks that a context parallel rank picks.
        return angles.narrow(dim, 0, angles.shape[dim] // group.size()).clone()

    plain_type = torch.Tensor.type

    def on_gpu(self: torch.Tensor, *args: Any, **more: Any) -> Any:
        word = plain_type(self, *args, **more)
        if not isinstance(word, str) or ".cuda." in word:
            return word
        return word.replace("torch.", "torch.cuda.", 1)

    def alike(found: list[Any], own: Any, *_: Any, **__: Any) -> None:
        found[:] = [own] * len(found)

    unpinned = torch.tensor

    def tensor(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return unpinned(*args, **kwargs)

    nothing = contextlib.nullcontext
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (torch.Tensor, "type", on_gpu),
            # No values to copy, and fake mode keeps both storages for ever.
            (torch.UntypedStorage, "copy_", lambda self, *_, **__: self),
            (dist, "all_gather_object", alike),
            (torch.Tensor, "cuda", lambda self, *_, **__: self),
            (torch, "tensor", tensor),
            (torch.cuda, "Stream", lambda *_, **__: None),
            (torch.cuda, "current_device", lambda: torch.device("cpu")),
            (rng.CudaRNGStatesTracker, "fork", lambda *_, **__: nothing()),
            (rng, "_get_all_rng_states", lambda *_: ()),
            (rng, "_set_all_rng_states", lambda *_: None),
            (rng, "_fork_rng", nothing),
            (rotary_pos_embedding, "get_pos_emb_on_this_cp_rank", own_part),
            (fused_softmax, "get_default_causal_mask", mask),
            (torch_norm.WrappedTorchNorm, "__new__", norm),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        if fused:
            for owner in (attention, multi_latent_attention):
                stack.enter_context(mock.patch.object(owner, "apply_rotary_pos_emb", rotary))
        stack.enter_context(_without_transformer_engine())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextlib.contextmanager
def _without_transformer_engine() -> Iterator[None]:
    """Names that megatron-core reads and only Transformer Engine's presence defines, where it is absent."""
    if importlib.util.find_spec("transformer_engine") is not None:
        yield
        return
    from megatron.core.tensor_parallel import random as rng
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.moe import moe_utils

    names: list[tuple[Any, str, Any]] = [(moe_utils, "te_general_gemm", None)]
    names += [(multi_latent_attention, n, type(n, (), {})) for n in ("TELinear", "TEColumnParallelLinear")]
    # What its precision contexts do in 16 bits: nothing.
    for name in ("fp8_autocast", "activation_recompute_forward"):
        names.append((rng, name, mock.Mock(side_effect=lambda **_: contextlib.nullcontext())))
    names.append((rng, "FP8GlobalStateManager", mock.Mock(is_fp8_enabled=lambda: False)))
    with contextlib.ExitStack() as stack:
        for owner, name, value in names:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        yield


@contextlib.contextmanager
def real_kernels() -> Iterator[None]:
    """megatron-core with torch's own norms, which it refuses beside sequence parallelism: their weights'
    gradients would have to be summed over the ranks, and here there is one."""
    from megatron.core.transformer import torch_norm

    def norm(cls: object, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> torch.nn.Module:
        kind = torch.nn.LayerNorm if config.normalization == "LayerNorm" else torch.nn.RMSNorm
        module: torch.nn.Module = kind(hidden_size, eps=eps, device=torch.cuda.current_device())
        return module

    with mock.patch.object(torch_norm.WrappedTorchNorm, "__new__", norm), _without_transformer_engine():
        yield


def buffers_apart(gauge: LiveStorages) -> Any:
    """Megatron's global buffer outlives the step: it is communication's, not an activation."""
    from megatron.core.utils import GlobalMemoryBuffer

    get = GlobalMemoryBuffer.get_tensor

    def get_apart(*args: Any, **kwargs: Any) -> Any:
        tensor = get(*args, **kwargs)
        gauge.ignore(tensor)
        return tensor

    return mock.patch.object(GlobalMemoryBuffer, "get_tensor", get_apart)


def chunk_of(recipe: Recipe, stage: int, chunk: int, vocab: int, *, real: bool = False) -> Any:
    """Virtual chunk ``chunk`` of the stage that this process is a rank of, as a ``GPTModel``.

    ``vocab``: padded vocabulary of the whole tensor parallel group. ``real``: modules that compute,
    Transformer Engine's where the recipe asks for them, on the current device.
    """
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    m = recipe.model
    config = transformer_config(recipe)
    engine = real and recipe.transformer_impl == "transformer_engine"
    config.use_cpu_initialization, config.perform_initialization = not real, False
    config.hidden_dropout = config.attention_dropout = 0.0
    config.qk_layernorm = m.qk_layernorm or m.multi_latent_attention
    config.add_qkv_bias = m.add_qkv_bias
    config.bias_activation_fusion = config.gated_linear_unit
    config.bias_dropout_fusion = True
    config.deallocate_pipeline_outputs = True
    config.masked_softmax_fusion = config.persist_layer_norm = False
    config.cross_entropy_loss_fusion = recipe.cross_entropy_fusion
    config.cross_entropy_fusion_impl = "native"
    if m.is_moe:
        config.moe_layer_freq = [int(moe) for moe in m.moe_layers]
        config.moe_shared_expert_intermediate_size = m.moe_shared_expert_intermediate_size or None
        config.moe_grouped_gemm = engine
        config.moe_router_dtype, config.moe_aux_loss_coeff = "fp32", 1e-3
        config.moe_token_dispatcher_type = "alltoall"
        # Equal shares need no values to be known: every expert is filled to its capacity.
        config.moe_expert_capacity_factor = recipe.moe_expert_capacity_factor or 1.0
        config.moe_pad_expert_input_to_capacity = True
    which = chunk if recipe.vpp > 1 else None
    spec = get_gpt_decoder_block_spec(
        config, use_transformer_engine=engine, normalization=m.normalization, vp_stage=which
    )
    for layer in [] if engine else spec.layer_specs:
        if recipe.attention_backend == "flash":
            core = TorchAttention if real else FlashAttention
            layer.submodules.self_attention.submodules.core_attention = core
        if hasattr(layer.submodules.mlp.submodules, "experts") and not real:
            layer.submodules.mlp.submodules.experts = GroupedExperts
    half = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return GPTModel(
            config,
            spec,
            vocab_size=vocab,
            max_sequence_length=max(m.max_position_embeddings or 0, recipe.seq_len),
            pre_process=stage == 0 and chunk == 0,
            post_process=stage == recipe.pp - 1 and chunk == recipe.vpp - 1,
            position_embedding_type="learned_absolute"
            if m.position_embedding_type == "learned_absolute"
            else "rope",
            share_embeddings_and_output_weights=m.share_embeddings_and_output_weights,
            vp_stage=which,
        )
    finally:
        torch.set_default_dtype(half)
