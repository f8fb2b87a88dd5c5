"""Fitting to measured cases: what there is nothing to learn from stays as it was."""

from __future__ import annotations

import json
from pathlib import Path

from shardwise.engine import calibration
from shardwise.engine.efficiency import priors

SAMPLE = Path(__file__).parents[1] / "data" / "cases-sample.jsonl"


def test_dense_cases_alone_leave_the_moe_residuals_as_they_were(tmp_path: Path) -> None:
    cases = [json.loads(line) for line in SAMPLE.read_text().splitlines() if line.startswith("{")]
    plain = [case for case in cases if "llama" in case.get("model", {}).get("name", "").lower()]
    dense = tmp_path / "dense.jsonl"
    dense.write_text("".join(json.dumps(case) + "\n" for case in plain))
    observations = calibration.read_observations([dense])
    assert observations
    assert not any(one.recipe.model.is_moe for one in observations)
    fitted = calibration.fit(observations, priors(), iterations=1)
    found = calibration.residual_quantiles(fitted, observations)
    assert found["moe"] == tuple(priors().residuals["moe"])
    assert found["dense"] != found["moe"]
