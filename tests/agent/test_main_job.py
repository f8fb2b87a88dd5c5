"""The main job, whole: "tune Mixtral 8x22B on 32 MI355X" with the embedded default."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.agent.replay import replay_run
from shardwise.agent.request import TuneRequest
from shardwise.agent.result import TuneResult
from shardwise.agent.session import tune
from shardwise.engine import legality
from shardwise.engine.frameworks import export, import_config
from shardwise.engine.memory import report
from shardwise.engine.projection import project
from shardwise.engine.recipe import Recipe
from shardwise.engine.recipe_io import load_recipe
from shardwise.engine.sweep import sweep

Run = tuple[TuneRequest, TuneResult, Path]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The search, run once."""
    request = TuneRequest.of("tune Mixtral 8x22B on 32 MI355X")
    folder = tmp_path_factory.mktemp("main") / "run"
    return request, tune(request, out=folder), folder


def winner(result: TuneResult) -> Recipe:
    assert result.best is not None
    return load_recipe(result.best["recipe"])


def rate(recipe: Recipe) -> float:
    tokens = project(recipe).tokens_per_s_per_gpu
    assert tokens is not None
    return tokens


def test_the_baseline_is_the_published_recipe(run: Run) -> None:
    _, result, _ = run
    assert result.baseline is not None
    baseline = load_recipe(result.baseline["recipe"])
    published = (1, 4, 1, 8, 2, 128, 8192, "bf16", "none")
    assert published == tuple(
        getattr(baseline, name)
        for name in ("tp", "pp", "vpp", "ep", "mbs", "gbs", "seq_len", "precision", "recompute")
    )


def test_the_winner_is_legal_fits_every_stage_and_beats_the_published_recipe(run: Run) -> None:
    request, result, _ = run
    best = winner(result)
    assert not legality.check(best)
    memory = report(best)
    assert max(stage.total for stage in memory.stages) <= (1 - request.margin) * memory.capacity_bytes
    assert result.baseline is not None
    assert rate(best) > rate(load_recipe(result.baseline["recipe"]))
    assert result.oracle_calls <= 60


def test_the_winner_is_within_two_percent_of_the_exhaustive_sweep(run: Run) -> None:
    request, result, _ = run
    assert result.baseline is not None
    everything = sweep(load_recipe(result.baseline["recipe"]), margin=request.margin, top=1)
    assert everything.fits > 10_000
    assert rate(winner(result)) >= 0.98 * everything.best[0].tokens_per_s_per_gpu


@pytest.mark.parametrize("framework", ["primus", "megatron-lm"])
def test_the_winner_exported_and_read_back_projects_the_same(run: Run, framework: str) -> None:
    best = winner(run[1])
    back = load_recipe(import_config(export(best, framework).text, from_=framework).recipe)
    assert project(back) == project(best)


def test_the_trace_replays(run: Run) -> None:
    outcome = replay_run(run[2] / "trace.jsonl")
    assert outcome.equal, outcome.first_difference
