"""Memory by framework, held against what public logs printed. None of these figures was fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipes import LLAMA, MIXTRAL, recipe

from shardwise.engine.lowering import lower
from shardwise.engine.memory import report
from shardwise.engine.memory.loss import logits_and_loss
from shardwise.engine.parameters import stage_parameters
from shardwise.engine.recipe import FRAMEWORKS
from shardwise.engine.table import Table

GIB = 2.0**30


_FUSED = {"cross_entropy_fusion": True, "cross_entropy_fusion_impl": "te"}


def _llama_of_12_layers(**fields: Any) -> Any:
    base = {"model": "llama-3-70b", "cluster": "b200:1x8", "mbs": 1, **_FUSED}
    r = recipe({**base, "gbs": 32, "seq_len": 4096})
    return recipe({**base, "gbs": 32, "seq_len": 4096, **fields}).with_(model=r.model.with_(num_layers=12))


@pytest.mark.parametrize(
    ("fields", "allocated_gib"),
    [
        ({"pp": 2}, 66.5),
        ({"tp": 2}, 60.7),
        ({"tp": 4}, 39.1),
        ({"tp": 8}, 28.3),
        ({"cp": 8, "seq_len": 32768}, 104.5),
        ({"tp": 2, "cp": 4, "seq_len": 131072}, 112.7),
    ],
)
def test_megatron_core_with_transformer_engine(fields: dict[str, Any], allocated_gib: float) -> None:
    """Llama-3 70B of 12 layers on 8 B200, largest ``max_memory_allocated`` over ranks (SimuMax's runs)."""
    found = report(_llama_of_12_layers(**fields)).fullest.allocated / GIB
    assert found == pytest.approx(allocated_gib, rel=0.015)


def test_offload_of_moments() -> None:
    """Qwen3-30B-A3B, TP2 PP2 EP4 on 16 H100: 15.2 GB less with all moments on the host (Megatron-Bridge)."""
    fields = {"model": "qwen3-30b-a3b", "cluster": "h100:2x8", "tp": 2, "pp": 2, "ep": 4, "etp": 1}
    fields |= {"gbs": 64, "seq_len": 4096, "main_grads_dtype": "bf16"}
    peaks = [
        report(recipe(fields, optimizer_offload_fraction=share)).peak_bytes / 1e9
        for share in (0.0, 0.25, 0.5, 1.0)
    ]
    assert peaks[0] - peaks[3] == pytest.approx(47.2 - 32.0, rel=0.1)
    assert peaks[0] - peaks[1] == pytest.approx((peaks[0] - peaks[3]) / 4, rel=1e-6)


def test_an_optimizer_on_the_host_takes_time() -> None:
    from shardwise.engine.projection import project

    fields = {"model": "qwen3-30b-a3b", "cluster": "h100:2x8", "tp": 2, "pp": 2, "ep": 4, "etp": 1}
    fields |= {"gbs": 64, "seq_len": 4096}
    on, off = (project(recipe(fields, optimizer_offload_fraction=share)) for share in (0.0, 1.0))
    assert on.step_time_s is not None and off.step_time_s is not None
    assert off.step_time_s - on.step_time_s == pytest.approx(4.189 - 0.996, rel=0.15)


def test_a_plain_data_parallel_7b_does_not_fit_40_gib() -> None:
    """18 bytes a parameter without sharding; ZeRO-1 over 8 leaves 6 + 12/8: 50 GB, still too much."""
    fields = {"model": "llama-2-7b", "cluster": "a100-40gb:1x8", "gbs": 8, "seq_len": 64}
    plain, sharded = (report(recipe(fields, dp_sharding=word)) for word in ("none", "zero1"))
    states = sum(plain.fullest.items[name] for name in ("weights", "gradients", "optimizer"))
    assert states == pytest.approx(18 * 6.74e9, rel=0.01)
    states = sum(sharded.fullest.items[name] for name in ("weights", "gradients", "optimizer"))
    assert states == pytest.approx((6 + 12 / 8) * 6.74e9, rel=0.01)
    assert plain.verdict == sharded.verdict == "out of memory"


def test_logits_of_a_large_vocabulary_are_counted_by_their_loss() -> None:
    r = recipe(LLAMA, pp=1, tp=1, mbs=1)
    one = r.seq_len * 128256
    sizes = {}
    for name in FRAMEWORKS:
        sizes[name] = float(logits_and_loss(lower(Table.of([r.with_(framework=name)])))[0]) / one
    assert sizes["megatron-core"] == pytest.approx(6, rel=0.01)
    assert sizes["torchtitan"] == pytest.approx(12, rel=0.01)
    assert sizes["pytorch"] == pytest.approx(18, rel=0.01)
    assert sizes["nanotron"] == pytest.approx(14, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(
    base=st.sampled_from([MIXTRAL, LLAMA]),
    framework=st.sampled_from(FRAMEWORKS),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "expandable_segments": st.booleans(),
            "norm_fusion": st.booleans(),
            "loss_parallel": st.booleans(),
            "torch_compile": st.booleans(),
            "optimizer_state_dtype": st.sampled_from(["fp32", "bf16", "fp8"]),
        },
    ),
)
def test_three_numbers_are_in_order_and_fusions_never_cost(
    base: dict[str, Any], framework: str, fields: dict[str, Any]
) -> None:
    r = recipe(base, framework=framework, **fields)
    found = report(r)
    for stage in found.stages:
        assert 0 < stage.allocated <= stage.reserved <= stage.total == sum(stage.items.values())
    told = found.as_json()
    for stage_told in told["stages"]:
        # Whatever is in a stage but its number and total is an item of it.
        parts = sum(size for name, size in stage_told.items() if name not in ("stage", "total"))
        assert parts == stage_told["total"]
    assert max(told["allocated_bytes_by_stage"]) >= told["allocated_bytes"]
    lean = r.with_(cross_entropy_fusion=True, norm_fusion=True, loss_parallel=True, expandable_segments=True)
    assert report(lean).peak_bytes <= found.peak_bytes


def test_a_run_can_pass_its_first_step_and_fail_the_second() -> None:
    """Adam's moments come with the first update: 8 bytes a parameter that no recomputation can win back."""
    fields = {
        "model": "llama-2-7b",
        "cluster": "a100-80gb:1x8",
        "dp_sharding": "none",
        "gbs": 8,
        "seq_len": 512,
    }
    found = report(recipe(fields))
    assert found.verdict == "out of memory"
    assert found.first_step_bytes < found.capacity_bytes < found.peak_bytes
    assert found.peak_bytes - found.first_step_bytes == pytest.approx(8 * 6.74e9, rel=0.01)
    halves = report(recipe(fields, optimizer_state_dtype="bf16"))
    assert halves.first_step_bytes == found.first_step_bytes
    assert found.peak_bytes - halves.peak_bytes == pytest.approx(4 * 6.74e9, rel=0.01)


def test_what_others_hold_is_taken_from_the_gpu() -> None:
    alone, shared = (report(recipe(LLAMA, reserved_by_other_gib=held)) for held in (0.0, 20.0))
    assert shared.peak_bytes - alone.peak_bytes == 20 * GIB
    assert shared.fullest.allocated == alone.fullest.allocated


def test_a_histogram_is_the_imbalance_of_its_fullest_rank() -> None:
    counts = np.array([4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    for ep, fullest in ((8, 4 * 8 / 12), (4, 6 * 4 / 12), (2, 8 * 2 / 12), (1, 1.0)):
        told = recipe(MIXTRAL, ep=ep, moe_tokens_per_expert=tuple(counts))
        factor = recipe(MIXTRAL, ep=ep, moe_imbalance=fullest)
        assert report(told).peak_bytes == pytest.approx(report(factor).peak_bytes, rel=1e-9)


def test_fsdp_in_a_pipeline_keeps_whole_gradients() -> None:
    """torchtitan's 405B on 512 H100, PP8 TP8: 82.5 GiB where sharded gradients would leave it near 24."""
    base = {"model": "llama-3.1-405b", "cluster": "h100:64x8", "tp": 8, "pp": 2, "gbs": 256, "seq_len": 8192,
            "dp_sharding": "fsdp", "framework": "torchtitan", "recompute": "full"}  # fmt: skip
    piped, alone = recipe(base), recipe({**base, "pp": 1})
    whole = report(piped).stages[0].temporary["gradients not yet added up"]
    stage = stage_parameters(lower(Table.of([piped]), np.zeros((1, 1), dtype=np.int64)))
    assert whole == pytest.approx(4 * float(stage.dense[0, 0]))
    assert "gradients not yet added up" not in report(alone).stages[0].temporary
