"""What a tuner could exploit if the model were careless: continuity, monotonicity, no second spent twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from recipes import DEEPSEEK, LLAMA, MIXTRAL, recipe

from shardwise.engine.costs import Pricing, layer_cost
from shardwise.engine.efficiency import shipped_calibration
from shardwise.engine.lowering import LayerKind, lower
from shardwise.engine.memory import report
from shardwise.engine.parameters import stage_parameters
from shardwise.engine.pipeline_layout import all_stages
from shardwise.engine.projection import project
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Table
from shardwise.engine.workload import Collective, layer_operators


def step_s(r: Recipe) -> float:
    answer = project(r)
    assert answer.legal, answer.violations
    assert answer.step_time_s is not None
    return answer.step_time_s


def tokens_s(r: Recipe) -> float:
    answer = project(r)
    assert answer.legal and answer.tokens_per_s_per_gpu is not None, answer.violations
    return answer.tokens_per_s_per_gpu


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    base = draw(st.sampled_from([MIXTRAL, LLAMA, DEEPSEEK]))
    changes: dict[str, Any] = {
        "tp": draw(st.sampled_from([1, 2, 4, 8])),
        "cp": draw(st.sampled_from([1, 2])),
        "mbs": draw(st.sampled_from([1, 2, 4])),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "dp_sharding": draw(st.sampled_from(["none", "zero1", "zero2", "fsdp"])),
        "cross_entropy_fusion": draw(st.booleans()),
    }
    if base is not DEEPSEEK:
        changes["pp"] = draw(st.sampled_from([1, 2, 4]))
        changes["vpp"] = draw(st.sampled_from([1, 2])) if changes["pp"] > 1 else 1
    if base is MIXTRAL:
        changes |= {"ep": draw(st.sampled_from([1, 2, 4, 8]))}
    if base is not LLAMA:
        changes["etp"] = 1
    r = recipe(base, **changes)
    assume(project(r).legal)
    return r


@settings(max_examples=60, deadline=None)
@given(r=recipes())
def test_a_larger_batch_never_lowers_throughput(r: Recipe) -> None:
    assert tokens_s(r.with_(gbs=2 * r.gbs)) >= tokens_s(r) * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(r=recipes())
def test_longer_sequences_and_more_layers_take_longer(r: Recipe) -> None:
    assert step_s(r.with_(seq_len=2 * r.seq_len)) > step_s(r)
    model = r.model.with_(num_layers=r.model.num_layers + r.pp * r.vpp)
    deeper = r.with_(model=model)
    assume(project(deeper).legal)
    assert step_s(deeper) > step_s(r)


@settings(max_examples=60, deadline=None)
@given(r=recipes(), field=st.sampled_from(["mbs", "seq_len"]))
def test_memory_grows_with_what_is_in_flight(r: Recipe, field: str) -> None:
    more = r.with_(**{field: 2 * getattr(r, field)})
    assume(project(more).legal)
    before, after = report(r), report(more)
    for a, b in zip(before.stages, after.stages, strict=True):
        # Fewer micro-batches may be in flight at twice the size, but never less than the same data.
        assert b.items["activations"] >= a.items["activations"] * (1 - 1e-9)
        assert b.total >= a.total * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(r=recipes())
def test_tensor_and_pipeline_parallelism_shrink_weights(r: Recipe) -> None:
    base = r.with_(dp_sharding="zero1")
    for field in ("tp", "pp"):
        changes: dict[str, Any] = {field: 2 * getattr(base, field)}
        if field == "tp":
            changes["sequence_parallel"] = True
        wider = base.with_(**changes)
        if not project(wider).legal:
            continue
        most = [max(s.items["weights"] for s in report(x).stages) for x in (base, wider)]
        assert most[1] < most[0]


@settings(max_examples=40, deadline=None)
@given(r=recipes())
def test_a_faster_gpu_fabric_or_nic_is_never_slower(r: Recipe) -> None:
    cluster = r.cluster
    fast = cluster.gpu.with_(
        hbm_bandwidth_bytes_per_s=2 * cluster.gpu.hbm_bandwidth_bytes_per_s,
        peak_flops={name: 2 * value for name, value in cluster.gpu.peak_flops.items()},
    )
    better = cluster.with_(gpu=fast)
    assert step_s(r.with_(cluster=better)) <= step_s(r) * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(r=recipes())
def test_over_an_ideal_network_twice_the_gpus_never_slow_a_step(r: Recipe) -> None:
    cluster = r.cluster
    ideal = cluster.with_(
        num_nodes=2 * cluster.num_nodes,
        fabric=cluster.fabric.with_(bandwidth_bytes_per_s=1e18),
        nic=cluster.nic.with_(bandwidth_bytes_per_s=1e18),
    )
    wide = r.with_(cluster=ideal)
    assume(r.num_microbatches % 2 == 0 and project(wide).legal)
    assert step_s(wide) <= step_s(r) * 1.01


def test_no_second_of_compute_hides_two_communications() -> None:
    r = recipe(DEEPSEEK, tp=2, cp=2, ep=32, recompute="none", precision="bf16")
    slow = r.cluster.fabric.with_(bandwidth_bytes_per_s=1e9)
    r = r.with_(cluster=r.cluster.with_(fabric=slow, nic=r.cluster.nic.with_(bandwidth_bytes_per_s=1e8)))
    pricing = Pricing.of(lower(Table.of([r])), shipped_calibration())
    cost = layer_cost(pricing, LayerKind(windowed=False, moe=True))
    # The tensor-parallel exchange alone would fill the backward: what is left is what is no matrix work.
    assert float(cost.free[1][0]) <= float(cost.backward["other"][0]) * (1 + 1e-9)


def test_hiding_the_expert_exchange_shows_its_ends() -> None:
    """The first forward and the last backward of a step have no other micro-batch to hide behind."""

    def shown(gbs: int, on: bool) -> float:
        r = recipe(MIXTRAL, pp=2, vpp=2, gbs=gbs, overlap_moe_expert_parallel_comm=on)
        return project(r).time_breakdown_s["ep_comm"] / r.num_microbatches

    assert shown(32, True) == pytest.approx(shown(32, False))
    assert shown(64, True) < shown(32, True)
    assert shown(1024, True) < shown(64, True)


def test_chunks_of_one_layer_are_not_free() -> None:
    few, many = (project(recipe(LLAMA, vpp=v)).time_breakdown_s["pp_comm"] for v in (2, 20))
    assert many > 5 * few


def test_sharded_gradients_leave_every_micro_batch() -> None:
    once, always = (
        project(recipe(LLAMA, pp=1, tp=8, gbs=512, dp_sharding=word)).time_breakdown_s["dp_comm_exposed"]
        for word in ("zero1", "zero2")
    )
    assert always > 5 * once


def test_fsdp_gathers_the_embedding_and_the_head_too() -> None:
    r = recipe(LLAMA, pp=1, tp=8, dp_sharding="fsdp")
    wide = r.with_(model=r.model.with_(vocab_size=4 * r.model.vocab_size))
    nic = r.cluster.nic.with_(bandwidth_bytes_per_s=1e9)
    shown = [
        project(x.with_(cluster=r.cluster.with_(nic=nic))).time_breakdown_s["dp_comm_exposed"]
        for x in (r, wide)
    ]
    assert shown[1] > shown[0] * 1.05


@settings(max_examples=40, deadline=None)
@given(r=recipes())
def test_optimizer_state_is_held_once_per_shard_group(r: Recipe) -> None:
    """Over all ranks, ZeRO-1 holds 12 bytes of every parameter that a tensor-parallel rank has, once."""
    zero1 = r.with_(dp_sharding="zero1")
    table = Table.of([zero1])
    held = stage_parameters(lower(table, all_stages(table)))
    whole = 12 * (held.dense.sum() * r.tp + held.expert.sum() * r.ep * r.etp)
    ranks_of_a_stage = r.world_size / r.pp
    summed = sum(s.items["optimizer"] for s in report(zero1).stages) * ranks_of_a_stage
    assert float(whole) == pytest.approx(summed, rel=1e-6)


def test_mla_gathers_latents_not_hidden_states() -> None:
    r = recipe(DEEPSEEK, tp=2)
    low = lower(Table.of([r]))
    gather = next(
        op
        for op in layer_operators(low, LayerKind(windowed=False, moe=True))
        if isinstance(op, Collective) and op.name == "attention gather"
    )
    latents = 1536 + 512 + 64
    np.testing.assert_allclose(gather.bytes, 2.0 * r.seq_len * latents)


def test_a_tied_embedding_is_added_up_across_the_pipeline() -> None:
    r = recipe({**LLAMA, "model": "llama-3.2-1b"}, pp=4, tp=1, cp=1)
    assert r.model.share_embeddings_and_output_weights
    untied = r.with_(model=r.model.with_(share_embeddings_and_output_weights=False))
    shown = [project(x).time_breakdown_s["dp_comm_exposed"] for x in (r, untied)]
    assert shown[0] > shown[1]
