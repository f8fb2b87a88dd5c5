"""Activations on the host: memory falls by the layers that are away, time grows where the link is slow."""

from __future__ import annotations

import pytest
from recipes import recipe

from shardwise.engine.legality import check
from shardwise.engine.memory import report
from shardwise.engine.projection import project

_BASE = {"model": "llama-3-8b", "cluster": "h100:1x8", "tp": 2, "gbs": 64, "seq_len": 8192}


def test_memory_falls_linearly_one_layer_being_on_its_way() -> None:
    none, one, half, most = (
        report(recipe(_BASE, cpu_offloading_num_layers=n)).fullest.items["activations"]
        for n in (0, 1, 16, 31)
    )
    assert none == one
    per_layer = (one - half) / 15
    assert one - most == pytest.approx(30 * per_layer, rel=1e-6)


def test_a_slow_link_shows_and_a_fast_one_hides() -> None:
    def seconds(cluster: str, layers: int) -> float:
        told = project(recipe(_BASE, cluster=cluster, cpu_offloading_num_layers=layers))
        assert told.step_time_s is not None
        return told.step_time_s

    assert seconds("gb200:2x4", 16) == pytest.approx(seconds("gb200:2x4", 0), rel=1e-9)
    slower = [seconds("a100-80gb:1x8", layers) for layers in (0, 8, 16, 31)]
    assert slower == sorted(slower)
    assert slower[-1] > slower[0]


def test_it_excludes_recomputation_and_pipelines() -> None:
    assert not check(recipe(_BASE, cpu_offloading_num_layers=31))
    for changes in ({"recompute": "full"}, {"pp": 2}, {"framework": "torchtitan"}, {}):
        layers = 4 if changes else 32
        broken = check(recipe({**_BASE, **changes}, cpu_offloading_num_layers=layers))
        assert "activation-offload" in {violation.rule for violation in broken}


def test_it_goes_out_to_megatron_and_comes_back() -> None:
    from shardwise.engine.frameworks import export, import_config

    text = export(recipe(_BASE, cpu_offloading_num_layers=8), "megatron-lm").text
    assert "--cpu-offloading-num-layers 8" in text
    assert import_config(text).recipe["cpu_offloading_num_layers"] == 8
