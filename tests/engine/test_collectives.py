"""What any model of collectives must obey, and where groups lie."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.engine import catalog
from shardwise.engine.cluster import Cluster
from shardwise.engine.collectives import Group, Network, dispatch_spread, place
from shardwise.engine.collectives.routing import distinct_parts
from shardwise.engine.efficiency import priors
from shardwise.engine.errors import ConfigError
from shardwise.engine.projection import project
from shardwise.engine.recipe_io import load_recipe

CLUSTERS = (
    *("h100:8x8", "b200:8x8", "gb200:36x4", "a100-80gb:8x8", "v100-32gb:4x8", "l40s:4x8"),
    *("mi250x:8x8", "mi300x:8x8", "mi355x:8x8"),
)
OPS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


def network(cluster: Cluster | str, launch_s: float = 0.0) -> Network:
    found = catalog.cluster(cluster)
    return Network(found, replace(priors().efficiency(found.gpu), collective_launch_s=launch_s))


def group(net: Network, size: int, stride: int = 1) -> Group:
    return place(net.cluster, np.array([size]), np.array([stride]))


def seconds(net: Network, op: str, size: float, members: int, stride: int = 1) -> float:
    return float(getattr(net, op)(np.array([size]), group(net, members, stride))[0])


cases = {
    "spelling": st.sampled_from(CLUSTERS),
    "op": st.sampled_from(OPS),
    "size": st.floats(1e2, 1e10),
    "members": st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64]),
    "stride": st.sampled_from([1, 2, 4, 8]),
}


@settings(max_examples=200, deadline=None)
@given(**cases)
def test_more_bytes_never_take_less(spelling: str, op: str, size: float, members: int, stride: int) -> None:
    net = network(spelling)
    assert seconds(net, op, 1.5 * size, members, stride) >= seconds(net, op, size, members, stride)


@settings(max_examples=200, deadline=None)
@given(tier=st.sampled_from(["fabric", "nic"]), **cases)
def test_more_bandwidth_never_slows(
    tier: str, spelling: str, op: str, size: float, members: int, stride: int
) -> None:
    net = network(spelling)
    link: Any = getattr(net.cluster, tier)
    fast = network(
        net.cluster.with_(**{tier: link.with_(bandwidth_bytes_per_s=1.7 * link.bandwidth_bytes_per_s)})
    )
    assert seconds(fast, op, size, members, stride) <= seconds(net, op, size, members, stride) * (1 + 1e-12)


@settings(max_examples=200, deadline=None)
@given(**cases)
def test_a_larger_group_with_as_much_from_each_never_takes_less(
    spelling: str, op: str, size: float, members: int, stride: int
) -> None:
    """Per rank: what each contributes to a gather or keeps of a scatter, and for an all-reduce over a switch
    without sums of its own (a mesh has more links the more take part, and NVLS starts at six)."""
    net = network(spelling)
    whole = op in ("all_gather", "reduce_scatter")
    fabric = net.cluster.fabric
    if not whole:
        # A mesh's all-to-all sends less over each link the more peers there are.
        if fabric.kind == "mesh" or fabric.in_switch_reduction:
            return
        if 2 * members * stride > net.cluster.scale_up_size:
            return
    few, many = (seconds(net, op, size * (m if whole else 1), m, stride) for m in (members, 2 * members))
    assert many >= few * (1 - 1e-12)


@settings(max_examples=100, deadline=None)
@given(spelling=st.sampled_from(CLUSTERS), members=st.sampled_from([2, 4, 8, 32]))
def test_ring_all_reduce_is_a_scatter_and_a_gather(spelling: str, members: int) -> None:
    net = network(spelling)
    fabric = net.cluster.fabric.with_(in_switch_reduction=False)
    plain = network(net.cluster.with_(fabric=fabric))
    size = 1e12
    both = seconds(plain, "all_gather", size, members) + seconds(plain, "reduce_scatter", size, members)
    assert seconds(plain, "all_reduce", size, members) == pytest.approx(both, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(spelling=st.sampled_from(CLUSTERS), size=st.floats(1e3, 1e10), members=st.sampled_from([2, 4, 8]))
def test_tiers_of_which_one_is_trivial_are_flat(spelling: str, size: float, members: int) -> None:
    net = network(spelling)
    many, alone = group(net, members), group(net, 1)
    sharded = float(net.sharded_reduce(np.array([size]), many, alone)[0])
    assert sharded == pytest.approx(seconds(net, "reduce_scatter", size, members))
    replicated = float(net.sharded_reduce(np.array([size]), alone, many)[0])
    assert replicated == pytest.approx(seconds(net, "all_reduce", size, members))


def test_tiers_take_no_longer_than_a_ring_over_both() -> None:
    """Scattered in the node, all-reduced between nodes, gathered in the node: as few bytes over each NIC."""
    net, size = network("b200:8x8"), np.array([1e11])
    inner, outer = group(net, 8), group(net, 8, stride=8)
    tiers = net.sharded_reduce(size, inner, outer) + net.all_gather(size, inner)
    flat = net.all_reduce(size, group(net, 64))
    assert 0.9 * flat[0] < tiers[0] < 1.6 * flat[0]


@pytest.mark.parametrize("spelling", CLUSTERS)
@pytest.mark.parametrize("op", OPS)
def test_one_rank_has_nobody_to_talk_to(spelling: str, op: str) -> None:
    assert seconds(network(spelling, launch_s=1e-4), op, 1e9, 1) == 0.0


def test_a_mesh_gives_a_group_its_own_links() -> None:
    net = network("mi300x:1x8")
    full = float(net.ring_bandwidth(group(net, 8))[0])
    for members in (2, 4):
        assert net.ring_bandwidth(group(net, members))[0] == pytest.approx(full * (members - 1) / 7)


def test_the_dies_of_one_module_share_more_links() -> None:
    net = network("mi250x:2x8")
    assert net.ring_bandwidth(group(net, 2))[0] == pytest.approx(0.7 * 200e9)
    assert net.ring_bandwidth(group(net, 2, stride=2))[0] == pytest.approx(0.7 * 200e9 / 7)
    assert net.ring_bandwidth(group(net, 4))[0] < 0.7 * 200e9


def test_members_of_a_node_bring_their_own_rails() -> None:
    net = network("b200:16x8")
    eight, two, one = (net.ring_bandwidth(group(net, 16, stride))[0] for stride in (1, 4, 8))
    assert eight == pytest.approx(8 * one)
    assert two == pytest.approx(2 * one)


def test_a_rack_is_one_domain_and_a_job_takes_even_shares_of_racks() -> None:
    net = network("gb200:18x4")
    assert group(net, 72).domains[0] == 1
    assert network("gb200:64x4").cluster.scale_up_size == 64
    assert network("gb200:36x4").cluster.scale_up_size == 72
    # 25 trays: shares of 20 GPUs would leave most of a rack idle.
    assert network("gb200:25x4").cluster.scale_up_size == 72
    inside, across = (seconds(net, "all_to_all", 1e9, m) for m in (64, 64))
    assert inside == across
    assert seconds(network("b200:9x8"), "all_to_all", 1e9, 64) > 5 * inside


def test_an_oversubscribed_spine_is_felt_where_traffic_climbs_it() -> None:
    free = network("h100:32x8").cluster
    net = network(free.with_(oversubscription=4.0, pod_size=64))
    plain = network(free)
    # Eight nodes below a leaf: of a ring one node sends upwards at a time; of an all-to-all everybody does.
    assert seconds(net, "all_gather", 1e9, 256) == seconds(plain, "all_gather", 1e9, 256)
    assert seconds(net, "all_to_all", 1e9, 256) > 2.5 * seconds(plain, "all_to_all", 1e9, 256)
    # A group of one member a pod climbs with all it has.
    assert seconds(net, "all_gather", 1e9, 4, 64) == pytest.approx(
        4 * seconds(plain, "all_gather", 1e9, 4, 64), rel=0.01
    )
    assert seconds(net, "all_gather", 1e9, 8, 8) == seconds(plain, "all_gather", 1e9, 8, 8)


def test_small_messages_wait_for_hops_not_bytes() -> None:
    net = network("h100:16x8")
    assert seconds(net, "all_reduce", 1e3, 128) == pytest.approx(
        seconds(net, "all_reduce", 1e4, 128), rel=0.05
    )
    # A tree: 2, 4, 8, 16 nodes add the same each time.
    times = [seconds(net, "all_reduce", 1e3, 8 * nodes) for nodes in (2, 4, 8, 16)]
    np.testing.assert_allclose(np.diff(times), np.diff(times)[0], rtol=0.02)


@pytest.mark.parametrize(
    ("parts", "experts", "topk", "groups", "group_topk"),
    [(4, 8, 2, 1, 1), (2, 8, 3, 4, 2), (4, 8, 3, 4, 2), (8, 16, 3, 4, 2), (2, 12, 4, 4, 3), (1, 8, 2, 1, 1)],
)
def test_distinct_parts_by_enumeration(
    parts: int, experts: int, topk: int, groups: int, group_topk: int
) -> None:
    per_group, per_part = experts // groups, experts // parts
    counts = [
        len({expert // per_part for expert in chosen})
        for picked in combinations(range(groups), group_topk)
        for chosen in combinations([e for e in range(experts) if e // per_group in picked], topk)
    ]
    expected = distinct_parts(parts, experts, topk, groups, group_topk)
    assert expected == pytest.approx(float(np.mean(counts)))


def test_node_limited_routing_bounds_the_copies() -> None:
    model, net = catalog.model("deepseek-v3"), network("h800:8x8")
    free = model.with_(moe_router_num_groups=None, moe_router_group_topk=None)
    limited, unlimited = (dispatch_spread(m, group(net, 64)) for m in (model, free))
    topk = model.moe_router_topk
    assert limited.domains[0] * topk < 4.0 * 7 / 8 < unlimited.domains[0] * topk < 7.0
    # Each token reaches every rank once at most.
    assert limited.ranks[0] <= 1.0


def test_a_deduplicating_dispatch_beats_the_library_between_nodes() -> None:
    model, net = catalog.model("deepseek-v3"), network("h100:8x8")
    found, sent = group(net, 64), np.array([4e8])
    fused = net.dispatch(sent, found, model)[0]
    assert fused < 0.7 * net.all_to_all(sent, found)[0]


def test_counted_nics_are_shared_by_the_node() -> None:
    cluster = catalog.cluster({"base": "h100:4x8", "nics_per_node": 4, "nic_gbit_per_s": 400})
    assert cluster.nic.bandwidth_bytes_per_s == pytest.approx(25e9)
    assert catalog.cluster(catalog.cluster_spec(cluster)) == cluster


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nics_per_node": 4}, "nic_gbit_per_s = None"),
        ({"nics_per_node": 0, "nic_gbit_per_s": 400}, "nics_per_node = 0 must be above 0"),
        ({"nics_per_node": 8, "nic_gbit_per_s": "fast"}, "nic_gbit_per_s = 'fast'"),
        (
            {"nics_per_node": 8, "nic_gbit_per_s": 400, "nic": {"bandwidth_bytes_per_s": 1e9}},
            "leave one out",
        ),
        ({"nics_per_node": 8, "nic_gbit_per_s": 400, "gpus_per_node": "x"}, "gpus_per_node = 'x'"),
        ({"fabric": {"neighbour_bandwidth_bytes_per_s": {"2": -1}}}, "neighbour_bandwidth_bytes_per_s"),
    ],
)
def test_bad_networks_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.cluster({"gpu": "h100", "num_nodes": 4, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_router_groups_are_checked() -> None:
    model = catalog.model("deepseek-v3")
    for change, message in (
        ({"moe_router_group_topk": None}, "set together"),
        ({"moe_router_num_groups": 7}, "must divide num_experts=256"),
        ({"moe_router_group_topk": 9}, "exceeds moe_router_num_groups=8"),
        ({"moe_router_num_groups": 128, "moe_router_group_topk": 2}, "hold fewer than moe_router_topk=8"),
    ):
        with pytest.raises(ConfigError, match=message):
            model.with_(**change)


def test_hybrid_shards_keep_gathers_inside_a_slow_networks_nodes() -> None:
    """HSDP gathers in the node and all-reduces a shard over the replicas; FSDP gathers over everything."""

    def shown(**changes: Any) -> float:
        fields = {"model": "llama-3-8b", "cluster": "h100:4x8", "mbs": 1, "gbs": 32, "seq_len": 8192}
        base = load_recipe(fields | changes)
        slow = base.cluster.with_(nic=base.cluster.nic.with_(bandwidth_bytes_per_s=5e9))
        return project(base.with_(cluster=slow)).time_breakdown_s["dp_comm_exposed"]

    fsdp, hsdp = shown(dp_sharding="fsdp"), shown(dp_sharding="hsdp", dp_shard_size=8)
    assert hsdp < 0.95 * fsdp


def test_pipeline_transfers_climb_an_oversubscribed_spine() -> None:
    net = network(catalog.cluster("h100:32x8").with_(oversubscription=4.0, pod_size=64))
    size, yes = np.array([1e9]), np.array([True])
    below, above = (float(net.point_to_point(size, yes, leaves)[0]) for leaves in (False, True))
    assert above == pytest.approx(4 * below, rel=0.01)


def test_a_rings_latency_grows_with_its_ranks() -> None:
    """Which is why Megatron-Core's buckets grow with the data-parallel size."""
    net = network("h100:128x8")
    few, many = (
        net.reduce_scatter(np.array([4e6 * ranks]), group(net, ranks))[0]
        - 4e6 * ranks / net.ring_bandwidth(group(net, ranks))[0]
        for ranks in (64, 1024)
    )
    assert 8 < many / few < 20


def test_the_stage_boundary_between_two_nodes_sets_the_pace() -> None:
    """Eight stages a node, one GPU each: seven boundaries in eight lie inside, one does not."""
    fields = {"model": "llama-3-8b", "cluster": "h100:2x8", "pp": 16, "mbs": 1, "gbs": 32, "seq_len": 8192}
    base = load_recipe(fields)
    slow = base.cluster.with_(nic=base.cluster.nic.with_(bandwidth_bytes_per_s=5e9))
    fast, paced = (project(base.with_(cluster=c)).time_breakdown_s["pp_comm"] for c in (base.cluster, slow))
    assert paced > 3 * fast
