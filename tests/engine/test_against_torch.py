"""Saved activations against what torch's own operators really keep for the backward pass."""

from __future__ import annotations

from typing import Any

import pytest
from recipes import recipe

from shardwise.engine.lowering import LayerKind, lower
from shardwise.engine.memory.saved import saved_tensors
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Table

_TOKENS, _HIDDEN, _HEADS, _FFN = 64, 128, 2, 512


def _ours(kv_heads: int, bias: bool) -> tuple[Recipe, float]:
    base = recipe({"model": "gpt3-175b", "cluster": "a100-80gb:1x8", "gbs": 8, "seq_len": _TOKENS})
    model = base.model.with_(
        hidden_size=_HIDDEN,
        ffn_hidden_size=_FFN,
        num_attention_heads=_HEADS,
        num_query_groups=kv_heads,
        kv_channels=_HIDDEN // _HEADS,
        add_bias_linear=bias,
    )
    r = base.with_(model=model)
    kept = saved_tensors(lower(Table.of([r])), LayerKind(windowed=False, moe=False))
    return r, sum(float(item.bytes[0]) for item in kept)


@pytest.mark.parametrize("kv_heads", [1, _HEADS])
def test_a_dense_layer_saves_what_torch_saves(kv_heads: int) -> None:
    """LayerNorm, packed QKV, fused causal attention, projection, LayerNorm, GELU MLP; in BF16, no dropout."""
    torch: Any = pytest.importorskip("torch", reason="needs torch's autograd to see what is saved")
    functional = torch.nn.functional
    head = _HIDDEN // _HEADS
    widths = [_HIDDEN, kv_heads * head, kv_heads * head]
    shapes = [(sum(widths), _HIDDEN), (_HIDDEN, _HIDDEN), (_FFN, _HIDDEN), (_HIDDEN, _FFN)]
    weights = [torch.zeros(s, dtype=torch.bfloat16, requires_grad=True) for s in shapes]
    norms = [torch.ones(_HIDDEN, dtype=torch.bfloat16, requires_grad=True) for _ in range(4)]
    own = {p.untyped_storage().data_ptr() for p in (*weights, *norms)}
    seen: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.randn(1, _TOKENS, _HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        normed = functional.layer_norm(x, (_HIDDEN,), norms[0], norms[1])
        parts = functional.linear(normed, weights[0]).split(widths, dim=-1)
        q, k, v = (t.view(1, _TOKENS, -1, head).transpose(1, 2) for t in parts)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        y = x + functional.linear(attended.transpose(1, 2).reshape(1, _TOKENS, -1), weights[1])
        normed = functional.layer_norm(y, (_HIDDEN,), norms[2], norms[3])
        z = y + functional.linear(functional.gelu(functional.linear(normed, weights[2])), weights[3])
    assert z.requires_grad
    _, ours = _ours(kv_heads, bias=False)
    # The norms' mean and deviation, FP32 or BF16 a token, are below what we itemise.
    assert 0 <= sum(seen.values()) - ours <= 2 * 2 * 4 * _TOKENS


@pytest.mark.parametrize("fused", [True, False])
def test_a_gated_layer_of_plain_operators_saves_what_torch_saves(fused: bool) -> None:
    """RMSNorm, grouped queries, fused causal attention, silu(gate) * up as torch operators; in BF16."""
    torch: Any = pytest.importorskip("torch", reason="needs torch's autograd to see what is saved")
    functional, half = torch.nn.functional, torch.bfloat16
    base = recipe({"model": "llama-3-8b", "cluster": "a100-80gb:1x8", "gbs": 8, "seq_len": _TOKENS})
    sizes = {"hidden_size": _HIDDEN, "ffn_hidden_size": _FFN, "num_attention_heads": _HEADS}
    model = base.model.with_(**sizes, num_query_groups=1, kv_channels=_HIDDEN // _HEADS)
    r = base.with_(model=model, framework="pytorch", norm_fusion=fused)
    kept = saved_tensors(lower(Table.of([r])), LayerKind(windowed=False, moe=False))
    ours = sum(float(item.bytes[0]) for item in kept)

    head = _HIDDEN // _HEADS
    shapes = [(_HIDDEN, _HIDDEN), (head, _HIDDEN), (head, _HIDDEN), (_HIDDEN, _HIDDEN)]
    shapes += [(_FFN, _HIDDEN), (_FFN, _HIDDEN), (_HIDDEN, _FFN)]
    weights = [torch.zeros(shape, dtype=half, requires_grad=True) for shape in shapes]
    norms = [torch.ones(_HIDDEN, dtype=half, requires_grad=True) for _ in range(2)]
    own = {p.untyped_storage().data_ptr() for p in (*weights, *norms)}
    seen: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        if tensor.untyped_storage().data_ptr() not in own:
            seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def norm(x: Any, weight: Any) -> Any:
        if fused:
            return _FusedNorm.apply(x, weight)
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * weight

    class _FusedNorm(torch.autograd.Function):  # type: ignore[misc]
        """A kernel that keeps its input, as Apex's, Triton's and Transformer Engine's do."""

        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any) -> Any:
            ctx.save_for_backward(x, weight)
            return functional.rms_norm(x, (_HIDDEN,), weight)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad, None

    x = torch.randn(1, _TOKENS, _HIDDEN, dtype=half, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        normed = norm(x, norms[0])
        q, k, v = (
            functional.linear(normed, w).view(1, _TOKENS, -1, head).transpose(1, 2) for w in weights[:3]
        )
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        y = x + functional.linear(attended.transpose(1, 2).reshape(1, _TOKENS, -1), weights[3])
        normed = norm(y, norms[1])
        gated = functional.silu(functional.linear(normed, weights[4])) * functional.linear(normed, weights[5])
        z = y + functional.linear(gated, weights[6])
    assert z.requires_grad
    theirs = sum(tensor.untyped_storage().nbytes() for tensor in seen.values())
    # One FP32 figure a token and norm.
    assert 0 <= theirs - ours <= 2 * 4 * _TOKENS
