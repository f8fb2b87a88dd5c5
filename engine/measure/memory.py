"""``shardwise memory --measure``: the real modules of one rank, run in its schedule's order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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

    @property
    def allocated(self) -> int:
        return sum(self.items.values())

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
        }


def measure_fake(recipe: Recipe, stage: int) -> MeasuredStage:
    """Run the rank of ``stage`` on fake tensors. Seconds to a minute.

    Raises:
        ConfigError: the recipe asks for what the modules here cannot stand for.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    gauge = LiveStorages()
    with _standing_in(recipe, stage), FakeTensorMode(allow_non_fake_inputs=True), gauge:
        return run(recipe, stage, gauge)


def run(recipe: Recipe, stage: int, gauge: Gauge) -> MeasuredStage:
    """The passes of one step and the optimizer's step, where ``recipe``'s modules can run."""
    rank: Any
    if recipe.framework == "megatron-core":
        from shardwise.engine.measure.megatron_rank import MegatronRank

        rank = MegatronRank(recipe, stage, gauge)
    else:
        from shardwise.engine.measure.huggingface import HuggingFaceRank

        rank = HuggingFaceRank(recipe, gauge)
    order = instruction_order(recipe.pp_schedule, recipe.pp, recipe.vpp, recipe.num_microbatches, stage)
    peak = replay(rank, order, gauge)
    states = rank.optimizer_step()
    return _stage(stage, states, peak, gauge.peak)


@contextmanager
def _standing_in(recipe: Recipe, stage: int) -> Iterator[None]:
    """What stands in for the GPU and for the other ranks."""
    if recipe.framework == "megatron-core":
        from shardwise.engine.measure.megatron import rank_of, without_gpu

        with rank_of(recipe, stage), without_gpu(fused=recipe.transformer_impl == "transformer_engine"):
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
