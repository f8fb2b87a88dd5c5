"""The sweep scores what it says it scores, and agrees with the single projection."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from shardwise.engine.errors import ConfigError
from shardwise.engine.legality import check
from shardwise.engine.projection import project
from shardwise.engine.recipe_io import load_recipe
from shardwise.engine.results import DEFAULT_MARGIN
from shardwise.engine.sweep import sweep
from shardwise.engine.units import GIB

BASE = load_recipe({"model": "llama-3-8b", "cluster": "h100:1x8", "gbs": 64, "seq_len": 4096})
MIXTRAL = load_recipe({"model": "mixtral-8x7b", "cluster": "h100:2x8", "gbs": 128, "seq_len": 4096})
AXES = ("tp", "pp", "mbs", "recompute")


@pytest.mark.parametrize("base", [BASE, MIXTRAL], ids=["dense", "moe"])
def test_the_best_is_legal_fits_and_has_the_figures_of_its_projection(base: object) -> None:
    found = sweep(base, AXES, top=5)  # type: ignore[arg-type]
    assert found.best
    assert found.space >= found.legal >= found.fits >= len(found.best)
    for row in found.best:
        assert check(row.recipe) == ()
        projection = project(row.recipe)
        assert row.tokens_per_s_per_gpu == pytest.approx(projection.tokens_per_s_per_gpu, rel=1e-9)
        assert projection.memory is not None
        assert row.peak_bytes == pytest.approx(projection.memory.peak_bytes, rel=1e-6)
        assert row.peak_bytes <= (1 - DEFAULT_MARGIN) * projection.memory.capacity_bytes
    speeds = [row.tokens_per_s_per_gpu for row in found.best]
    assert speeds == sorted(speeds, reverse=True)


def test_it_finds_what_brute_force_finds() -> None:
    found = sweep(BASE, ("tp", "pp", "mbs"), margin=0.0, top=3)
    speeds = []
    for tp, pp, mbs in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8, 16)):
        recipe = BASE.with_(tp=tp, pp=pp, mbs=mbs, sequence_parallel=tp > 1)
        projection = project(recipe)
        memory = projection.memory
        if projection.legal and memory is not None and memory.peak_bytes <= memory.capacity_bytes:
            speeds.append(projection.tokens_per_s_per_gpu)
    assert [row.tokens_per_s_per_gpu for row in found.best] == pytest.approx(sorted(speeds, reverse=True)[:3])
    assert found.fits == len(speeds)


def test_fixed_fields_stay() -> None:
    found = sweep(BASE.with_(tp=2, sequence_parallel=True), AXES, fixed=("tp",), top=20)
    assert {row.recipe.tp for row in found.best} == {2}


def test_a_larger_margin_keeps_fewer() -> None:
    fits = [sweep(BASE, AXES, margin=margin, top=1).fits for margin in (0.0, 0.2, 0.5)]
    assert fits == sorted(fits, reverse=True)
    assert fits[0] > fits[-1]


def test_nothing_fits_is_an_answer() -> None:
    base = load_recipe({"model": "llama-3.1-405b", "cluster": "h100:1x8", "gbs": 8, "seq_len": 4096})
    found = sweep(base, ("tp", "mbs"))
    assert (found.fits, found.best, found.projections_per_s) == (0, (), 0.0)


def test_the_clock_is_the_only_thing_that_varies() -> None:
    ticks = itertools.count()
    first = sweep(BASE, AXES, top=3, clock=lambda: float(next(ticks)))
    again = sweep(BASE, AXES, top=3)
    assert first.seconds > 0
    assert replace(again, seconds=first.seconds, scoring_seconds=first.scoring_seconds) == first
    document = first.as_json()
    assert set(document) == {"space", "legal", "fits", "seconds", "projections_per_s", "best"}
    assert document["best"][0]["peak_mem_gib"] == first.best[0].peak_bytes / GIB
    assert load_recipe(document["best"][0]["recipe"]) == first.best[0].recipe


def test_progress_ends_at_what_was_legal() -> None:
    seen: list[int] = []
    found = sweep(BASE, AXES, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == found.legal


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"margin": 1.0}, "margin"),
        ({"margin": -0.1}, "margin"),
        ({"top": 0}, "top"),
        ({"axes": ("tp", "nonsense")}, "nonsense"),
        ({"precisions": ("int8",)}, "int8"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sweep(BASE, **arguments)  # type: ignore[arg-type]
