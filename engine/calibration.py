"""``shardwise calibrate``: which cases can calibrate, the fit, and the document it leaves behind.

The fit itself is :mod:`~shardwise.engine.fitting`, its test :mod:`~shardwise.engine.crossvalidation`. No
parameter belongs to one model or one case; scopes are all GPUs, a vendor, an architecture or a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.engine import crossvalidation, intervals
from shardwise.engine.cases import Case, Unscorable, interpret, read_cases
from shardwise.engine.cases.labels import groups, is_early_reading, trust_flags
from shardwise.engine.errors import ConfigError
from shardwise.engine.fitting import Fitted, Observation
from shardwise.engine.validation import measured_rates

_ECHO = 0.2
"""A parameter whose prior variance the cases shrank by less than this only echoes its prior."""


def read_observations(paths: Sequence[str | Path]) -> list[Observation]:
    """The cases of the files that can calibrate: a throughput, a recipe that the engine knows, no mark of
    doubt, and no reading taken before the run was warm."""
    found = [_observation(case) for path in paths for case in read_cases(path)]
    observations = [o for o in found if o is not None]
    if not observations:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: no case states a throughput to fit to", field="CASES"
        )
    return observations


def _observation(case: Case) -> Observation | None:
    read = interpret(case)
    if isinstance(read, Unscorable) or trust_flags(case) or is_early_reading(case) or case.measured.oom:
        return None
    recipe = read.recipe
    rates = measured_rates(case, recipe)
    if not rates:
        return None
    group = "|".join((case.source.title, recipe.cluster.gpu.name, recipe.precision))
    return Observation(case.id, recipe, next(iter(rates.values())), group, groups(case)["family"])


def moved(fitted: Fitted) -> dict[str, dict[str, float]]:
    """``scope.parameter`` -> its start, its fitted value, and how much the cases had to say about it."""
    fitter = fitted.fitter
    informed = fitter.informed(fitted.residuals, fitted.jacobian)
    return {
        f"{scope}.{name}": {"start": float(a), "fitted": float(b), "informed": float(c)}
        for (scope, name), a, b, c in zip(
            fitter.names, np.exp(fitter.prior), np.exp(fitted.theta), informed, strict=True
        )
    }


def as_document(
    fitted: Fitted,
    errors: crossvalidation.Errors,
    parameters: Mapping[str, Mapping[str, float]],
    paths: Sequence[str | Path],
) -> dict[str, Any]:
    """The fit in the form of ``calibration.yaml``: values, what they were fitted on, how good they are."""
    fitter = fitted.fitter
    calibration = fitter.calibration(fitted.theta)
    return {
        "version": "0.2",
        "fitted_on": {
            "files": [Path(path).name for path in paths],
            "cases": len(fitter.observations),
            "groups": len({o.group for o in fitter.observations}),
        },
        "cross_validation": crossvalidation.report(fitted, errors),
        "echoes": sorted(name for name, row in parameters.items() if row["informed"] < _ECHO),
        "default": {name: _rounded(value) for name, value in calibration.default.items()},
        "overrides": {
            scope: {name: _rounded(value) for name, value in values.items()}
            for scope, values in calibration.overrides.items()
        },
        # A kind that no case is of keeps what was known before.
        "residuals": {name: list(ends) for name, ends in fitter.start.residuals.items()}
        | intervals.residuals(fitter.observations, fitter.votes, errors),
        **intervals.known(fitter.observations),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
