"""The passes and the optimizer of a rank that megatron-core runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from shardwise.engine.lowering import lower
from shardwise.engine.measure.megatron import chunk_of
from shardwise.engine.measure.replay import Gauge
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Table


@dataclass(frozen=True, slots=True)
class States:
    """Bytes of a rank's states, as its framework's own classes allocated them."""

    weights: int
    gradients: int
    main_params: int
    """Master weights."""
    moments: int
    """What the first optimizer step added."""


class MegatronRank:
    """Modules, ``DistributedDataParallel`` and optimizer of one stage's rank (see ``replay.Passes``)."""

    def __init__(self, recipe: Recipe, stage: int, gauge: Gauge, *, real: bool = False) -> None:
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

        self.recipe, self.stage, self.gauge = recipe, stage, gauge
        vocab = round(float(lower(Table.of([recipe])).vocab[0]) * recipe.tp)
        self._at_loss = 0
        self.modules = [chunk_of(recipe, stage, chunk, vocab, real=real) for chunk in range(recipe.vpp)]
        parameters = [p for module in self.modules for p in module.parameters()]
        self.weights = sum(p.numel() * p.element_size() for p in parameters)
        before = gauge.now
        sharded = recipe.dp_sharding == "zero1"
        settings = DistributedDataParallelConfig(
            grad_reduce_in_fp32=recipe.main_grads_dtype == "fp32", use_distributed_optimizer=sharded
        )
        self.wrapped = [DistributedDataParallel(m.config, settings, m) for m in self.modules]
        # The distributed optimizer moves the weights into one buffer: gradients are what came on top.
        self.gradients = gauge.now - before
        for module in self.modules:
            if module.post_process:
                module.output_layer.register_forward_pre_hook(self._before_loss)

    def optimizer_step(self) -> States:
        """Build the optimizer and run its first step; the gauge then shows that step's peak."""
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        before = self.gauge.now
        settings = OptimizerConfig(
            optimizer="adam",
            lr=1e-4,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=self.recipe.dp_sharding == "zero1",
            clip_grad=0.0,
        )
        whole = get_megatron_optimizer(settings, self.wrapped, use_gloo_process_groups=False)
        # The caller keeps the optimizer alive through this object.
        self.optimizers = list(getattr(whole, "chained_optimizers", [whole]))
        built = self.gauge.now
        self.gauge.restart()
        for model in self.wrapped:
            # Gathers in place, into the buffer of weights.
            model.start_param_sync = lambda *_, **__: None
        for optimizer in self.optimizers:
            for group in optimizer.optimizer.param_groups:
                group["fused"] = True  # as Transformer Engine's FusedAdam: nothing passing
            optimizer.prepare_grads()
            optimizer.step_with_ready_grads()
        for optimizer in self.optimizers:
            # 16-bit main gradients have FP32 copies until here.
            optimizer.zero_grad()
        return States(self.weights, self.gradients, built - before, self.gauge.now - built)

    def forward(self, chunk: int) -> tuple[Any, int]:
        """See ``replay.Passes``."""
        from megatron.core.pipeline_parallel.schedules import deallocate_output_tensor

        r, module = self.recipe, self.modules[chunk]
        tokens, labels, positions = (
            torch.zeros(r.mbs, r.seq_len // r.cp, dtype=torch.long, device=self.device) for _ in range(3)
        )
        received = None
        if not module.pre_process:
            received = self._boundary().requires_grad_()
            module.set_input_tensor(received)
        output = module(tokens, positions, None, labels=labels if module.post_process else None)
        if module.post_process:
            loss = output.float().mean()
            del output
            return (loss, received), self.gauge.now - self._at_loss
        deallocate_output_tensor(output, True)
        return (output, received), 0

    def backward(self, chunk: int, held: Any) -> None:
        """See ``replay.Passes``."""
        from megatron.core.pipeline_parallel.schedules import custom_backward

        output, _ = held
        if self.modules[chunk].post_process:
            output.backward()
        else:
            custom_backward(output, self._boundary())
        if not self.modules[chunk].pre_process:
            # A module keeps its last input until its next pass; here passes leave nothing behind.
            self.modules[chunk].set_input_tensor(None)

    def _boundary(self) -> torch.Tensor:
        """What crosses between two stages."""
        r = self.recipe
        length = r.seq_len // r.cp // (r.tp if r.sequence_parallel else 1)
        return torch.empty(length, r.mbs, r.model.hidden_size, dtype=torch.bfloat16, device=self.device)

    def _before_loss(self, *_: Any) -> None:
        self._at_loss = self.gauge.now

    @property
    def device(self) -> torch.device:
        return next(iter(self.modules[0].parameters())).device
