"""Clusters by every accepted spelling; everything else one clear line; specs read back exactly."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.engine import catalog
from shardwise.engine.cluster import Cluster
from shardwise.engine.errors import ConfigError


@pytest.mark.parametrize(
    ("spec", "short"),
    [
        ("mi355x:4x8", "mi355x:4x8"),
        ("MI355X:4X8", "mi355x:4x8"),
        (" h100 : 2 x 4 ", "h100:2x4"),
        ("h100:2×8", "h100:2x8"),
        ("32x mi355x", "mi355x:4x8"),
        ("32xmi355x", "mi355x:4x8"),
        ("32 MI355X", "mi355x:4x8"),
        ("32 MI355X GPUs", "mi355x:4x8"),
        ("64 H100s", "h100:8x8"),
        ("4 h100", "h100:1x4"),
        ("36 gb200", "gb200:9x4"),
        ("16 GH200", "gh200:4x4"),
        ("4x8 H100", "h100:4x8"),
        ("gb200:18x4", "gb200:18x4"),
        ("dgx-h100:4", "h100:4x8"),
        ("DGX-A100:1", "a100-80gb:1x8"),
        ("dgx-h100:4x8", "h100:4x8"),
        ("gb200-nvl72:18", "gb200:18x4"),
        ("frontier:384", "mi250x:384x8"),
        ("NVIDIA H100 80GB HBM3:2x8", "h100:2x8"),
        ("A100-SXM-80GB:8x8", "a100-80gb:8x8"),
    ],
)
def test_spellings(spec: str, short: str) -> None:
    cluster = catalog.cluster(spec)
    assert catalog.cluster_spec(cluster) == short
    assert catalog.cluster(short) == cluster


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("h100:0x8", "num_nodes = 0 is out of range"),
        ("h100:-1x8", "num_nodes = -1"),
        ("h100:2x0", "gpus_per_node = 0"),
        ("h100:2", "2 nodes: h100:2x8, 2 GPUs: h100:1x2"),
        ("h100:2x9", "gpus_per_node = 9 is out of range (1 to 8, nearest: 8)"),
        ("h100:4x8x2", "not understood"),
        ("h100:", "not understood"),
        ("h100:1e9x8", "not understood"),
        ("h100:99999999x8", "num_nodes = 99999999"),
        ("h100:" + "9" * 400 + "x8", "write GPU:NODESxGPUS_PER_NODE"),
        ("h100", "nearest: h100:1x8"),
        ("dgx-h100", "write dgx-h100:NODES"),
        ("dgx-h100:2x4", "has 8 GPUs per node"),
        ("dgx-h100:0", "num_nodes = 0"),
        ("frontier:9409", "exceeds the 9408 nodes of frontier"),
        ("33 h100", "nearest: h100:4x8 (32 GPUs)"),
        ("6 gb200", "nearest: gb200:2x4 (8 GPUs)"),
        ("0 h100", "out of range"),
        ("mi35x:4x8", "unknown GPU 'mi35x' (nearest: "),
        (":4x8", "name is missing"),
        ("junk", "write GPU:NODESxGPUS_PER_NODE"),
        ("", "write GPU:NODESxGPUS_PER_NODE"),
        ("h100\n:4x8", "write GPU:NODESxGPUS_PER_NODE"),
        ("nope.yaml", "cannot be read"),
    ],
)
def test_what_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.cluster(spec)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@given(
    st.text(max_size=40)
    | st.from_regex(r"[a-z0-9]{0,8}[ :x]{0,3}[-0-9]{0,6}[x ]{0,2}[0-9]{0,6}", fullmatch=True)
)
def test_any_text_is_a_cluster_or_one_clear_line(text: str) -> None:
    try:
        cluster = catalog.cluster(text)
    except ConfigError as err:
        assert len(str(err).splitlines()) == 1  # noqa: PT017 - either outcome is right
    else:
        assert cluster.world_size >= 1


@pytest.mark.parametrize("spec", [5, None, [], True, {}])
def test_wrong_types_are_refused(spec: object) -> None:
    with pytest.raises(ConfigError):
        catalog.cluster(spec)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(catalog.clusters()))
def test_named_designs_match_their_gpu(name: str) -> None:
    design = catalog.clusters()[name]
    cluster = catalog.cluster(f"{name}:2")
    assert (cluster.num_nodes, cluster.gpus_per_node) == (2, design.gpus_per_node)
    assert cluster.gpu == catalog.gpu(design.gpu)
    assert catalog.node_size(cluster.gpu) == design.gpus_per_node
    assert len(design.source) > 10
    if design.nics_per_node == 8:
        assert cluster.nic.bandwidth_bytes_per_s >= 25e9


def test_rack_is_one_scale_up_domain() -> None:
    assert catalog.cluster("gb200:18x4").scale_up_size == 72
    assert catalog.cluster("gb200:36x4").scale_up_size == 72
    assert catalog.cluster("h100:4x8").scale_up_size == 8


def test_file_with_a_gpu_name_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "gpu: H100-SXM-80GB\nnum_nodes: 16\ngpus_per_node: 8\n"
        "nic: {bandwidth_bytes_per_s: 25e9}\noversubscription: 2.0\npod_size: 64\n"
    )
    cluster = catalog.cluster(str(path))
    usual = catalog.gpu("h100")
    assert cluster.gpu == usual
    assert cluster.nic == usual.nic.with_(bandwidth_bytes_per_s=25e9)
    assert cluster.fabric == usual.fabric
    assert (cluster.oversubscription, cluster.pod_size, cluster.world_size) == (2.0, 64, 128)
    assert catalog.cluster(path) == cluster


def test_file_with_an_inline_gpu(tmp_path: Path) -> None:
    gpu = catalog.gpu("mi300x").model_dump(mode="json") | {"name": "mi300x-96"}
    gpu["memory_bytes"] //= 2
    path = tmp_path / "cluster.yml"
    path.write_text(yaml.safe_dump({"gpu": gpu, "num_nodes": 2}))
    cluster = catalog.cluster(path)
    assert (cluster.gpu.name, cluster.gpus_per_node) == ("mi300x-96", 8)
    assert cluster.fabric == catalog.gpu("mi300x").fabric


def test_gpu_file_in_a_short_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("base: b200\nname: mine\nmemory_bytes: 100000000000\n")
    monkeypatch.chdir(tmp_path)
    assert catalog.cluster("mine.yaml:3x8").gpu.memory_bytes == 100_000_000_000


def test_mapping_from_a_base_spelling() -> None:
    cluster = catalog.cluster({"base": "h100:4x8", "num_nodes": 6, "nic": {"latency_s": 9e-6}})
    assert cluster.num_nodes == 6
    assert cluster.nic.latency_s == 9e-6
    other = catalog.cluster({"base": "h100:4x8", "gpu": "mi355x"})
    assert other == catalog.cluster("mi355x:4x8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 4}, "unknown field 'nodes' (nearest: num_nodes)"),
        ({"num_nodes": 0}, "num_nodes = 0"),
        ({"num_nodes": "many"}, "num_nodes = 'many'"),
        ({"num_nodes": 10**8}, "at most 1000000 nodes"),
        ({"gpus_per_node": 16}, "exceeds what one h100 fabric connects (8)"),
        ({"oversubscription": 0.5}, "oversubscription = 0.5"),
        ({"nic": {"bandwidth": 1}}, "nic.bandwidth"),
        ({"fabric": "fast"}, "fabric"),
        ({"base": "file.yaml"}, "not a file"),
    ],
)
def test_bad_mappings_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.cluster({"gpu": "h100", "num_nodes": 4, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    gpu = catalog.gpu(draw(st.sampled_from(sorted(catalog.gpus()))))
    if draw(st.booleans()):
        gpu = gpu.with_(memory_bytes=draw(st.integers(10**9, 10**12)))
    fields: dict[str, object] = {
        "gpu": gpu,
        "num_nodes": draw(st.integers(1, 10_000)),
        "gpus_per_node": draw(st.integers(1, gpu.fabric.domain_size)),
        "oversubscription": draw(st.sampled_from([1.0, 1.5, 4.0])),
        "pod_size": draw(st.sampled_from([None, 64])),
    }
    if draw(st.booleans()):
        fields["nic"] = gpu.nic.with_(bandwidth_bytes_per_s=draw(st.floats(1e9, 1e11)))
    if draw(st.booleans()):
        fields["fabric"] = gpu.fabric.with_(
            domain_size=draw(st.integers(72, 576)), spans_nodes=draw(st.booleans())
        )
    return Cluster.build(fields)


@settings(max_examples=60)
@given(clusters())
def test_specs_read_back_exactly(cluster: Cluster) -> None:
    spec = catalog.cluster_spec(cluster)
    assert catalog.cluster(spec) == cluster
    usual = cluster.gpu == catalog.gpus()[cluster.gpu.name]
    own = (cluster.fabric, cluster.nic) == (cluster.gpu.fabric, cluster.gpu.nic)
    plain = usual and own and cluster.oversubscription == 1.0 and cluster.pod_size is None
    assert isinstance(spec, str) == plain
