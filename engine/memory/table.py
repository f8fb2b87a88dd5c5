"""Peak memory per pipeline stage, itemised. The worst stage decides, never the average one.

Per stage: weights, main gradients and optimizer states after sharding; saved activations times the
micro-batches in flight; the temporaries of the peak moment (recomputed layers, logits and loss, MoE
buffers, gathered parameters); communication buffers; and the device's overhead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwise.engine.lowering import Lowered, lower
from shardwise.engine.memory.communication import library_buffers, tensor_buffers
from shardwise.engine.memory.device import context_bytes, fragmentation_bytes
from shardwise.engine.memory.held import held_activations
from shardwise.engine.memory.saved import layer_saved
from shardwise.engine.memory.states import loading_copies, moments_share, state_items
from shardwise.engine.memory.transients import MOMENTS, Parts, moments, total
from shardwise.engine.memory.verdict import verdict
from shardwise.engine.parameters import Parameters, stage_parameters
from shardwise.engine.pipeline_layout import all_stages
from shardwise.engine.recipe import Recipe
from shardwise.engine.results import MEMORY_ITEMS, MemoryReport, StageMemory
from shardwise.engine.table import Floats, Ints, Table


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTable:
    """Bytes, (n, S) over rows and the stages looked at."""

    items: dict[str, Floats]
    """``MEMORY_ITEMS`` -> (n, S); they sum to ``total``."""
    allocated: Floats
    """Tensors alive at the peak: ``torch.cuda.max_memory_allocated``."""
    reserved: Floats
    """``allocated`` and the allocator's slack: ``torch.cuda.max_memory_reserved``."""
    total: Floats
    """The device's: ``reserved``, context and communication libraries, as nvidia-smi shows it."""
    moments_share: Floats
    """(n,) moments' share of the item ``optimizer``."""
    moment: Ints
    """(n, S) the moment of the peak, an index into ``MOMENTS``."""
    parts: tuple[Parts, ...]
    """Per moment: what the item ``temporary`` is made of."""
    loading: Callable[[], Floats]
    """The device's total while a checkpoint is loaded, when asked for (n, S)."""
    stage_index: Ints
    capacity_bytes: int

    @property
    def peak_bytes(self) -> Floats:
        """(n,) the worst stage's total."""
        return np.asarray(self.total.max(axis=1))

    @property
    def peak_stage(self) -> Ints:
        """(n,) the worst stage."""
        worst = self.total.argmax(axis=1)
        return np.asarray(np.take_along_axis(self.stage_index, worst[:, None], axis=1)[:, 0])

    def report(self, row: int) -> MemoryReport:
        """The verdict of one row, with the stages looked at itemised (each once)."""
        _, columns = np.unique(self.stage_index[row], return_index=True)
        stages = tuple(
            StageMemory(
                int(self.stage_index[row, column]),
                {name: int(values[row, column]) for name, values in self.items.items()},
                allocated=int(np.ceil(self.allocated[row, column])),
                reserved=int(np.ceil(self.reserved[row, column])),
                moment=MOMENTS[self.moment[row, column]],
                temporary=self._temporary(row, column),
            )
            for column in columns
        )
        of_moments = self.moments_share[row] * self.items["optimizer"][row]
        worst = max(stages, key=lambda stage: stage.total)
        return MemoryReport(
            verdict(worst.total, self.capacity_bytes),
            worst.total,
            self.capacity_bytes,
            worst.stage,
            stages,
            first_step_bytes=int(np.ceil((self.total[row] - of_moments).max())),
            load_bytes=int(np.ceil(self.loading()[row].max())),
        )

    def _temporary(self, row: int, column: int) -> dict[str, int]:
        """The parts of a stage's temporary item, the largest first."""
        parts = self.parts[self.moment[row, column]]
        sizes = {name: int(np.ceil(values[row, column])) for name, values in parts.items()}
        return {name: sizes[name] for name in sorted(sizes, key=lambda name: -sizes[name]) if sizes[name]}


def memory_table(table: Table, stages: Ints | None = None) -> MemoryTable:
    """Memory of legal recipes. ``stages`` (n, S): which to look at; by default those that can be worst."""
    low = lower(table, stages)
    return memory_of(low, stage_parameters(low))


def memory_of(low: Lowered, parameters: Parameters) -> MemoryTable:
    """Memory of an already lowered table whose stages hold ``parameters``."""
    saved = {kind: layer_saved(low, kind) for kind in low.layers}
    libraries, buffers = library_buffers(low), tensor_buffers(low)
    states = state_items(low, parameters)
    parts = moments(low, saved, parameters)
    held = held_activations(low, saved)
    layer, loss, step = (total(part) for part in parts)
    passes = np.maximum(layer, loss)
    # Between the passes and the next step only states are alive, and what the optimizer makes.
    after = step > held + passes
    items = {
        **states,
        "activations": np.where(after, 0.0, held),
        "temporary": np.where(after, step, passes),
    }
    moving = items["activations"] + items["temporary"] + buffers
    allocated = np.sum(list(items.values()), axis=0) + buffers
    slack = fragmentation_bytes(low, moving)
    items["communication"] = libraries + buffers
    items["overhead"] = context_bytes(low) + slack
    items = {name: np.ceil(items[name]) for name in MEMORY_ITEMS}
    device = np.sum(list(items.values()), axis=0)

    def loading() -> Floats:
        persistent = sum(states.values()) + loading_copies(low.table, parameters)
        return np.asarray(persistent + items["communication"] + context_bytes(low))

    return MemoryTable(
        items,
        allocated,
        allocated + slack,
        device,
        moments_share(low.table),
        np.where(after, 2, (loss > layer).astype(np.int64)),
        parts,
        loading,
        low.stages,
        low.table.cluster.gpu.memory_bytes,
    )


def report(recipe: Recipe) -> MemoryReport:
    """The verdict of one legal recipe with every stage itemised."""
    table = Table.of([recipe])
    return memory_table(table, all_stages(table)).report(0)
