"""What the engine does not model: such cases are reported as unsupported, with the reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from shardwise.engine.cases.reading import Case


@dataclass(frozen=True, slots=True)
class Unscorable:
    """Why a case has no recipe."""

    status: Literal["unsupported", "error"]
    reason: str


class CannotScoreError(Exception):
    """Raised while a case is interpreted; becomes an :class:`Unscorable`."""

    def __init__(self, reason: str, status: Literal["unsupported", "error"] = "unsupported") -> None:
        super().__init__(reason)
        self.unscorable = Unscorable(status, reason)


_MODELS: tuple[tuple[str, str], ...] = (
    (r"lora", "LoRA fine-tuning (frozen weights) is not modelled"),
    (
        r"hybrid|mamba|gated.delta|qwen3-next|qwen3\.5|nemotron-h\b",
        "hybrid (state-space or linear-attention) layers are not modelled",
    ),
    (r"kimi-k3|linear attention", "linear attention is not modelled"),
    (r"deepseek-v4|dsv4", "DeepSeek V4 (sparse compressed attention, hyper-connections) is not modelled"),
    (r"diffusion|\bflux\b|\bdit\b|\bwan ?2", "diffusion models are not modelled"),
    (r"\bt5\b|encoder-decoder|\bbert\b|whisper", "encoder-decoder and encoder models are not modelled"),
    (r"-vl-|-vl\b|\bvlm\b|vision|multimodal|llava", "models with a vision tower are not modelled"),
)

_OFFLOADS = (
    "optimizer_state_offload",
    "cpu_offload",
    "offload_optimizer",
    "offload_param",
    "activation_cpu_offload",
    "activation_offload",
)

_METHODS = {
    "vocab-1": "vocabulary-parallel passes in the pipeline are not modelled",
    "vocab-2": "vocabulary-parallel passes in the pipeline are not modelled",
    "interlaced": "vocabulary-parallel passes in the pipeline are not modelled",
    "redis": "redistributed pipeline layers (not stated which) are not modelled",
}


def refuse_out_of_scope(case: Case) -> None:
    """Raise :class:`CannotScoreError` for a model, task or option that the engine does not know."""
    if case.fault is not None:
        raise CannotScoreError(case.fault, "error")
    options = case.options
    task = str(options.get("task") or "")
    subject = f"{case.model.name} {task}".lower()
    for pattern, reason in _MODELS:
        if re.search(pattern, subject):
            raise CannotScoreError(reason)
    if options.get("lora"):
        raise CannotScoreError(_MODELS[0][1])
    if options.get("scope"):
        raise CannotScoreError(f"no training step: {options['scope']}")
    for name in _OFFLOADS:
        if options.get(name):
            raise CannotScoreError(f"offload to host memory ({name}) is not modelled")
    method = str(options.get("method") or "").lower()
    if method in _METHODS:
        raise CannotScoreError(_METHODS[method])
    if options.get("deterministic") or options.get("deterministic_mode"):
        raise CannotScoreError("deterministic kernels are not modelled")
    if options.get("rollout_gpu_memory_utilization") or case.framework.name.lower().startswith("verl"):
        raise CannotScoreError("training that shares the GPU with a rollout engine is not modelled")
    if "sp 8" in str(options.get("attention") or "").lower():
        raise CannotScoreError("sequence-parallel attention without tensor parallelism is not modelled")
    if _routes_naturally(case):
        raise CannotScoreError("natural (unbalanced) expert routing: its imbalance is not stated")


def _routes_naturally(case: Case) -> bool:
    if not case.model.arch.experts:
        return False
    options = case.options
    words = f"{options.get('moe_routing') or ''} {options.get('data') or ''}".lower()
    return "natural" in words or "real" in words or options.get("forced_balanced_routing") is False
