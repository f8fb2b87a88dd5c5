"""``shardwise memory --measure fake``: the real modules of one rank, run in its schedule's order.

The optimizer's and the gradients' bytes follow from the modules' own parameters; activations and passing
tensors are what the modules' operators keep alive. The device's context, the communicators' buffers and the
allocator's slack are not there to be measured.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from shardwise.engine.errors import ConfigError
from shardwise.engine.lowering import lower
from shardwise.engine.measure.live import LiveStorages
from shardwise.engine.measure.megatron import chunk_of, rank_of, without_gpu
from shardwise.engine.memory.states import device_optimizer_bytes, held_gradient_bytes, shard_sizes
from shardwise.engine.recipe import Recipe
from shardwise.engine.schedule.orders import Action, instruction_order
from shardwise.engine.table import Table

_BACKWARDS = 2
"""Backward passes to run: from the second one on, every round of the schedule is like the one before."""


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """Bytes of one stage's rank."""

    stage: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    """Saved by layers, of all micro-batches in flight, in the pass in which most was alive."""
    temporary: int
    """Alive at the peak on top of the others: gradients, what runs again, logits and loss."""
    moment: str
    """The pass in which most was alive, e.g. ``B3 of chunk 0``."""

    @property
    def allocated(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.temporary

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "allocated": self.allocated}


def refuse(recipe: Recipe) -> None:
    """Raise :class:`ConfigError` for what the modules here cannot stand for."""
    for field, value, allowed, fine in (
        ("framework", recipe.framework, "megatron-core", recipe.framework == "megatron-core"),
        ("precision", recipe.precision, "bf16", recipe.precision == "bf16"),
        (
            "dp_sharding",
            recipe.dp_sharding,
            "none, zero1, zero2",
            recipe.dp_sharding in ("none", "zero1", "zero2"),
        ),
        (
            "tp",
            recipe.tp,
            "1 under multi-latent attention (Megatron's own layers split what Transformer Engine repeats)",
            recipe.tp == 1 or not recipe.model.multi_latent_attention,
        ),
        ("mtp_num_layers", recipe.model.mtp_num_layers, "0", recipe.model.mtp_num_layers == 0),
    ):
        if not fine:
            raise ConfigError(f"{field} = {value}: measuring on fake tensors allows {allowed}", field=field)


def measure_fake(recipe: Recipe, stage: int) -> MeasuredMemory:
    """Run the rank of ``stage`` on fake tensors until its memory repeats. Seconds to a minute."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    refuse(recipe)
    low = lower(Table.of([recipe]))
    vocab = round(float(low.vocab[0]) * recipe.tp)
    fused = recipe.transformer_impl == "transformer_engine"
    with rank_of(recipe, stage), without_gpu(fused=fused), FakeTensorMode(allow_non_fake_inputs=True):
        chunks = [chunk_of(recipe, stage, chunk, vocab) for chunk in range(recipe.vpp)]
        return _Rank(recipe, stage, chunks).run()


class _Rank:
    """The forward and backward passes of one rank."""

    def __init__(self, recipe: Recipe, stage: int, chunks: list[Any]) -> None:
        self.recipe, self.stage, self.chunks = recipe, stage, chunks
        self.parameters = [p for chunk in chunks for p in chunk.parameters()]
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(_drop_gradient)
        for chunk in chunks:
            if chunk.post_process:
                chunk.output_layer.register_forward_pre_hook(self._before_loss)
        self.live = LiveStorages([*self.parameters, *(b for c in chunks for b in c.buffers())])
        self._held: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._at_loss = 0
        self._of_loss: dict[tuple[int, int], int] = {}

    def run(self) -> MeasuredMemory:
        r, table = self.recipe, Table.of([self.recipe])
        best, saved, moment, backwards = -1, 0, "", 0
        with self.live:
            for action in instruction_order(r.pp_schedule, r.pp, r.vpp, r.num_microbatches, self.stage):
                self.live.restart()
                held = self._do(action)
                if self.live.peak > best:
                    best, saved = self.live.peak, held
                    moment = f"{action.kind}{action.micro_batch} of chunk {action.chunk}"
                backwards += action.kind == "B"
                if backwards == _BACKWARDS * r.vpp:
                    break
        dense = sum(p.numel() for p in self.parameters if getattr(p, "allreduce", True))
        expert = sum(p.numel() for p in self.parameters) - dense
        dense_shards, expert_shards = (float(shards[0]) for shards in shard_sizes(table))
        per_gradient = float(held_gradient_bytes(table)[0])
        per_state = float(device_optimizer_bytes(table)[0])
        return MeasuredMemory(
            stage=self.stage,
            weights=sum(p.numel() * p.element_size() for p in self.parameters),
            gradients=round((dense + expert) * per_gradient),
            optimizer=round((dense / dense_shards + expert / expert_shards) * per_state),
            activations=saved,
            temporary=best - saved,
            moment=moment,
        )

    def _before_loss(self, *_: Any) -> None:
        self._at_loss = self.live.now

    def _do(self, action: Action) -> int:
        """Run one pass; gives the bytes of layers' activations that it begins, or ends, with."""
        key, last = (action.micro_batch, action.chunk), self._loss(action.chunk)
        if action.kind == "F":
            self._held[key] = self._forward(self.chunks[action.chunk])
            # What logits and loss leave behind passes with them.
            self._of_loss[key] = self.live.now - self._at_loss if last else 0
            return self.live.now - self._of_loss[key]
        before = self.live.now - self._of_loss.pop(key)
        from megatron.core.pipeline_parallel.schedules import custom_backward

        output, received = self._held.pop(key)
        if output.numel() == 1:
            gradient = None if last else self._boundary()
            custom_backward(output, gradient)
        else:
            output.backward(self._boundary())
        del output, received
        return before

    def _loss(self, chunk: int) -> bool:
        return bool(self.chunks[chunk].post_process)

    def _forward(self, chunk: Any) -> tuple[Any, Any]:
        from megatron.core.pipeline_parallel.schedules import deallocate_output_tensor

        r = self.recipe
        length = r.seq_len // r.cp
        tokens, labels, positions = (torch.zeros(r.mbs, length, dtype=torch.long) for _ in range(3))
        received = None
        if not chunk.pre_process:
            received = self._boundary().requires_grad_()
            chunk.set_input_tensor(received)
        output = chunk(tokens, positions, None, labels=labels if chunk.post_process else None)
        if chunk.post_process:
            return output.float().mean(), received
        deallocate_output_tensor(output, True)
        return output, received

    def _boundary(self) -> torch.Tensor:
        """What crosses between two stages."""
        r = self.recipe
        length = r.seq_len // r.cp // (r.tp if r.sequence_parallel else 1)
        return torch.empty(length, r.mbs, r.model.hidden_size, dtype=torch.bfloat16)


def _drop_gradient(parameter: torch.Tensor) -> None:
    """What DistributedDataParallel's hook does once the gradient is added to the main one."""
    parameter.grad = None
