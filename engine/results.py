"""What the engine answers: violations, memory verdicts, projections. Plain frozen values with ``as_json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["fits", "tight", "out of memory"]

DEFAULT_MARGIN = 0.15
"""Share of the capacity that a recipe should leave free. Of the measured runs that ran out of memory 97% are
then called ``tight`` or worse (``shardwise validate``), with a tenth 94%."""

MEMORY_ITEMS: tuple[str, ...] = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "temporary",
    "communication",
    "overhead",
)
"""The items of a stage's memory, in the order they are reported."""

TIME_ITEMS: tuple[str, ...] = (
    "attention",
    "mlp",
    "moe",
    "tp_comm",
    "ep_comm",
    "cp_comm",
    "pp_comm",
    "dp_comm_exposed",
    "bubble",
    "recompute",
    "optimizer",
    "other",
)
"""The items of a step's time, in the order they are reported."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule of legality."""

    rule: str
    """Stable name, e.g. ``world-size``."""
    message: str
    """One line: the fields, their values, what is allowed, the nearest legal value."""
    fields: tuple[str, ...]
    framework: str = "megatron-core"
    """Who demands it."""
    nearest: dict[str, Any] = field(default_factory=dict)
    """Field -> nearest legal value, where there is one."""

    def as_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "message": self.message,
            "fields": list(self.fields),
            "framework": self.framework,
            "nearest": self.nearest,
        }


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of one pipeline stage's fullest rank at its peak."""

    stage: int
    items: dict[str, int]
    """``MEMORY_ITEMS`` -> bytes; they sum to the device total."""
    allocated: int = 0
    """Tensors alive at the peak: what ``torch.cuda.max_memory_allocated`` reports."""
    reserved: int = 0
    """With the allocator's slack: what ``torch.cuda.max_memory_reserved`` reports."""
    moment: str = ""
    """When it is fullest: ``backward of a layer``, ``loss`` or ``optimizer step``."""
    temporary: dict[str, int] = field(default_factory=dict)
    """What the item ``temporary`` is made of at that moment -> bytes, the largest first."""

    @property
    def total(self) -> int:
        return sum(self.items.values())

    def peak_as_json(self) -> dict[str, Any]:
        """When the stage is fullest, and what its passing bytes are."""
        return {"stage": self.stage, "moment": self.moment, "temporary": self.temporary}

    def as_json(self) -> dict[str, Any]:
        return {"stage": self.stage, **self.items, "total": self.total}


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Does it fit: the worst stage decides."""

    verdict: Verdict
    peak_bytes: int
    capacity_bytes: int
    peak_stage: int
    stages: tuple[StageMemory, ...]
    first_step_bytes: int = 0
    """The fullest stage in the first step, whose backward passes run before the optimizer has moments."""
    load_bytes: int = 0
    """The fullest stage while a checkpoint is loaded."""

    @property
    def fullest(self) -> StageMemory:
        """The stage that decides."""
        return next(stage for stage in self.stages if stage.stage == self.peak_stage)

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "peak_bytes": self.peak_bytes,
            "capacity_bytes": self.capacity_bytes,
            "peak_stage": self.peak_stage,
            "first_step_bytes": self.first_step_bytes,
            "load_bytes": self.load_bytes,
            "allocated_bytes": self.fullest.allocated,
            "reserved_bytes": self.fullest.reserved,
            "allocated_bytes_by_stage": [s.allocated for s in self.stages],
            "reserved_bytes_by_stage": [s.reserved for s in self.stages],
            "peaks": [s.peak_as_json() for s in self.stages],
            "stages": [s.as_json() for s in self.stages],
        }


@dataclass(frozen=True, slots=True)
class Projection:
    """What the engine says of one recipe. Figures are None when it is illegal."""

    violations: tuple[Violation, ...]
    step_time_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    """Model TFLOP/s per GPU, without recomputation; causal attention counted in half."""
    mfu: float | None = None
    """``tflops_per_gpu`` over the dense peak of the recipe's main matrix format."""
    interval80: tuple[float, float] | None = None
    """80% interval of ``tokens_per_s_per_gpu``."""
    bubble_fraction: float | None = None
    time_breakdown_s: dict[str, float] = field(default_factory=dict)
    """``TIME_ITEMS`` -> seconds of the step on the critical path; they sum to ``step_time_s``."""
    provenance: dict[str, float] = field(default_factory=dict)
    """``measured | interpolated | simulated`` -> share of the step time."""
    memory: MemoryReport | None = None
    warnings: tuple[str, ...] = ()
    """What lies outside of the calibration, a line each; the interval is wider then."""

    @property
    def legal(self) -> bool:
        return not self.violations

    def as_json(self) -> dict[str, Any]:
        return {
            "legal": self.legal,
            "violations": [v.as_json() for v in self.violations],
            "step_time_s": self.step_time_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "tflops_per_gpu": self.tflops_per_gpu,
            "mfu": self.mfu,
            "interval80": {"tokens_per_s_per_gpu": list(self.interval80)} if self.interval80 else None,
            "bubble_fraction": self.bubble_fraction,
            "time_breakdown_s": self.time_breakdown_s or None,
            "provenance": self.provenance or None,
            "memory": self.memory.as_json() if self.memory else None,
            "warnings": list(self.warnings),
        }
