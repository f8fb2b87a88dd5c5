"""The passes and the states of one data-parallel rank that trains a ``transformers`` model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from shardwise.engine.measure.megatron_rank import States
from shardwise.engine.measure.replay import Gauge
from shardwise.engine.measure.stand_ins import Flash
from shardwise.engine.memory.states import shard_sizes
from shardwise.engine.model import Model
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Table


def family(model: Model) -> str:
    """The ``model_type`` of transformers whose layers are the model's."""
    if model.qk_layernorm:
        return "qwen3"
    return "qwen2" if model.add_qkv_bias else "llama"


def hf_model(model: Model) -> Any:
    """The model as transformers builds it, in BF16."""
    import transformers

    config = transformers.AutoConfig.for_model(
        family(model),
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_query_groups,
        head_dim=model.kv_channels,
        vocab_size=model.vocab_size,
        max_position_embeddings=model.max_position_embeddings,
        tie_word_embeddings=model.share_embeddings_and_output_weights,
        use_cache=False,
    )
    return transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa", dtype=torch.bfloat16
    )


@contextmanager
def without_values() -> Iterator[None]:
    """transformers on tensors without values: no weights are drawn, no positions looked at for packed
    sequences, and attention runs as one kernel."""
    import transformers.masking_utils as masks
    from transformers.initialization import no_init_weights

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: Any) -> torch.Tensor:
        out: torch.Tensor = Flash.apply(query, key, value)
        return out

    with (
        no_init_weights(),
        mock.patch.object(masks, "find_packed_sequence_indices", mock.Mock(return_value=None)),
        mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", attention),
    ):
        yield


class HuggingFaceRank:
    """A whole model on one rank (see ``replay.Passes``).

    Gradients are added to main ones as soon as they are there; master weights and moments are sharded over
    the data-parallel ranks unless ``dp_sharding`` is ``none``, each parameter on its own.
    """

    def __init__(self, recipe: Recipe, gauge: Gauge) -> None:
        self.recipe, self.gauge = recipe, gauge
        self._at_loss = 0
        self.module = hf_model(recipe.model)
        if recipe.recompute == "full":
            self.module.gradient_checkpointing_enable({"use_reentrant": False})
        self.module.train()
        self.parameters = list(self.module.parameters())
        self.weights = sum(p.numel() * p.element_size() for p in self.parameters)
        main = torch.float32 if recipe.main_grads_dtype == "fp32" else torch.bfloat16
        before = gauge.now
        self._main = {p: torch.empty_like(p, dtype=main) for p in self.parameters}
        self.gradients = gauge.now - before
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self._add)
        self.module.lm_head.register_forward_pre_hook(self._before_loss)

    def forward(self, chunk: int) -> tuple[Any, int]:
        """See ``replay.Passes``."""
        shape = (self.recipe.mbs, self.recipe.seq_len)
        tokens, labels = (torch.zeros(shape, dtype=torch.long, device=self.device) for _ in range(2))
        output = self.module(input_ids=tokens, labels=labels, use_cache=False)
        # A plain training loop keeps what the model returned, logits too; DeepSpeed's users take the loss.
        held = output if self.recipe.framework == "pytorch" else {"loss": output["loss"]}
        del output
        return held, self.gauge.now - self._at_loss

    def backward(self, chunk: int, held: Any) -> None:
        """See ``replay.Passes``."""
        held["loss"].backward()

    def optimizer_step(self) -> States:
        """Build the optimizer and run its first step; the gauge then shows that step's peak."""
        ranks = round(float(shard_sizes(Table.of([self.recipe]))[0][0]))
        before = self.gauge.now
        shards = [-(-p.numel() // ranks) for p in self.parameters]
        self.masters = [
            torch.nn.Parameter(torch.empty(n, dtype=torch.float32, device=self.device)) for n in shards
        ]
        built = self.gauge.now
        self.gauge.restart()
        for master, n, gradient in zip(self.masters, shards, self._main.values(), strict=True):
            # Views of the main gradients where they are FP32; in 16 bits the step converts a shard.
            part = gradient.view(-1)[:n]
            master.grad = part if part.dtype == torch.float32 else part.float()
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-4, fused=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return States(self.weights, self.gradients, built - before, self.gauge.now - built)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.parameters[0].device
        return device

    def _add(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        self._main[parameter].add_(parameter.grad)
        parameter.grad = None

    def _before_loss(self, *_: Any) -> None:
        self._at_loss = self.gauge.now
