"""The heuristic proposer and what it reckons with."""

from __future__ import annotations

import numpy as np
import pytest
from agent_scripts import small_request

from shardwise.agent import heuristic, napkin
from shardwise.agent.baseline import choose_baseline
from shardwise.agent.features import Coding, differing
from shardwise.agent.oracle import Oracle
from shardwise.agent.request import TuneRequest
from shardwise.agent.searchspace import SearchSpace
from shardwise.agent.session import tune
from shardwise.agent.surrogate import Points, Surrogate
from shardwise.agent.trial import recipe_of
from shardwise.engine import legality
from shardwise.engine.projection import ENGINE_VERSION, project, project_table


@pytest.fixture(scope="module")
def space():
    request = small_request()
    return SearchSpace(request, choose_baseline(request))


def scored(space, rows):
    oracle = Oracle(small_request(), project, engine_version=ENGINE_VERSION)
    return [oracle.score(space.fitting.recipe(int(row))) for row in rows]


def optimum(table, objective="tokens_per_s_per_gpu"):
    parts = [table.take(np.arange(i, min(i + 4096, len(table)))) for i in range(0, len(table), 4096)]
    return max(float(getattr(project_table(part), objective).max()) for part in parts)


@pytest.mark.parametrize(
    ("words", "within_pct"),
    [
        ("tune Mixtral 8x22B on 32 MI355X", 2.0),
        ("tune llama-3-70b on 64 h100", 2.0),
        ("tune llama-3-8b on 8 mi300x", 2.0),
    ],
)
def test_close_to_the_exhaustive_optimum(tmp_path, words, within_pct):
    request = TuneRequest.of(words)
    result = tune(request, out=tmp_path / "run")
    best = optimum(SearchSpace(request, choose_baseline(request)).fitting)
    assert result.oracle_calls <= 60
    assert result.best["projection"]["tokens_per_s_per_gpu"] >= (1 - within_pct / 100) * best


def test_proposals_are_new_distinct_legal_fitting_and_repeatable(space):
    trials = scored(space, range(0, len(space.fitting), len(space.fitting) // 12))
    best = max(trials, key=lambda trial: trial.tokens_per_s_per_gpu)
    ask = lambda: heuristic.propose(  # noqa: E731
        space, trials, best, objective="tokens_per_s_per_gpu", count=5
    )
    found = ask()
    assert found == ask()
    assert len(found) == 5
    everything = [c["fields"] for c in found] + [t.fields for t in trials]
    assert all(everything.count(fields) == 1 for fields in everything)
    for candidate in found:
        assert not legality.check(recipe_of(small_request(), candidate["fields"]))
        assert space.fits(candidate["fields"])
        assert candidate["rationale"]
        assert candidate["expected_gain_pct"] is not None


def test_an_exhausted_space_gives_nothing():
    fixed = {"tp": 1, "pp": 1, "vpp": 1, "mbs": 1, "dp_sharding": "fsdp", "recompute": "none"}
    request = small_request(fixed=fixed)
    tiny = SearchSpace(request, choose_baseline(request))
    oracle = Oracle(request, project, engine_version=ENGINE_VERSION)
    trials = [oracle.score(tiny.fitting.recipe(row)) for row in range(len(tiny.fitting))]
    assert heuristic.propose(tiny, trials, trials[0], objective="mfu", count=5) == []


def test_the_surrogate_reproduces_what_it_saw_and_is_less_sure_elsewhere(space):
    rows = np.arange(0, len(space.fitting), len(space.fitting) // 25)
    points = space.points.take(rows)
    times = np.log(project_table(space.fitting.take(rows)).step_time_s)
    mean, sd = Surrogate(points, times).mean_and_sd(points)
    assert np.abs(mean - times).max() < 0.05
    far = space.points.take(rows[:-1] + 1)
    assert Surrogate(points, times).mean_and_sd(far)[1].mean() > sd.mean()


def test_the_reckoned_time_orders_a_space_roughly(space):
    rows = np.arange(0, len(space.fitting), 7)
    table = space.fitting.take(rows)
    real = np.log(project_table(table).step_time_s)
    assert np.corrcoef(napkin.log_time(table), real)[0, 1] > 0.6


def test_codes_tell_rows_apart_and_know_strangers(space):
    codes = space.points.codes
    assert (codes >= 0).all()
    assert len(np.unique(space.coding.identity(codes))) == len(np.unique(codes, axis=0))
    assert differing(codes[:1], codes[0])[0] == 0
    stranger = Coding.of(space.fitting).codes(
        space.table_of([{**choose_baseline(small_request()).fields, "mbs": 5}])
    )
    assert (stranger == -1).sum() == 1
    assert len(Points.of(space.fitting.take([0, 1]), space.coding)) == 2
