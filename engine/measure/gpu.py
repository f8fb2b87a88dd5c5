"""``shardwise memory --measure gpu``: the same modules for real, with the allocator's own figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from shardwise.engine.errors import ConfigError
from shardwise.engine.measure.memory import MeasuredStage, run
from shardwise.engine.recipe import Recipe
from shardwise.engine.units import GIB


class CudaGauge:
    """What torch's CUDA allocator counts on the current device (see ``replay.Gauge``)."""

    where = "the allocator's own peak"

    def __init__(self) -> None:
        self.reserved = 0
        """The most that the allocator held of the device so far."""
        self._booked = 0
        self._peak = 0

    @property
    def now(self) -> int:
        """Bytes alive."""
        return int(torch.cuda.memory_allocated()) + self._booked

    @property
    def peak(self) -> int:
        """The most since the last :meth:`restart`."""
        self.reserved = max(self.reserved, int(torch.cuda.max_memory_reserved()))
        return max(self._peak, int(torch.cuda.max_memory_allocated()) + self._booked)

    def restart(self) -> None:
        """Forget the peak."""
        # Resetting forgets the reserved peak too.
        self.reserved = max(self.reserved, int(torch.cuda.max_memory_reserved()))
        torch.cuda.reset_peak_memory_stats()
        self._peak = self.now

    def book(self, size: int, peak: int = 0) -> None:
        """Bytes that come or go without being run."""
        self._peak = max(self._peak, self.now + peak)
        self._booked += size


def measure_gpu(recipe: Recipe, stage: int) -> MeasuredStage:
    """Run the rank of ``stage`` on this machine's GPU, the other ranks' messages left out.

    Raises:
        ConfigError: torch sees no GPU, or the rank does not fit the one that it sees.
    """
    if not torch.cuda.is_available():
        raise ConfigError(
            "measure = 'gpu': torch sees no GPU on this machine; --measure fake needs none", field="measure"
        )
    gauge = CudaGauge()
    torch.cuda.empty_cache()
    gauge.restart()
    try:
        with _on_gpu(recipe, stage):
            found = run(recipe, stage, gauge, real=True)
            free, total = torch.cuda.mem_get_info()
    except torch.cuda.OutOfMemoryError as error:
        size = torch.cuda.mem_get_info()[1] / GIB
        raise ConfigError(
            f"measure = 'gpu': stage {stage} does not fit this machine's GPU of {size:.0f} GiB; "
            "--measure fake needs none",
            field="measure",
        ) from error
    device = {"reserved": gauge.reserved, "device_used": total - free, "device_total": total}
    return found.on_device({name: int(value) for name, value in device.items()})


@contextmanager
def _on_gpu(recipe: Recipe, stage: int) -> Iterator[None]:
    """The world of the rank, and new tensors on the GPU."""
    if recipe.framework != "megatron-core":
        with torch.device("cuda"):
            yield
        return
    from shardwise.engine.measure.megatron import rank_of, real_kernels

    with rank_of(recipe, stage), real_kernels():
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        model_parallel_cuda_manual_seed(1)
        yield
