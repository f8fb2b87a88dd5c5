"""Advice: levers that really save, legal, and the fewest GPUs that hold the model."""

from __future__ import annotations

from typing import Any

import pytest
from recipes import LLAMA, MIXTRAL, recipe

from shardwise.engine.legality import check
from shardwise.engine.memory import report
from shardwise.engine.memory.advice import advise, fewest_gpus

_TOO_LARGE = {"model": "mixtral-8x22b", "cluster": "h100:4x8", "ep": 8, "gbs": 256, "seq_len": 4096}


@pytest.mark.parametrize("base", [_TOO_LARGE, MIXTRAL, LLAMA])
def test_every_lever_is_legal_and_saves_what_it_says(base: dict[str, Any]) -> None:
    r = recipe(base)
    now, told = report(r), advise(r)
    assert told.levers
    assert [lever.saved_bytes for lever in told.levers] == sorted(
        (lever.saved_bytes for lever in told.levers), reverse=True
    )
    for lever in told.levers:
        changed = r.with_(**lever.changes)
        assert check(changed) == ()
        assert report(changed).peak_bytes == lever.peak_bytes == now.peak_bytes - lever.saved_bytes
        assert "vpp" not in lever.changes


def test_the_fewest_gpus_hold_it_and_half_of_them_do_not() -> None:
    r = recipe(_TOO_LARGE)
    found = fewest_gpus(r)
    assert found is not None
    assert found.gpus == 64
    assert found.peak_bytes <= 0.85 * report(r).capacity_bytes
    nodes = found.gpus // 8
    half = r.with_(cluster=r.cluster.with_(num_nodes=nodes // 2))
    again = fewest_gpus(half)
    assert again is not None and again.gpus == found.gpus


def test_what_fits_is_told_no_shortage() -> None:
    r = recipe(_TOO_LARGE, cluster="mi355x:8x8", dp_sharding="fsdp")
    assert report(r).verdict == "fits"
    told = advise(r)
    assert told.over_bytes == 0
    assert told.fewest_gpus is None
