"""The ``options`` of a case (overlaps, fusions, dispatchers, dtypes, in any words) -> recipe fields."""

from __future__ import annotations

import re
from typing import Any

from shardwise.engine.cases.labels import recipe_framework
from shardwise.engine.cases.reading import Case

Fields = dict[str, Any]

_BLOCKING_FRAMEWORKS = r"megatron-deepspeed|megatron-llama|paddle|aleph alpha|flagscale"
"""Frameworks whose data-parallel communication was not overlapped unless the case says so."""

_WITHOUT_FLASH = r"megatron-deepspeed|megatron.* 20(19|20|21|22)\b"

_BF16_GRADIENT_FRAMEWORKS = r"^nemo(?! automodel)|megatron-bridge|aleph alpha"
_PURE_BF16 = r"kempner|maxtext"
"""Frameworks that train 16-bit weights without a master copy: KempnerForge's 7B on one H200 leaves room for
8 bytes a parameter; MaxText's published configurations set ``weight_dtype: bfloat16``."""
_FUSED_LOSS = r"llm-foundry|torchtune|automodel"
"""Frameworks that fuse the loss by default (``fused_crossentropy``; ``LinearCrossEntropyLoss``)."""
_GATHERED_LOGITS = r"aleph alpha|kempner"
"""Frameworks whose loss reads the whole vocabulary on every rank of the tensor parallel group: at 32,768
tokens and 128,000 words they run out of memory with little else on the GPU."""
_GRADIENT_OPTIONS = (
    "main_grads",
    "main_grads_dtype",
    "grad_accum_dtype",
    "grad_sync_dtype",
    "grad_reduce_in_bf16",
    "grad_accum_fp32",
    "grad_reduce_fp32",
    "accumulate_allreduce_grads_in_fp32",
)

# fmt: off
USED_OPTIONS = frozenset((
    "adam_moments", "adam_moments_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "optimizer_moments",
    "precision_aware_optimizer", "main_grads", "main_grads_dtype", "grad_accum_dtype", "grad_accum_fp32",
    "grad_reduce_fp32", "grad_reduce_in_bf16", "grad_sync_dtype", "fsdp_mixed_precision",
    "accumulate_allreduce_grads_in_fp32", "overlap_grad_reduce", "overlap_grad_sync",
    "overlap_param_gather", "overlap_param_sync", "overlap_comm", "distributed_optimizer",
    "tp_comm_overlap", "async_tp", "overlap_p2p", "cp_comm", "sequence_parallel_kind", "moe_a2a_overlap",
    "ep_overlap", "moe_dispatcher", "dispatcher", "deepep", "kernels", "moe_impl", "moe_path",
    "capacity_factor", "moe_routing", "flash_attention", "kernel", "cross_entropy_fusion",
    "cross_entropy_loss_fusion", "ce_loss_fusion", "fused_cross_entropy", "cross_entropy_fusion_impl",
    "cuda_graph", "cuda_graphs", "fp8_param_gather", "fp8_params", "fp8_all_gather", "fp8_recipe", "fsdp",
    "fsdp_sharding", "fsdp_size", "embedding_and_loss_counted_as_layers",
    "torch_compile", "compile", "expandable_segments", "rms_norm_kernel",
    "optimizer_cpu_offload", "optimizer_offload_fraction",
))
# fmt: on
"""Options that change the recipe; the others name kernels, data and tooling that are not priced."""


def option_fields(case: Case, *, moe: bool, precision: str) -> Fields:
    """Fields of :class:`~shardwise.engine.recipe.Recipe` that the case's options decide."""
    options, framework = case.options, case.framework.name.lower()
    pure = bool(re.search(_PURE_BF16, framework))
    fields: Fields = {
        "cross_entropy_fusion": bool(re.search(_FUSED_LOSS, framework))
        or any(
            _on(options.get(name))
            for name in (
                "cross_entropy_fusion",
                "cross_entropy_loss_fusion",
                "ce_loss_fusion",
                "fused_cross_entropy",
                "cross_entropy_fusion_impl",
            )
        ),
        "framework": recipe_framework(case),
        "cross_entropy_fusion_impl": _fused_loss_impl(options, framework),
        "loss_parallel": not re.search(_GATHERED_LOGITS, framework),
        "norm_fusion": _fused_norms(case),
        "torch_compile": any(_on(options.get(name)) for name in ("torch_compile", "compile")),
        "expandable_segments": _on(options.get("expandable_segments")),
        **_graphs(options),
        "tp_comm_overlap": _on(options.get("tp_comm_overlap")) or _on(options.get("async_tp")),
        "attention_backend": _attention(case),
        "main_grads_dtype": "bf16" if pure or _bf16_gradients(case) else "fp32",
        "main_params_dtype": "bf16" if pure else "fp32",
        "optimizer_state_dtype": "bf16" if pure or _bf16_moments(options) else "fp32",
        "optimizer_offload_fraction": _offloaded(options),
        **_data_parallel_overlap(case),
    }
    if options.get("overlap_p2p") is not None:
        fields["overlap_p2p_comm"] = _on(options["overlap_p2p"])
    if precision not in ("bf16", "fp16", "nvfp4"):
        fields["fp8_param_gather"] = _fp8_parameters(case)
    transport = f"{options.get('cp_comm') or ''} {options.get('sequence_parallel_kind') or ''}".lower()
    if re.search(r"a2a|ulysses|all-to-all", transport):
        fields["cp_comm_type"] = "a2a"
    elif "all" in transport and "gather" in transport:
        fields["cp_comm_type"] = "all_gather"
    if moe:
        fields |= {
            "moe_token_dispatcher": _dispatcher(options),
            "overlap_moe_expert_parallel_comm": _on(options.get("moe_a2a_overlap"))
            or _on(options.get("ep_overlap")),
            "moe_expert_capacity_factor": _capacity(options),
        }
    return fields


def _offloaded(options: dict[str, Any]) -> float:
    """Share of the optimizer on the host: as stated, all of it where only the switch is."""
    stated = options.get("optimizer_offload_fraction")
    if isinstance(stated, (int, float)) and not isinstance(stated, bool) and 0 <= stated <= 1:
        return float(stated)
    return 1.0 if _on(options.get("optimizer_cpu_offload")) else 0.0


def _fused_norms(case: Case) -> bool:
    """As stated; silent: fused, but for Aleph Alpha, whose tables name the kernel where there is one."""
    stated = case.options.get("rms_norm_kernel")
    return _on(stated) if stated is not None else "aleph alpha" not in case.framework.name.lower()


def _on(value: object) -> bool:
    """Whether an option is on: true, a positive number, or words other than none/off/false."""
    if isinstance(value, str):
        return value.strip().lower() not in ("", "none", "off", "false", "no")
    return bool(value)


def _fused_loss_impl(options: dict[str, Any], framework: str) -> str:
    """As stated; silent: Transformer Engine's, which performance recipes use."""
    if "torchtune" in framework:
        return "linear"
    names = ("cross_entropy_fusion_impl", "cross_entropy_fusion", "ce_loss_fusion")
    return "native" if any(str(options.get(name)).lower() == "native" for name in names) else "te"


def _graphs(options: dict[str, Any]) -> Fields:
    """Whether there are CUDA graphs, and of what."""
    on = [str(v).lower() for v in (options.get("cuda_graph"), options.get("cuda_graphs")) if _on(v)]
    words = " ".join(on)
    scopes = (("full.iteration", "full_iteration"), (r"\battn", "attn"), (r"moe_router", "moe_router"))
    scope = next((scope for pattern, scope in scopes if re.search(pattern, words)), "layer")
    return {"cuda_graphs": bool(on), "cuda_graph_scope": scope}


def _says(options: dict[str, Any], names: tuple[str, ...], word: str) -> bool:
    return any(word in str(options.get(name) or "").lower() for name in names)


def _fp8_parameters(case: Case) -> bool:
    """As stated; silent: off, but for NeMo 2 and Megatron-Bridge, whose FP8 precision recipes turn it on
    (``mixed_precision.py`` of both)."""
    names = ("fp8_param_gather", "fp8_params", "fp8_all_gather")
    stated = [case.options[name] for name in names if case.options.get(name) is not None]
    if stated:
        return any(map(_on, stated))
    sharded = str(case.parallel.dp_sharding or "").strip().lower() not in ("none", "ddp")
    return sharded and bool(re.search(r"megatron-bridge|^nemo( 2.*)?$", case.framework.name.strip().lower()))


def _bf16_moments(options: dict[str, Any]) -> bool:
    names = ("adam_moments", "adam_moments_dtype", "exp_avg_dtype", "optimizer_moments")
    aware = str(options.get("precision_aware_optimizer") or "").lower()
    return _says(options, names, "bf16") or ("bf16" in aware and "moments" in aware)


def _bf16_gradients(case: Case) -> bool:
    """As stated; silent: FP32, but for NeMo and Megatron-Bridge, whose performance recipes reduce in BF16."""
    options = case.options
    stated = [name for name in _GRADIENT_OPTIONS if options.get(name) is not None]
    if not stated and re.search(_BF16_GRADIENT_FRAMEWORKS, case.framework.name.lower()):
        return True
    names = ("main_grads", "main_grads_dtype", "grad_accum_dtype", "grad_sync_dtype")
    aware = str(options.get("precision_aware_optimizer") or "").lower()
    return (
        _says(options, names, "bf16")
        or ("bf16" in aware and "grads" in aware)
        or _on(options.get("grad_reduce_in_bf16"))
        or options.get("grad_accum_fp32") is False
        or options.get("grad_reduce_fp32") is False
        or options.get("accumulate_allreduce_grads_in_fp32") is False
        or str(options.get("fsdp_mixed_precision") or "").upper() == "PURE"
    )


def _attention(case: Case) -> str:
    """As stated; silent: flash, but for Megatron-DeepSpeed and Megatron-LM up to 2022, which had none."""
    options = case.options
    flash, kernel = options.get("flash_attention"), str(options.get("kernel") or "").lower()
    if flash is None and "flash" not in kernel:
        old = re.search(_WITHOUT_FLASH, f"{case.framework.name} {case.framework.version or ''}".lower())
        return "unfused" if old or kernel in ("torch", "fused") else "flash"
    return "unfused" if flash is False or kernel in ("torch", "fused") else "flash"


def _data_parallel_overlap(case: Case) -> Fields:
    """Gradient and parameter overlap: as stated, else on, but for frameworks and years without it."""
    options = case.options
    old = bool(re.search(_BLOCKING_FRAMEWORKS, case.framework.name.lower())) or bool(
        re.match(r"20(1\d|20|21|22)\b", case.framework.version or "")
    )
    plain = str(options.get("distributed_optimizer") or "").lower() == "plain"
    default = not (old or plain) or str(options.get("distributed_optimizer") or "").lower() == "overlapped"
    both = options.get("overlap_comm")
    reduce = _first(options, ("overlap_grad_reduce", "overlap_grad_sync"), both)
    gather = _first(options, ("overlap_param_gather", "overlap_param_sync"), both)
    return {
        "overlap_grad_reduce": default if reduce is None else _on(reduce),
        "overlap_param_gather": default if gather is None else _on(gather),
    }


def _first(options: dict[str, Any], names: tuple[str, ...], otherwise: object) -> object:
    return next((options[name] for name in names if options.get(name) is not None), otherwise)


def _dispatcher(options: dict[str, Any]) -> str:
    names = ("moe_dispatcher", "dispatcher")
    for word in ("hybridep", "deepep"):
        if _says(options, (*names, "kernels", "moe_impl", "moe_path"), word):
            return word
    if options.get("deepep") is True:
        return "deepep"
    return "allgather" if _says(options, names, "allgather") else "alltoall"


def _capacity(options: dict[str, Any]) -> float | None:
    stated = options.get("capacity_factor")
    if isinstance(stated, (int, float)) and not isinstance(stated, bool) and 0 < stated < 1000:
        return float(stated)
    for name in ("moe_routing", "moe_path"):
        words = str(options.get(name) or "").lower()
        found = re.search(r"capacity(?: factor)?\s*(\d+(?:\.\d+)?)", words)
        if found and float(found.group(1)) > 0:
            return float(found.group(1))
        if "drop" in words and "dropless" not in words and "no token drop" not in words:
            return 1.0
    return None
