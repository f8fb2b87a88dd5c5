"""``shardwise memory --measure``: the real modules of one rank, run in its schedule's order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from shardwise.engine.measure.live import LiveStorages
from shardwise.engine.measure.replay import Gauge, Peak, replay
from shardwise.engine.recipe import Recipe
from shardwise.engine.results import StageMemory
from shardwise.engine.schedule.orders import instruction_order

ITEMS = ("weights", "gradients", "optimizer", "activations", "temporary")
"""The items that modules hold. Context, communicators' buffers and the allocator's slack are not theirs."""


@dataclass(frozen=True, slots=True)
class MeasuredStage:
    """Bytes of one stage's rank."""

    stage: int
    items: dict[str, int]
    """``ITEMS`` -> bytes at the peak of a step after the first."""
    phases: dict[str, int]
    """Allocated bytes: after ``init``, at the peaks of the ``first_forward`` and ``first_backward`` passes
    (before there are moments), of the ``optimizer_step``, and of the ``second_step``."""
    moment: str
    """The pass and the operator of the peak."""

    device: dict[str, int] | None = None
    """On a GPU: ``reserved`` by the allocator at its peak, ``device_used`` by all, ``device_total``."""

    @property
    def allocated(self) -> int:
        """Bytes of all items."""
        return sum(self.items.values())

    def then(self, second: Peak) -> MeasuredStage:
        """With the passing bytes of a second step that was run."""
        items = {**self.items, "activations": second.activations, "temporary": second.temporary}
        phases = {**self.phases, "second_step": sum(items.values())}
        return replace(self, items=items, phases=phases, moment=second.moment)

    def on_device(self, device: dict[str, int]) -> MeasuredStage:
        """With what the device says."""
        return replace(self, device=device)

    def beside(self, formula: StageMemory) -> dict[str, Any]:
        """As JSON, with what the formulas say."""
        said = {name: formula.items[name] for name in ITEMS}
        return {
            "stage": self.stage,
            "formula": {**said, "allocated": sum(said.values())},
            "measured": {**self.items, "allocated": self.allocated},
            "difference": {
                **{name: said[name] - self.items[name] for name in ITEMS},
                "allocated": sum(said.values()) - self.allocated,
            },
            "phases": self.phases,
            "moment": self.moment,
            **({"device": self.device} if self.device else {}),
        }


def measure_fake(recipe: Recipe, stage: int) -> MeasuredStage:
    """Run the rank of ``stage`` on fake tensors. Seconds to a minute.

    Raises:
        ConfigError: the recipe asks for what the modules here cannot stand for.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    gauge = LiveStorages()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with _standing_in(recipe, stage, gauge), fake, gauge:
        return run(recipe, stage, gauge)


def run(recipe: Recipe, stage: int, gauge: Gauge, *, real: bool = False) -> MeasuredStage:
    """The passes of one step and the optimizer's step, where ``recipe``'s modules can run.

    ``real``: modules that compute, every pass run, and a second step after the first.
    """
    rank: Any
    if recipe.framework == "megatron-core":
        from shardwise.engine.measure.megatron_rank import MegatronRank

        rank = MegatronRank(recipe, stage, gauge, real=real)
    else:
        from shardwise.engine.measure.huggingface import HuggingFaceRank

        rank = HuggingFaceRank(recipe, gauge)
    m = recipe.num_microbatches
    if not real:
        peak = replay(rank, instruction_order(recipe.pp_schedule, recipe.pp, recipe.vpp, m, stage), gauge)
        states = rank.optimizer_step()
        return _stage(stage, states, peak, gauge.peak)
    if recipe.pp_schedule == "1f1b":
        m = min(m, _ENOUGH * recipe.pp)
    order = instruction_order(recipe.pp_schedule, recipe.pp, recipe.vpp, m, stage)
    first = replay(rank, order, gauge, real=m)
    states = rank.optimizer_step()
    stepping = gauge.peak
    found = _stage(stage, states, first, stepping)
    return found.then(replay(rank, order, gauge, real=m))


_ENOUGH = 2
"""Micro-batches over stages with which 1F1B, interleaved or not, has all in flight that it ever has."""


@contextmanager
def _standing_in(recipe: Recipe, stage: int, gauge: LiveStorages) -> Iterator[None]:
    """What stands in for the GPU and for the other ranks."""
    if recipe.framework == "megatron-core":
        from shardwise.engine.measure.megatron import buffers_apart, rank_of, without_gpu

        fused = recipe.transformer_impl == "transformer_engine"
        with rank_of(recipe, stage), without_gpu(fused=fused), buffers_apart(gauge):
            yield
    else:
        from shardwise.engine.measure.huggingface import without_values

        with without_values():
            yield


def _stage(stage: int, states: Any, peak: Peak, optimizer_step: int) -> MeasuredStage:
    init = states.weights + states.gradients + states.main_params
    items = {
        "weights": states.weights,
        "gradients": states.gradients,
        "optimizer": states.main_params + states.moments,
        "activations": peak.activations,
        "temporary": peak.temporary,
    }
    phases = {
        "init": init,
        "first_forward": init + peak.forward,
        "first_backward": init + peak.backward,
        "optimizer_step": optimizer_step,
        "second_step": sum(items.values()),
    }
    return MeasuredStage(stage, items, phases, peak.moment)
