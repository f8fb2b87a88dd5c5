"""Memory of a rank by formula against the frameworks' own modules and optimizers, run on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.engine.measure.report import measured
from shardwise.engine.recipe_io import load_recipe

pytest.importorskip("torch", reason="runs torch modules")
pytest.importorskip("megatron.core", reason="runs megatron-core's modules")

_LLAMA: dict[str, Any] = {
    "name": "llama-like",
    "num_layers": 8,
    "hidden_size": 4096,
    "ffn_hidden_size": 14336,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "kv_channels": 128,
    "vocab_size": 32000,
}
_GPT: dict[str, Any] = {
    **_LLAMA,
    "ffn_hidden_size": 16384,
    "num_query_groups": 32,
    "gated_linear_unit": False,
    "add_bias_linear": True,
    "normalization": "LayerNorm",
    "position_embedding_type": "learned_absolute",
    "max_position_embeddings": 4096,
}
_MOE: dict[str, Any] = {**_LLAMA, "num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 7168}
_MLA: dict[str, Any] = {
    **_MOE,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_query_groups": 16,
    "multi_latent_attention": True,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
    "moe_ffn_hidden_size": 1408,
    "moe_shared_expert_intermediate_size": 2816,
    "num_dense_layers": 1,
}
_CASES: dict[str, tuple[dict[str, Any], dict[str, Any], float, float]] = {
    # model, recipe, tolerance of activations and passing tensors together, of all that is allocated
    "dense": (_LLAMA, {"tp": 2, "pp": 2}, 0.04, 0.015),
    "one rank": (_LLAMA, {"dp_sharding": "none"}, 0.04, 0.015),
    "gradients in 16 bits": (_LLAMA, {"tp": 2, "pp": 2, "main_grads_dtype": "bf16"}, 0.04, 0.015),
    "plain mlp, biases": (_GPT, {"tp": 2, "pp": 2}, 0.04, 0.015),
    "interleaved": (_LLAMA, {"tp": 2, "pp": 2, "vpp": 2}, 0.04, 0.015),
    "context parallel": (_LLAMA, {"tp": 2, "cp": 2, "seq_len": 8192}, 0.04, 0.015),
    "full recompute": (_LLAMA, {"tp": 2, "pp": 2, "recompute": "full"}, 0.09, 0.015),
    "mlp again": (
        _LLAMA,
        {"tp": 2, "pp": 2, "recompute": "selective", "recompute_modules": "mlp"},
        0.05,
        0.015,
    ),
    "norms again": (
        _LLAMA,
        {"tp": 2, "pp": 2, "recompute": "selective", "recompute_modules": "layernorm"},
        0.04,
        0.015,
    ),
    "experts": (_MOE, {"tp": 2, "pp": 2, "ep": 2, "etp": 1}, 0.07, 0.015),
    "experts' activation again": (
        _MOE,
        {"pp": 2, "ep": 4, "recompute": "selective", "recompute_modules": "moe_act"},
        0.04,
        0.015,
    ),
    # Its peak is in a forward pass; the formula counts a MoE layer's backward on top.
    "multi-latent attention": (_MLA, {"pp": 2, "ep": 4}, 0.08, 0.04),
}


@pytest.mark.parametrize("name", _CASES)
@pytest.mark.filterwarnings("ignore")
def test_a_rank_holds_what_its_modules_hold(name: str) -> None:
    model, fields, moving, allocated = _CASES[name]
    base = {"cluster": "h100:2x8", "gbs": 64, "seq_len": 4096, "transformer_impl": "local"}
    recipe = load_recipe({"model": model, **base, **fields})
    for stage in measured(recipe, "fake")["stages"]:
        formula, found = stage["formula"], stage["measured"]
        assert formula["weights"] == found["weights"]
        assert formula["gradients"] == found["gradients"]
        # Adam keeps its step beside the moments: an FP32 figure per parameter tensor.
        assert 0 <= found["optimizer"] - formula["optimizer"] < 4 * 1000
        ours, theirs = (side["activations"] + side["temporary"] for side in (formula, found))
        assert ours == pytest.approx(theirs, rel=moving), f"stage {stage['stage']}"
        assert formula["allocated"] == pytest.approx(found["allocated"], rel=allocated)
        assert stage["phases"]["second_step"] == found["allocated"]
        assert stage["moment"]


@pytest.mark.parametrize("framework", ["pytorch", "deepspeed"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_a_model_of_transformers_holds_what_we_say(framework: str, recompute: str, biased: bool) -> None:
    pytest.importorskip("transformers", reason="runs transformers' models")
    # Unsharded: no model of transformers has the buckets of DeepSpeed's ZeRO.
    fields = {"cluster": "h100:1x8", "gbs": 64, "seq_len": 4096, "norm_fusion": False, "dp_sharding": "none"}
    model = {**_LLAMA, "add_qkv_bias": biased}
    recipe = load_recipe({"model": model, "framework": framework, "recompute": recompute, **fields})
    (stage,) = measured(recipe, "fake")["stages"]
    formula, found = stage["formula"], stage["measured"]
    assert formula["weights"] == found["weights"]
    assert formula["gradients"] == found["gradients"]
    assert 0 <= found["optimizer"] - formula["optimizer"] < 4 * 1000
    # Beside what layers save: rotary angles, and the labels.
    assert formula["activations"] == pytest.approx(found["activations"], rel=0.005, abs=80 * 2**20)
    logit = recipe.seq_len * recipe.model.vocab_size
    # The FP32 copy of the logits lives inside the loss only: 4 bytes a logit less than a loop that names it.
    named = 4 * logit if framework == "pytorch" else 0
    assert formula["temporary"] - named == pytest.approx(found["temporary"], abs=1024)


@pytest.mark.filterwarnings("ignore")
def test_passes_that_are_not_run_count_as_if_they_were() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from shardwise.engine.measure.live import LiveStorages
    from shardwise.engine.measure.megatron import rank_of, without_gpu
    from shardwise.engine.measure.megatron_rank import MegatronRank
    from shardwise.engine.measure.replay import REAL, Peak, replay
    from shardwise.engine.schedule.orders import instruction_order

    fields = {"cluster": "h100:1x8", "gbs": 8, "seq_len": 1024, "pp": 4, "vpp": 2, "tp": 2}
    recipe = load_recipe({"model": _LLAMA, "transformer_impl": "local", **fields})
    order = instruction_order("1f1b", 4, 2, recipe.num_microbatches, 0)

    def peak(real: int) -> Peak:
        gauge = LiveStorages()
        with rank_of(recipe, 0), without_gpu(fused=False), FakeTensorMode(allow_non_fake_inputs=True), gauge:
            return replay(MegatronRank(recipe, 0, gauge), order, gauge, real=real)

    every, few = peak(recipe.num_microbatches), peak(REAL)
    assert few.activations + few.temporary == pytest.approx(every.activations + every.temporary, rel=0.001)
