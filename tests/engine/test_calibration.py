"""Fitting to measured cases, and the test of the fit by what it never saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwise.engine import calibration, crossvalidation
from shardwise.engine.cases import read_cases
from shardwise.engine.cases.era import software_year
from shardwise.engine.confidence import interval
from shardwise.engine.efficiency import Calibration, priors, shipped_calibration
from shardwise.engine.fitting import Fitted, Fitter
from shardwise.engine.ranking import pairs_in_order, sweeps

SAMPLE = Path(__file__).parents[1] / "data" / "cases-sample.jsonl"


def _cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in SAMPLE.read_text().splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return Fitter(calibration.read_observations([SAMPLE]), priors()).fit(1)


def test_a_fit_comes_nearer_than_its_priors(fitted: Fitted) -> None:
    before = fitted.fitter.residuals(fitted.fitter.prior)
    assert np.median(np.abs(fitted.residuals)) < np.median(np.abs(before))


def test_what_is_left_out_does_not_bear_on_its_own_prediction(fitted: Fitted) -> None:
    """Measured ten times faster, a case moves the whole fit, but not the one that leaves it out."""
    left_out = np.zeros(len(fitted.residuals), dtype=bool)
    left_out[0] = True
    shifted = fitted.residuals - np.where(left_out, np.log(10.0), 0.0)
    moved = Fitted(fitted.fitter, fitted.theta, shifted, fitted.jacobian)
    assert moved.without(left_out) == fitted.without(left_out)
    nothing = np.zeros_like(left_out)
    assert moved.without(nothing) != fitted.without(nothing)


def test_every_split_leaves_a_kind_out_and_has_both_baselines_beside_it(fitted: Fitted) -> None:
    report = crossvalidation.report(fitted, crossvalidation.all_errors(fitted))
    assert set(report["errors"]) == {"in the fit", "configuration", "combination", "family", "gpu"}
    for split, predictors in report["errors"].items():
        if split != "in the fit":
            assert set(predictors) == {"engine", "nearest case's MFU", "constant MFU"}
        for by_kind in predictors.values():
            assert sum(row["n"] for row in by_kind.values()) == len(fitted.residuals), split


def test_kinds_without_cases_keep_the_intervals_known_before(tmp_path: Path) -> None:
    plain = [case for case in _cases() if "llama" in case.get("model", {}).get("name", "").lower()]
    dense = tmp_path / "dense.jsonl"
    dense.write_text("".join(json.dumps(case) + "\n" for case in plain))
    observations = calibration.read_observations([dense])
    assert observations and not any(one.recipe.model.is_moe for one in observations)
    fitted = Fitter(observations, priors()).fit(1)
    document = calibration.as_document(
        fitted, crossvalidation.all_errors(fitted), calibration.moved(fitted), [dense]
    )
    found = Calibration.from_document(document, where="a fit")
    for name, ends in priors().residuals.items():
        assert (found.residuals[name] == ends) == name.startswith("moe")


def test_an_interval_is_wider_beyond_what_was_measured() -> None:
    from recipes import LLAMA, recipe

    near = recipe(LLAMA)
    known = shipped_calibration()
    low, high, outside = interval(near, known)
    assert not outside and low <= 1 <= high
    far_low, far_high, why = interval(near.with_(seq_len=near.seq_len * 4096), known)
    assert far_low <= low and far_high >= high
    assert any("seq_len" in line for line in why)


def test_order_counts_only_pairs_that_differ(fitted: Fitted) -> None:
    observations = list(fitted.fitter.observations)[:1] * 6
    measured = np.log([1.0, 1.01, 1.2, 1.4, 1.6, 1.8])
    right = pairs_in_order(observations, np.zeros(6), measured)
    assert right == {"pairs": 14, "groups": 1, "right_pct": 100.0}
    upside_down = pairs_in_order(observations, -2 * measured, measured)
    assert upside_down["right_pct"] == 0.0
    assert sweeps(observations, np.zeros(6), measured)["median_tau"] == 1.0
    assert sweeps(observations, -2 * measured, measured)["median_gap_pct"] == pytest.approx(100 * 0.8 / 1.8)


@pytest.mark.parametrize(
    ("version", "title", "year"),
    [
        ("v0.4.0 (NeMo 26.04)", "Megatron-Bridge performance summary", 2026.29),
        ("24.07", "NeMo", 2024.54),
        ("2021-04", "paper", 2021.29),
        ("core_v0.6.0", "FlagPerf", 2024.3),
        ("primus_the_rock_rocm7.15_20260728", "pull request", 2026.54),
        ("unknown", "MLPerf Training v5.0 results", 2025.4),
        (None, "MoE Parallel Folding (arXiv 2504.14960)", 2025.29),
    ],
)
def test_software_is_dated_by_its_release_or_source(version: str | None, title: str, year: float) -> None:
    case = read_cases(SAMPLE)[0]
    case = case.model_copy(
        update={
            "framework": case.framework.model_copy(update={"version": version}),
            "source": case.source.model_copy(update={"title": title, "url": None}),
        }
    )
    assumptions: list[str] = []
    assert software_year(case, assumptions) == year
    assert not assumptions
