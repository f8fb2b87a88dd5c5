"""Stand-ins for the fused kernels of Transformer Engine and torch, which run on GPUs only.

Each keeps for its backward what the kernel keeps, and makes what it makes. They compute nothing, but for
``TorchAttention``: for fake tensors only.
"""

from __future__ import annotations

from typing import Any

import torch


class _Norm(torch.autograd.Function):
    """A kernel that keeps its input and one or two FP32 figures a token, as Transformer Engine's does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, centred: bool) -> torch.Tensor:
        x = x.contiguous()
        statistics = x.new_empty((2 if centred else 1, *x.shape[:-1]), dtype=torch.float32)
        ctx.save_for_backward(x, weight, statistics)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight), None


class FusedNorm(torch.nn.Module):
    """Stand-in for a fused layer norm (``centred``) or RMS norm. Computes nothing: for fake tensors only."""

    def __init__(self, hidden_size: int, eps: float, *, centred: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size)) if centred else None
        self.centred = centred

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = _Norm.apply(x, self.weight, self.centred)
        return normed


class Rotary(torch.autograd.Function):
    """``fused_apply_rotary_pos_emb``: keeps the angles only."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(freqs)
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.empty_like(grad), None


class FlashAttention(torch.nn.Module):
    """Stand-in for Transformer Engine's fused attention: torch's own flash kernel, causal."""

    def __init__(self, config: Any, *_: Any, **__: Any) -> None:
        super().__init__()
        self.config = config

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
    ) -> torch.Tensor:
        # Values are a slice of the packed projection; Transformer Engine copies what is not contiguous.
        q, k, v = (x.contiguous().permute(1, 2, 0, 3) for x in (query, key, value))
        out: torch.Tensor = Flash.apply(q, k, v)
        return out.permute(2, 0, 1, 3).reshape(query.shape[0], query.shape[1], -1)


class TorchAttention(FlashAttention):
    """Torch's own fused attention, which computes."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
    ) -> torch.Tensor:
        q, k, v = (x.contiguous().permute(1, 2, 0, 3) for x in (query, key, value))
        out: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
        return out.permute(2, 0, 1, 3).reshape(query.shape[0], query.shape[1], -1)


class Flash(torch.autograd.Function):
    """Keeps queries, keys, values, the output and an FP32 figure per query and head, with any head sizes."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch, heads, length, _ = q.shape
        out = q.new_empty((length, batch, heads, v.shape[-1])).permute(1, 2, 0, 3)
        ctx.save_for_backward(q, k, v, out, q.new_empty((batch, heads, length), dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3])


class GroupedExperts(torch.nn.Module):
    """Stand-in for a grouped product: the local experts' weights as one batch, the same tokens for each."""

    def __init__(self, num_local_experts: int, config: Any, *_: Any, **__: Any) -> None:
        super().__init__()
        width = config.moe_ffn_hidden_size // config.expert_tensor_parallel_size
        into = 2 if config.gated_linear_unit else 1
        hidden = config.hidden_size
        self.gated = config.gated_linear_unit
        modules = config.recompute_modules if config.recompute_granularity == "selective" else ()
        self.recompute = "moe_act" in (modules or ())
        self.weight1 = torch.nn.Parameter(torch.empty(num_local_experts, hidden, into * width))
        self.weight2 = torch.nn.Parameter(torch.empty(num_local_experts, width, hidden))
        weights = [self.weight1, self.weight2]
        if config.add_bias_linear:
            # Counted only: what a bias adds to passes by nothing that is kept.
            self.bias1 = torch.nn.Parameter(torch.empty(num_local_experts, into * width))
            self.bias2 = torch.nn.Parameter(torch.empty(num_local_experts, hidden))
            weights += [self.bias1, self.bias2]
        for weight in weights:
            weight.allreduce = False

    def forward(
        self, tokens: torch.Tensor, _: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        experts = self.weight1.shape[0]
        inner = torch.bmm(tokens.view(experts, -1, tokens.shape[-1]), self.weight1)
        inner = inner.view(tokens.shape[0], -1)
        if self.recompute:
            from megatron.core.tensor_parallel import CheckpointWithoutOutput

            kept = CheckpointWithoutOutput()
            active = kept.checkpoint(self._activation, inner, probs)
            out = self._down(active)
            kept.discard_output_and_register_recompute(out)
            return out, None
        return self._down(self._activation(inner, probs)), None

    def _activation(self, inner: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
        active: torch.Tensor = _WeightedActivation.apply(inner, probs, self.gated)
        return active

    def _down(self, active: torch.Tensor) -> torch.Tensor:
        experts = self.weight2.shape[0]
        return torch.bmm(active.view(experts, -1, active.shape[-1]), self.weight2).view(active.shape[0], -1)


class _WeightedActivation(torch.autograd.Function):
    """``weighted_bias_swiglu``: keeps its input and the probabilities that it multiplies by."""

    @staticmethod
    def forward(ctx: Any, inner: torch.Tensor, probs: torch.Tensor, gated: bool) -> torch.Tensor:
        ctx.save_for_backward(inner, probs)
        width = inner.shape[-1] // (2 if gated else 1)
        return inner.new_empty((inner.shape[0], width))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        inner, probs = ctx.saved_tensors
        return torch.empty_like(inner), torch.empty_like(probs), None
