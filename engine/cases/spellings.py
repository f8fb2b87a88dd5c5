"""Every spelling of precision, sharding, schedule and recomputation in measured cases -> recipe fields.

Each function takes the source's words and returns fields of
:class:`~shardwise.engine.recipe.Recipe`, or raises :class:`CannotScoreError` naming the words.
"""

from __future__ import annotations

import re
from typing import Any

from shardwise.engine.cases.reading import Case
from shardwise.engine.cases.scope import CannotScoreError

Fields = dict[str, Any]

_FSDP_FRAMEWORKS = (
    r"fsdp|torchtitan|llm-foundry|maxtext|automodel|kempner|xtuner|torchtune|felafax|pith-train"
)
_UNSHARDED_FRAMEWORKS = r"megatron-deepspeed|flash-attention|paddle|tutel|deepspeed-(moe|ted)"

PRECISION_WORDS: tuple[tuple[str, str], ...] = (
    (r"^(bf16|bfloat16)\b", "bf16"),
    (r"^fp16\b", "fp16"),
    (r"^mxfp8|^fp8[-_ ]?mx", "mxfp8"),
    (r"^(nvfp4|fp4)", "nvfp4"),
    (r"^fp8.*(block|subchannel)", "fp8-blockwise"),
    (r"^fp8.*(delayed|amp_fp8|transformer engine)", "fp8-delayed"),
    (r"^fp8", "fp8-tensorwise"),
)
"""Regular expressions over the lower-case words, first match wins. Row-wise FP8, FP8 of AMD's older
("nanoo") format and FP8 without a recipe count as tensor-wise current scaling, their nearest."""


def precision(case: Case, assumptions: list[str]) -> Fields:
    """The matrix format. Silent: BF16, or FP16 on a V100, which has no BF16."""
    words = (case.precision or "").lower().strip()
    if not words:
        silent = "fp16" if "v100" in (case.hardware.gpu or "").lower() else "bf16"
        assumptions.append(f"precision {silent}: not stated")
        return {"precision": silent}
    if words.startswith(("fp32", "tf32")):
        raise CannotScoreError(f"precision {case.precision!r}: training in FP32 is not modelled")
    recipe = str(case.options.get("fp8_recipe") or "").lower()
    for pattern, name in PRECISION_WORDS:
        if re.search(pattern, words):
            delayed = name == "fp8-tensorwise" and "delayed" in recipe
            return {"precision": "fp8-delayed" if delayed else name}
    raise CannotScoreError(f"precision {case.precision!r} is not understood")


def sharding(case: Case, dp_cp: int, node: int, assumptions: list[str]) -> Fields:
    """Data-parallel sharding. ``dp_cp`` ranks share the state at most; ``node`` GPUs make a node.

    Silent: FSDP for FSDP-only frameworks, none for those that then trained with plain data parallelism
    (Megatron-DeepSpeed without ZeRO, Paddle), else ZeRO-1 (Megatron's distributed optimizer).
    """
    words = (case.parallel.dp_sharding or "").lower()
    options = case.options
    framework = case.framework.name.lower()
    piped = "torchtitan" in case.framework.name.lower() and (case.parallel.pp or 1) > 1
    # torchtitan's default keeps parameters gathered where there is a pipeline.
    kept = "shard_grad_op" in str(options.get("fsdp_sharding") or "").lower() or "no reshard" in words
    if kept or (piped and "reshard" not in words):
        return {"dp_sharding": "fsdp", "fsdp_reshard_after_forward": False}
    if isinstance(options.get("fsdp"), str) and "optim_grads_params" in options["fsdp"].lower():
        return {"dp_sharding": "fsdp"}
    if not words:
        words = _silent_sharding(framework, options.get("distributed_optimizer"))
        assumptions.append(f"dp_sharding {words}: not stated")
    size = _shard_size(words, options, node)
    if "hsdp" in words or (size and re.search(r"fsdp|zero-?3", words)):
        if size and size < dp_cp and dp_cp % size == 0:
            return {"dp_sharding": "hsdp", "dp_shard_size": size}
        return {"dp_sharding": "fsdp"}
    for pattern, name in (
        (r"fsdp|zero-?3|full.?shard", "fsdp"),
        (r"zero-?2", "zero2"),
        (r"zero-?1|distributed.optimizer|dist.?opt", "zero1"),
        (r"none|ddp|zero-?0|no\b", "none"),
    ):
        if re.search(pattern, words):
            if name == "zero2" and (case.parallel.pp or 1) > 1:
                # Beside a pipeline's schedule the gradients are summed whole and scattered once a step.
                assumptions.append("dp_sharding zero1: with a pipeline, papers call it ZeRO-2")
                name = "zero1"
            return {"dp_sharding": name}
    raise CannotScoreError(f"dp_sharding {case.parallel.dp_sharding!r} is not understood")


def _silent_sharding(framework: str, distributed_optimizer: object) -> str:
    if distributed_optimizer is not None:
        return "none" if distributed_optimizer is False else "zero1"
    if re.search(_FSDP_FRAMEWORKS, framework):
        return "fsdp"
    return "none" if re.search(_UNSHARDED_FRAMEWORKS, framework) else "zero1"


def _shard_size(words: str, options: dict[str, Any], node: int) -> int | None:
    stated = re.search(r"(?:degree|shard(?:ed)?(?: over)?)\s*(\d+)", words)
    if stated:
        return int(stated.group(1))
    size = options.get("fsdp_size")
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    # Hybrid sharding without a stated size shards inside the node, PyTorch's default.
    return node if "hsdp" in words else None


def schedule(case: Case, layers: int, assumptions: list[str]) -> Fields:
    """``pp_schedule`` and ``vpp``. An interleaved schedule of unknown depth gets two layers a chunk."""
    words = (case.parallel.pp_schedule or "").lower()
    pp = case.parallel.pp or 1
    vpp = case.parallel.vpp or 1
    if pp == 1:
        return {"vpp": 1}
    if re.search(r"dualpipe|\bzb|zbv|v-half|v-min|zero.?bubble|vocabulary", words):
        raise CannotScoreError(f"pipeline schedule {case.parallel.pp_schedule!r} is not modelled")
    if re.search(r"gpipe|afab|all.forward", words):
        return {"pp_schedule": "gpipe", "vpp": 1}
    if "interleaved" in words and not case.parallel.vpp:
        vpp = max(-(-layers // pp) // 2, 1)
        assumptions.append(f"vpp={vpp}: interleaved, depth not stated")
    if words and not re.search(r"1f1b|interleaved", words):
        raise CannotScoreError(f"pipeline schedule {case.parallel.pp_schedule!r} is not modelled")
    return {"pp_schedule": "1f1b", "vpp": vpp}


RECOMPUTE_MODULE_WORDS: tuple[tuple[str, str], ...] = (
    (r"core[ _]att(ention|n)|recompute-activations", "core_attn"),
    (r"mla_up_proj|mla up-projection", "mla_up_proj"),
    (r"moe_act|\bact\b", "moe_act"),
    (r"shared_experts?", "shared_experts"),
    (r"\bmoe\b", "moe"),
    (r"\bmlp\b(?!\))", "mlp"),
    (r"layer_?norm|rmsnorm|\bnorm\b", "layernorm"),
)

_REMAT_POLICIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"except_mlp", ("mlp", "layernorm")),
    (r"save_qkv_proj|custom", ("core_attn", "mlp", "layernorm")),
    (r"minimal", ("layernorm",)),
)
"""MaxText rematerialisation policies -> the nearest set of recomputed modules. A custom policy is taken
as the one that saves the QKV projections, the one its published configurations use."""

_PER_OP = r"per-?op|\(op\)|graph sac|rematerialised cheap"
"""torchtitan's per-operator policy saves every second matrix product and all attention outputs: the
nearest modules are the norms and the MLP; of a MoE layer, whose grouped products it does not name, all."""


def recompute(
    words: str | None, *, layers: int, pp: int, vpp: int, moe: bool, assumptions: list[str]
) -> Fields:
    """``recompute`` and its method, layers or modules. Silent: none."""
    text = (words or "").lower().strip()
    if not text:
        assumptions.append("recompute none: not stated")
        return {"recompute": "none"}
    if text in ("none", "no", "off", "false"):
        return {"recompute": "none"}
    per_chunk = max(layers // (pp * vpp), 1)
    if re.search(r"every 2nd layer", text):
        return _block(max(per_chunk // 2, 1))
    if text.startswith("full") or re.match(r"activation checkpointing|on\b|true|checkpoint", text):
        return _full(text, pp * vpp)
    if "remat" in text:
        for pattern, modules in _REMAT_POLICIES:
            if re.search(pattern, text):
                return _selective(modules + (("moe",) if moe and "mlp" in modules else ()))
    if re.search(_PER_OP, text):
        return _selective(("layernorm", "moe") if moe else ("layernorm", "mlp"))
    found = [name for pattern, name in RECOMPUTE_MODULE_WORDS if re.search(pattern, text)]
    if found:
        return _selective(tuple(found))
    if text.startswith("selective"):
        return _selective(("core_attn",))
    raise CannotScoreError(f"recompute {words!r} is not understood")


def _full(text: str, chunks: int) -> Fields:
    ids = re.search(r"recompute_layer_ids ([\d,]+)", text)
    if ids:
        return _block(max(round(len([i for i in ids.group(1).split(",") if i]) / chunks), 1))
    block = re.search(r"block\D*(\d+)", text)
    if block:
        return _block(int(block.group(1)))
    uniform = re.search(r"uniform\D{0,3}(\d+)", text)
    return {
        "recompute": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": int(uniform.group(1)) if uniform else 1,
    }


def _block(layers: int) -> Fields:
    return {"recompute": "full", "recompute_method": "block", "recompute_num_layers": layers}


def _selective(modules: tuple[str, ...]) -> Fields:
    return {"recompute": "selective", "recompute_modules": modules}
