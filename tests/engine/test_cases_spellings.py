"""Spellings of measured cases -> recipes; on all published cases where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from shardwise.engine.cases import Case, Interpretation, Unscorable, interpret, read_cases, to_recipe
from shardwise.engine.cases.networks import nic_bytes_per_s
from shardwise.engine.cases.options import USED_OPTIONS
from shardwise.engine.recipe import Recipe

REPO = Path(__file__).parents[2]
SAMPLE = {case.id: case for case in read_cases(REPO / "tests" / "data" / "cases-sample.jsonl")}


def case_files() -> list[Path]:
    """The published case files: in ``SHARDWISE_CASES``, or beside the checkout."""
    named = os.environ.get("SHARDWISE_CASES")
    folders = (
        [Path(named)] if named else [REPO.parent / "shared" / "cases", REPO.parents[1] / "shared" / "cases"]
    )
    return next((files for folder in folders if (files := sorted(folder.glob("*.jsonl")))), [])


needs_cases = pytest.mark.skipif(not case_files(), reason="set SHARDWISE_CASES to a folder of measured cases")


def _recipe(base: str = "hand-step", **parts: dict[str, Any] | str | None) -> Recipe:
    read = to_recipe(_changed(base, **parts))
    assert isinstance(read, Recipe), read
    return read


def _changed(base: str = "hand-step", **parts: dict[str, Any] | str | None) -> Case:
    data = SAMPLE[base].model_dump()
    for name, value in parts.items():
        data[name] = {**data[name], **value} if isinstance(value, dict) else value
    return Case.model_validate({key: value for key, value in data.items() if value is not None})


@pytest.mark.parametrize(
    ("words", "options", "expected"),
    [
        ("bf16", {}, "bf16"),
        ("fp16 (AMP O2)", {}, "fp16"),
        ("fp8", {}, "fp8-tensorwise"),
        ("fp8-currentscaling", {}, "fp8-tensorwise"),
        ("fp8-nanoo", {}, "fp8-tensorwise"),
        ("fp8-tensorwise", {"fp8_recipe": "delayed scaling, amax history 1024"}, "fp8-delayed"),
        ("fp8 (amp_fp8, Transformer Engine)", {}, "fp8-delayed"),
        ("fp8-blockwise", {}, "fp8-blockwise"),
        ("mxfp8", {}, "mxfp8"),
        ("nvfp4", {}, "nvfp4"),
        (None, {}, "bf16"),
    ],
)
def test_precision(words: str | None, options: dict[str, Any], expected: str) -> None:
    assert _recipe(precision=words, options=options).precision == expected


@pytest.mark.parametrize(
    ("words", "framework", "options", "expected"),
    [
        ("none", "Megatron-LM", {}, ("none", None, True)),
        ("zero1", "Megatron-LM", {}, ("zero1", None, True)),
        ("zero2", "PaddleNLP", {}, ("zero2", None, True)),
        ("zero3/fsdp", "torchtitan", {}, ("fsdp", None, True)),
        ("zero3/fsdp (degree 4)", "MaxText (JAX)", {}, ("hsdp", 4, True)),
        ("zero3/fsdp (degree 8)", "MaxText (JAX)", {}, ("fsdp", None, True)),
        ("hsdp (shard 2 x replicate 4)", "torchtitan", {}, ("hsdp", 2, True)),
        ("fsdp (zero2-like: no reshard after forward)", "torchtitan", {}, ("fsdp", None, False)),
        ("zero3", "llm-foundry", {"fsdp_sharding": "SHARD_GRAD_OP"}, ("fsdp", None, False)),
        (None, "Megatron-LM", {"distributed_optimizer": False}, ("none", None, True)),
        (None, "torchtitan", {}, ("fsdp", None, True)),
        (None, "Megatron-DeepSpeed", {}, ("none", None, True)),
        (None, "NeMo", {}, ("zero1", None, True)),
    ],
)
def test_sharding(
    words: str | None, framework: str, options: dict[str, Any], expected: tuple[object, ...]
) -> None:
    recipe = _recipe(parallel={"dp_sharding": words}, framework={"name": framework}, options=options)
    assert (recipe.dp_sharding, recipe.dp_shard_size, recipe.fsdp_reshard_after_forward) == expected


@pytest.mark.parametrize(
    ("words", "kind", "method", "layers", "modules"),
    [
        (None, "none", None, None, ()),
        ("none", "none", None, None, ()),
        ("full (uniform, every layer)", "full", "uniform", 1, ()),
        ("full, block, 5 of 48 layers", "full", "block", 5, ()),
        ("full, block, 1 layer per virtual stage (32 of 61 layers)", "full", "block", 1, ()),
        ("full uniform 2", "full", "uniform", 2, ()),
        ("full, recompute_layer_ids 0,1,2,4 (4 of 61)", "full", "block", 4, ()),
        ("activation checkpointing", "full", "uniform", 1, ()),
        ("on (granularity in cut part)", "full", "uniform", 1, ()),
        ("selective", "selective", None, None, ("core_attn",)),
        ("selective: mlp, moe_act", "selective", None, None, ("mlp", "moe_act")),
        ("selective [core_attn]", "selective", None, None, ("core_attn",)),
        ("selective (core attention; see note)", "selective", None, None, ("core_attn",)),
        (
            "selective: norm, act, shared_expert",
            "selective",
            None,
            None,
            ("layernorm", "moe_act", "shared_experts"),
        ),
        ("RMSNorm and MLA up-projection", "selective", None, None, ("layernorm", "mla_up_proj")),
        ("selective (per-op SAC)", "selective", None, None, ("layernorm", "mlp")),
        ("selective (every 2nd layer)", "full", "block", 16, ()),
        ("remat_policy save_dot_with_context_except_mlp", "selective", None, None, ("layernorm", "mlp")),
    ],
)
def test_recompute(
    words: str | None, kind: str, method: str | None, layers: int | None, modules: tuple[str, ...]
) -> None:
    recipe = _recipe(recompute=words)
    assert (recipe.recompute, recipe.recompute_method, recipe.recompute_num_layers) == (kind, method, layers)
    assert recipe.recompute_modules == modules


@pytest.mark.parametrize(
    ("options", "field", "expected"),
    [
        ({"flash_attention": False}, "attention_backend", "unfused"),
        ({"kernel": "torch"}, "attention_backend", "unfused"),
        ({"ce_loss_fusion": "te"}, "cross_entropy_fusion", True),
        ({"cuda_graph": "none"}, "cuda_graphs", False),
        ({"cuda_graph": "full iteration"}, "cuda_graphs", True),
        ({"precision_aware_optimizer": "bf16 grads and moments"}, "main_grads_dtype", "bf16"),
        ({"precision_aware_optimizer": "BF16 moments"}, "optimizer_state_dtype", "bf16"),
        ({"grad_accum_fp32": False}, "main_grads_dtype", "bf16"),
        ({"exp_avg_dtype": "bf16"}, "optimizer_state_dtype", "bf16"),
        ({"overlap_grad_sync": False}, "overlap_grad_reduce", False),
        ({"distributed_optimizer": "plain"}, "overlap_param_gather", False),
        ({"async_tp": True}, "tp_comm_overlap", True),
        ({"cp_comm": "a2a"}, "cp_comm_type", "a2a"),
    ],
)
def test_options(options: dict[str, Any], field: str, expected: object) -> None:
    assert getattr(_recipe(options=options), field) == expected


@pytest.mark.parametrize(
    ("options", "field", "expected"),
    [
        ({"moe_dispatcher": "hybridep (32 SMs)"}, "moe_token_dispatcher", "hybridep"),
        ({"moe_dispatcher": "", "deepep": True}, "moe_token_dispatcher", "deepep"),
        ({"moe_dispatcher": "alltoall"}, "moe_token_dispatcher", "alltoall"),
        ({"moe_routing": "token drop, capacity factor 1.0, padded"}, "moe_expert_capacity_factor", 1.0),
        ({"moe_routing": "force-balanced, dropless"}, "moe_expert_capacity_factor", None),
        ({"capacity_factor": 1.25}, "moe_expert_capacity_factor", 1.25),
        ({"ep_overlap": True}, "overlap_moe_expert_parallel_comm", True),
    ],
)
def test_moe_options(options: dict[str, Any], field: str, expected: object) -> None:
    assert getattr(_recipe("hand-tflops-only", options=options), field) == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": {"name": "Qwen3 8B (LoRA)"}}, "LoRA"),
        ({"model": {"name": "Kimi-K3"}}, "linear attention"),
        ({"options": {"scope": "single layer"}}, "no training step"),
        ({"options": {"cpu_offload": True}}, "offload"),
        ({"batch": {"seq_len": None}, "measured": {"tokens_per_s_per_gpu": None}}, "seq_len"),
        ({"hardware": {"gpu": "unknown-80GB"}}, "not stated"),
        ({"hardware": {"gpu": "Ascend-910B4-64GB"}}, "unknown"),
        ({"precision": "fp32"}, "FP32"),
        ({"recompute": "sometimes"}, "not understood"),
        ({"parallel": {"pp": 8, "pp_schedule": "DualPipe"}}, "schedule"),
        ({"model": {"name": "secret 1T", "arch": {"layers": None}}}, "architecture"),
    ],
)
def test_out_of_scope_says_why(change: dict[str, Any], reason: str) -> None:
    read = to_recipe(_changed(**change))
    assert isinstance(read, Unscorable)
    assert read.status == "unsupported"
    assert reason in read.reason


@pytest.mark.parametrize(
    ("words", "per_node", "gbit"),
    [
        ("4x Omni-Path 100 Gb/s", 8, 50),
        ("NVLink + 800 Gb/s IB per node", 8, 100),
        ("1600 Gb/s RoCE", 8, 200),
        ("NVLink3/NVSwitch + 8x200Gb/s HDR IB", 8, 200),
        ("NVLINK Gen4 900 GB/s; Storage: 2x CX-7 IB NDR 400Gb/s, Compute: 8x CX-7 IB NDR 400Gb/s", 8, 400),
        ("NVLINK 4.0; 1x Ethernet 100Gb/Sec, 8x NVIDIA Quantum-2 CX7 InfiniBand (400Gb/s)", 8, 400),
        ("4x ConnectX-8 IB XDR 800 Gb/s", 4, 800),
        ("NVLink + NDR400 InfiniBand", 8, 400),
        ("NVLink + 400 Gb/s RDMA per GPU", 8, 400),
        ("NVLink4 + EFA", 8, None),
        ("800 Gb/s", 8, None),
        (None, 8, None),
    ],
)  # fmt: skip
def test_networks(words: str | None, per_node: int, gbit: float | None) -> None:
    share = nic_bytes_per_s(words, per_node)
    assert share == (None if gbit is None else pytest.approx(gbit * 1e9 / 8))


def test_the_stated_network_is_the_clusters() -> None:
    recipe = _recipe(hardware={"gpus": 64, "interconnect": "4x100 Gb/s RoCE per node"})
    assert recipe.cluster.nic.bandwidth_bytes_per_s == pytest.approx(6.25e9)
    alone = _recipe(hardware={"interconnect": "4x100 Gb/s RoCE per node"})
    assert alone.cluster.nic == alone.cluster.gpu.nic


def test_unfolded_expert_parallelism_is_not_taken_for_folded() -> None:
    read = to_recipe(_changed("hand-tflops-only", parallel={"dp": 8, "ep": 8}))
    assert isinstance(read, Unscorable)
    assert "share one batch" in read.reason


def test_assumptions_are_told() -> None:
    read = interpret(_changed(batch={"gbs": None, "mbs": None}, parallel={"pp": 4, "dp": 2}))
    assert isinstance(read, Interpretation)
    assert (read.recipe.mbs, read.recipe.gbs) == (1, 2 * 4 * 4)
    assert "mbs=1: not stated" in read.assumptions
    assert "gbs=32: not stated" in read.assumptions
    derived = interpret(_changed(batch={"seq_len": None}))
    assert isinstance(derived, Interpretation)
    assert derived.recipe.seq_len == pytest.approx(8192, rel=0.01)


@pytest.mark.parametrize(
    ("layers", "pp", "vpp"), [(61, 4, 4), (61, 16, 1), (126, 8, 4), (62, 8, 1), (61, 2, 8)]
)
def test_uneven_pipelines_keep_the_fullest_chunk(layers: int, pp: int, vpp: int) -> None:
    parallel = {"pp": pp, "vpp": vpp, "pp_schedule": "interleaved-1f1b" if vpp > 1 else "1f1b"}
    recipe = _recipe(
        model={"arch": {**SAMPLE["hand-step"].model.arch.model_dump(), "layers": layers}},
        parallel=parallel,
        hardware={"gpus": 64},
    )
    first = recipe.num_layers_in_first_pipeline_stage
    last = recipe.num_layers_in_last_pipeline_stage
    full = -(-layers // (pp * vpp))
    if recipe.account_for_loss_in_pipeline_split:
        assert (layers + 2) % (pp * vpp) == 0
    else:
        assert first is not None
        assert last is not None
        if pp > 2:
            assert (layers - first - last) // (pp - 2) // vpp == full
        assert first <= full * vpp


@needs_cases
def test_every_published_spelling_is_understood() -> None:
    cases = [case for file in case_files() for case in read_cases(file)]
    assert len(cases) > 5000
    reads = {case.id: interpret(case) for case in cases}
    unscorable = {key: read for key, read in reads.items() if isinstance(read, Unscorable)}
    assert [f"{key}: {read.reason}" for key, read in unscorable.items() if read.status == "error"] == []
    assert [
        f"{key}: {read.reason}" for key, read in unscorable.items() if "not understood" in read.reason
    ] == []
    assert len(unscorable) < 0.06 * len(cases)


@needs_cases
def test_every_option_the_recipe_depends_on_occurs() -> None:
    names = {name for file in case_files() for case in read_cases(file) for name in case.options}
    assert names >= USED_OPTIONS


@pytest.mark.parametrize(
    ("framework", "precision", "options", "expected"),
    [
        ("Megatron-Bridge", "fp8-tensorwise", {}, True),
        ("NeMo 2", "mxfp8", {}, True),
        ("Megatron-Bridge", "fp8-tensorwise", {"fp8_param_gather": False}, False),
        ("Megatron-Bridge", "nvfp4", {}, False),
        ("NeMo (launcher)", "fp8-tensorwise", {}, False),
        ("Megatron-LM", "fp8-tensorwise", {"fp8_params": True}, True),
    ],
)
def test_fp8_parameters(framework: str, precision: str, options: dict[str, Any], expected: bool) -> None:
    hardware = {"gpu": "B200"}
    r = _recipe(framework={"name": framework}, precision=precision, options=options, hardware=hardware)
    assert r.fp8_param_gather is expected


def test_zero2_beside_a_pipeline_reduces_once_a_step() -> None:
    parallel = {"dp_sharding": "zero2", "pp": 2, "tp": 1, "dp": None}
    assert _recipe(parallel=parallel).dp_sharding == "zero1"
