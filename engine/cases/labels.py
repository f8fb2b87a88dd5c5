"""What kind of case it is: groups for reporting, trust, which memory figure its source means."""

from __future__ import annotations

import re
from typing import Literal

from shardwise.engine.cases.reading import Case

_FAMILIES: tuple[tuple[str, str], ...] = (
    (r"llama-?4", "llama-4"),
    (r"llama", "llama"),
    (r"deepseek|moonlight|kimi", "deepseek"),
    (r"gpt-?oss", "gpt-oss"),
    (r"qwen", "qwen"),
    (r"mixtral|mistral", "mixtral"),
    (r"nemotron", "nemotron"),
    (r"grok", "grok"),
    (r"bloom", "bloom"),
    (r"nanotron", "nanotron"),
    (r"\bmpt\b", "mpt"),
    (r"internlm", "internlm"),
    (r"megascale-moe", "megascale-moe"),
    (r"gpt|megatron|megascale", "gpt"),
)

_FRAMEWORKS: tuple[tuple[str, str], ...] = (
    (r"megatron-deepspeed|x-moe", "megatron-deepspeed"),
    (r"megatron-bridge", "megatron-bridge"),
    (r"torchtitan", "torchtitan"),
    (r"automodel", "automodel"),
    (r"primus", "primus"),
    (r"nemo", "nemo"),
    (r"megatron|megascale|flagscale|swift", "megatron-lm"),
    (r"nanotron", "nanotron"),
    (r"llm-foundry", "llm-foundry"),
    (r"maxtext|jax", "maxtext"),
    (r"aleph", "aleph-alpha"),
    (r"fsdp|torchtune", "pytorch-fsdp"),
    (r"deepspeed|xtuner", "deepspeed"),
)

MemoryKind = Literal["device", "reserved", "allocated"]

_MEMORY_WORDS: tuple[tuple[MemoryKind, str], ...] = (
    (
        "device",
        r"nvidia-smi|rocm-smi|hip mem|device-level|device total|usage ?%|device use|% of hbm|card full",
    ),
    ("reserved", r"max_memory_reserved|max reserved|torch reserved|peak reserved|reserved"),
    ("allocated", r"max_memory_allocated|max allocated|allocated|xla pool|in the source"),
)


def groups(case: Case) -> dict[str, str]:
    """Grouping -> group, for the summary."""
    return {
        "gpu": (case.hardware.gpu or "unknown").lower(),
        "family": _first(_FAMILIES, case.model.name),
        "kind": "moe" if case.model.arch.experts else "dense",
        "framework": _first(_FRAMEWORKS, case.framework.name),
        "precision": _precision_group(case.precision),
    }


def _precision_group(words: str | None) -> str:
    found = re.match(r"mxfp8|nvfp4|fp4|fp8|bf16|fp16|fp32", (words or "").lower())
    return found.group() if found else "unknown"


def _first(table: tuple[tuple[str, str], ...], text: str) -> str:
    lower = text.lower()
    return next((name for pattern, name in table if re.search(pattern, lower)), "other")


_MODULES: tuple[tuple[str, str], ...] = (
    (r"nanotron", "nanotron"),
    (r"torchtitan", "torchtitan"),
    (r"kempner|torchtune|fsdp|automodel|aleph|llm-foundry|flash-attention", "pytorch"),
    (r"maxtext|jax", "maxtext"),
    (r"^deepspeed|\(deepspeed", "deepspeed"),
)
"""Whose modules a framework runs, where not Megatron-Core's or the like."""


def recipe_framework(case: Case) -> str:
    """The recipe's ``framework`` of a case."""
    name = case.framework.name.lower()
    return next((word for pattern, word in _MODULES if re.search(pattern, name)), "megatron-core")


def is_megatron(case: Case) -> bool:
    """Whether Megatron-Core's own rules bound the run (NeMo, Megatron-Bridge, Primus too)."""
    name = case.framework.name.lower()
    other = re.search(r"deepspeed|torchtitan|automodel|llama|megascale|verl|\(vocabulary", name)
    return bool(re.search(r"megatron|nemo", name)) and not other


def trust_flags(case: Case) -> tuple[str, ...]:
    """Doubts that the case itself records."""
    notes = case.notes or ""
    flags = []
    if "SUSPECT" in notes:
        flags.append("suspect")
    if re.search(r"\bLOW\b", notes):
        flags.append("low-trust")
    return (*flags, *(f"assumed: {name}" for name in case.assumed))


def is_early_reading(case: Case) -> bool:
    """Whether the throughput was read before the run was warm, as its notes say."""
    return bool(re.search(r"early.step reading", (case.notes or "").lower()))


def memory_reading(case: Case) -> tuple[MemoryKind, Literal["first", "last", "worst"]]:
    """Which memory figure the source gives, and of which pipeline rank.

    The word that comes first in the notes decides; silent sources print torch's reserved memory.
    """
    notes = (case.notes or "").lower()
    hits = [(found.start(), kind) for kind, pattern in _MEMORY_WORDS if (found := re.search(pattern, notes))]
    kind = min(hits)[1] if hits else "reserved"
    if "first pipeline stage" in notes:
        return kind, "first"
    if re.search(r"last\)? rank|logging \(last\)|last pipeline stage|\(last stage\)", notes):
        return kind, "last"
    return kind, "worst"
