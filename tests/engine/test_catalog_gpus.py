"""The GPU catalog: plausible dense figures with their source, the measured cases' spellings, user's own."""

from pathlib import Path

import pytest
import yaml

from shardwise.engine import catalog
from shardwise.engine.cluster import GPU
from shardwise.engine.errors import ConfigError

GPUS = sorted(catalog.gpus())
CONTRACT = ("a100-80gb", "h100", "h200", "b200", "gb200", "mi300x", "mi355x")


@pytest.mark.parametrize("name", CONTRACT)
def test_contract_names_are_known(name: str) -> None:
    assert catalog.gpu(name).name == name


@pytest.mark.parametrize("name", GPUS)
def test_figures_are_plausible(name: str) -> None:
    gpu = catalog.gpu(name)
    peak = gpu.peak_flops
    assert 30 * 2**30 < gpu.memory_bytes < 300 * 2**30
    assert 0.8e12 < gpu.hbm_bandwidth_bytes_per_s <= 8.2e12
    assert 100e12 < peak["fp16"] < 2.6e15
    assert "bf16" not in peak or peak["bf16"] == peak["fp16"]
    if "fp8" in peak:
        # A figure with sparsity would make this four.
        assert peak["fp8"] / peak["bf16"] == pytest.approx(2.0, rel=0.02)
    if "mxfp8" in peak:
        assert peak["mxfp8"] == peak["fp8"]
    if "fp4" in peak:
        assert 1.9 < peak["fp4"] / peak["fp8"] < 3.1
    assert gpu.vector_flops < 0.35 * peak["fp16"]
    assert 70 < gpu.compute_units < 310
    assert 15e9 < gpu.fabric.bandwidth_bytes_per_s <= 900e9
    assert 0.1e-6 < gpu.fabric.latency_s < gpu.nic.latency_s < 10e-6
    assert 10e9 < gpu.nic.bandwidth_bytes_per_s <= 100e9
    assert gpu.tdp_watts is not None
    assert 200 < gpu.tdp_watts <= 1400


@pytest.mark.parametrize("name", GPUS)
def test_every_figure_has_a_source(name: str) -> None:
    gpu = catalog.gpu(name)
    said = " ".join(gpu.sources)
    for figure in (
        "peak_flops",
        "vector_flops",
        "hbm_bandwidth",
        "memory_bytes",
        "compute_units",
        "fabric",
        "nic",
        "tdp",
    ):
        assert figure in said
    assert all(len(text) > 5 for text in gpu.sources.values())


@pytest.mark.parametrize(
    ("name", "gib", "bf16", "fabric", "nic"),
    [
        ("a100-80gb", 79.15, 312e12, 300e9, 25e9),
        ("h100", 79.11, 989.4e12, 450e9, 50e9),
        ("h200", 139.81, 989.4e12, 450e9, 50e9),
        ("h800", 79.11, 989.4e12, 200e9, 50e9),
        ("b200", 178.35, 2250e12, 900e9, 50e9),
        ("gb200", 184.31, 2500e12, 900e9, 50e9),
        ("mi300x", 191.98, 1307.4e12, 448e9, 50e9),
        ("mi355x", 287.98, 2516.6e12, 537.6e9, 50e9),
        ("mi250x", 63.98, 191.5e12, 200e9, 12.5e9),
    ],
)
def test_known_figures(name: str, gib: float, bf16: float, fabric: float, nic: float) -> None:
    gpu = catalog.gpu(name)
    assert gpu.memory_bytes / 2**30 == pytest.approx(gib, abs=0.01)
    assert gpu.peak_flops["bf16"] == bf16
    assert gpu.fabric.bandwidth_bytes_per_s == fabric
    assert gpu.nic.bandwidth_bytes_per_s == nic


def test_rack_fabric_spans_nodes() -> None:
    for name in GPUS:
        fabric = catalog.gpu(name).fabric
        assert fabric.spans_nodes == name.startswith("gb")
        assert fabric.domain_size == (72 if fabric.spans_nodes else 4 if name == "gh200" else 8)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("A100-40GB", "a100-40gb"),
        ("A100-SXM-40GB", "a100-40gb"),
        ("A100-PCIe-80GB", "a100-pcie-80gb"),
        ("A100-SXM-80GB", "a100-80gb"),
        ("A800-80GB", "a800-80gb"),
        ("A800-SXM-80GB", "a800-80gb"),
        ("B200", "b200"),
        ("B200-SXM-180GB", "b200"),
        ("B300", "b300"),
        ("B300-SXM-288GB", "b300"),
        ("GB200", "gb200"),
        ("GB300", "gb300"),
        ("H100", "h100"),
        ("H100-SXM-80GB", "h100"),
        ("H100-SXM-94GB-HBM2e", "h100-96gb-hbm2e"),
        ("H100-SXM-96GB", "h100-96gb"),
        ("H100-SXM-96GB-HBM2e-500W", "h100-96gb-hbm2e"),
        ("H20-96GB", "h20"),
        ("H200-141GB", "h200"),
        ("H200-SXM-141GB", "h200"),
        ("H800-SXM-80GB", "h800"),
        ("MI250X", "mi250x"),
        ("MI250X-GCD", "mi250x"),
        ("MI300X", "mi300x"),
        ("MI325X", "mi325x"),
        ("MI350X", "mi350x"),
        ("MI355X", "mi355x"),
        ("V100-32GB", "v100-32gb"),
        ("V100S-32GB-PCIe", "v100s-pcie-32gb"),
        # As the devices name themselves.
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("AMD Instinct MI300X", "mi300x"),
        ("H100-80G", "h100"),
        ("a100 80gb sxm", "a100-80gb"),
        ("AMD Instinct MI250X / MI250", "mi250x"),
    ],
)
def test_spellings_of_measured_cases_and_devices(spelling: str, name: str) -> None:
    assert catalog.gpu(spelling).name == name


@pytest.mark.parametrize(
    "name", ["nonsense", "h1000", "h100x", "mi355y", "unknown-80GB", "Ascend-910B4-64GB", " "]
)
def test_an_unknown_gpu_is_never_taken_for_another(name: str) -> None:
    with pytest.raises(ConfigError):
        catalog.gpu(name)


def test_user_gpu_from_base_merges_its_networks() -> None:
    gpu = catalog.gpu({"base": "h100", "name": "h100-slow-nic", "nic": {"bandwidth_bytes_per_s": 12.5e9}})
    usual = catalog.gpu("h100")
    assert gpu.nic.bandwidth_bytes_per_s == 12.5e9
    assert gpu.nic.latency_s == usual.nic.latency_s
    assert gpu.with_(name="h100", nic=usual.nic) == usual


def test_user_gpu_from_a_file(tmp_path: Path) -> None:
    data = catalog.gpu("mi355x").model_dump(mode="json")
    data |= {"memory_bytes": 400_000_000_000}
    del data["name"]
    path = tmp_path / "mi999x.yaml"
    path.write_text(yaml.safe_dump(data))
    gpu = catalog.gpu(path)
    assert (gpu.name, gpu.memory_bytes) == ("mi999x", 400_000_000_000)
    assert catalog.gpu(str(path)) == gpu
    spec = catalog.gpu_spec(gpu)
    assert isinstance(spec, dict)
    assert catalog.gpu(spec) == gpu


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_bytes": 0}, "memory_bytes = 0"),
        ({"memory_bytes": 10**20}, "memory_bytes is out of range"),
        ({"memory": 5}, "unknown field 'memory' (nearest: memory_bytes"),
        ({"peak_flops": {"int8": 1e15}}, "int8"),
        ({"hbm_bandwidth_bytes_per_s": float("nan")}, "hbm_bandwidth_bytes_per_s"),
        ({"fabric": {"domain_size": 10**9}}, "domain_size is out of range"),
        ({"base": "gpu.yaml"}, "not a file"),
    ],
)
def test_bad_user_gpus_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.gpu({"base": "h100", **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gpus_are_equal_by_content() -> None:
    assert isinstance(catalog.gpu("h100"), GPU)
    assert catalog.gpu(catalog.gpu("h100")) is catalog.gpu("h100")
