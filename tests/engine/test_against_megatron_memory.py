"""Memory by formula against what megatron-core's own modules keep alive on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest
from recipes import recipe

pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from shardwise.engine.measure.memory import ITEMS, measure_fake
from shardwise.engine.memory import report
from shardwise.engine.recipe import Recipe

_DENSE = {"model": "llama-3-8b", "cluster": "h100:2x8", "gbs": 64, "seq_len": 4096, "tp": 2, "pp": 2}
_EXPERTS = {"model": "mixtral-8x7b", "cluster": "h100:2x8", "gbs": 64, "seq_len": 4096, "pp": 2, "ep": 8}
_FINE = {"model": "qwen3-30b-a3b", "cluster": "h100:2x8", "gbs": 64, "seq_len": 4096, "pp": 4, "ep": 4}
_LATENT = {"model": "deepseek-v2-lite", "cluster": "h100:1x8", "gbs": 64, "seq_len": 4096, "ep": 8}
_SELECTIVE = {"recompute": "selective"}

_CASES: dict[str, dict[str, Any]] = {
    "dense": _DENSE,
    "dense, interleaved": {**_DENSE, "tp": 4, "vpp": 4},
    "dense, context parallel": {**_DENSE, "tp": 1, "cp": 2},
    "plain MLP, biases": {"model": "gpt3-175b", "cluster": "a100-80gb:8x8", "tp": 8, "pp": 8, "gbs": 64,
                          "seq_len": 2048},
    "full": {**_DENSE, "recompute": "full"},
    "full, a block of layers, gpipe": {**_DENSE, "gbs": 32, "pp_schedule": "gpipe", "recompute": "full",
                                       "recompute_method": "block", "recompute_num_layers": 5},
    "layernorm": {**_DENSE, **_SELECTIVE, "recompute_modules": "layernorm"},
    "mlp": {**_DENSE, **_SELECTIVE, "recompute_modules": "mlp"},
    "core_attn": {**_DENSE, **_SELECTIVE, "recompute_modules": "core_attn"},
    "experts": {**_EXPERTS, "etp": 1},
    "experts beside tp": {**_EXPERTS, "tp": 2, "ep": 4, "etp": 1},
    "moe_act": {**_EXPERTS, **_SELECTIVE, "recompute_modules": "moe_act"},
    "moe": {**_EXPERTS, **_SELECTIVE, "recompute_modules": "moe"},
    "fine experts, QK norms": _FINE,
    "latent attention, shared experts": _LATENT,
    "mla_up_proj": {**_LATENT, **_SELECTIVE, "recompute_modules": "mla_up_proj"},
    "shared_experts": {**_LATENT, **_SELECTIVE, "recompute_modules": "shared_experts"},
}  # fmt: skip


def _compared(r: Recipe, stage: int) -> tuple[dict[str, int], dict[str, int]]:
    """Items by the formulas, without the placeholders that no stand-in has, and as measured."""
    items = report(r.with_(transformer_impl="local")).stages[stage].items
    return {name: items[name] for name in ITEMS}, measure_fake(r, stage).items


@pytest.mark.parametrize("name", _CASES)
@pytest.mark.filterwarnings("ignore")
def test_a_rank_keeps_what_the_formulas_say(name: str) -> None:
    r = recipe(_CASES[name])
    said, items = _compared(r, 0)
    for item in ("weights", "gradients"):
        assert items[item] == said[item], item
    # Adam counts its steps, a figure a parameter.
    assert said["optimizer"] == pytest.approx(items["optimizer"], abs=2**14)
    # Rotary angles, per-token figures and the indices of the permutation are not itemised; the checkpoint of
    # latent attention's up projections keeps the latents as the slices that they are.
    apart = 0.012 if name == "mla_up_proj" else 0.004
    assert said["activations"] == pytest.approx(items["activations"], rel=apart, abs=32 * 2**20)
    assert sum(said[item] for item in ITEMS) == pytest.approx(sum(items[item] for item in ITEMS), rel=0.02)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fused", [True, False])
def test_the_last_stage_peaks_in_the_loss(fused: bool) -> None:
    r = recipe(_DENSE, cross_entropy_fusion=fused)
    said, items = _compared(r, r.pp - 1)
    assert said["temporary"] == pytest.approx(items["temporary"], rel=0.01)


@pytest.mark.filterwarnings("ignore")
def test_recomputing_fused_attention_raises_the_peak() -> None:
    """A checkpoint keeps the values as the slice of the packed projection that they are: reported by users of
    grouped queries, where the copy of the values alone is small."""
    base = {**_FINE, "pp": 1}
    plain, again = recipe(base), recipe(base, recompute="selective", recompute_modules="core_attn")
    without, with_it = _compared(plain, 0), _compared(again, 0)
    by_formula, raised = (b["activations"] - a["activations"] for a, b in zip(without, with_it, strict=True))
    assert raised > 1.6 * 2**30
    assert by_formula == pytest.approx(raised, rel=1e-4)
