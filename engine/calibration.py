"""Fits the few physical parameters of :mod:`~shardwise.engine.efficiency` to measured cases.

1. Score every case that states its throughput with the starting values (the priors).
2. Gauss-Newton on log(predicted / measured): each parameter is fitted in log space with a Gaussian
   prior at its starting value, so that one the cases say nothing about stays where it was.
3. Residuals are weighted robustly (Student-t with four degrees of freedom) and a case counts less the
   more cases share its model, GPU and source: a sweep of a thousand layouts is not a thousand votes.

No parameter belongs to one model or one case; scopes are all GPUs, a vendor, an architecture or a GPU.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.engine.cases import Case, Unscorable, interpret, read_cases
from shardwise.engine.cases.labels import trust_flags
from shardwise.engine.efficiency import Calibration
from shardwise.engine.errors import ConfigError
from shardwise.engine.projection import project_table
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Floats, Table
from shardwise.engine.validation import measured_rates

_PRIOR_SPREAD: dict[str, float] = {
    "gemm_16bit": 0.10,
    "gemm_fp8": 0.10,
    "gemm_fp4": 0.10,
    "grouped_gemm": 0.15,
    "attention_forward": 0.12,
    "attention_backward": 0.12,
    "hbm": 0.07,
    "permute": 0.20,
    "optimizer": 0.20,
    "fabric": 0.10,
    "nic": 0.10,
    "all_to_all": 0.20,
    "deepep": 0.15,
    "collective_launch_s": 0.4,
    "host_dense_layer_s": 0.4,
    "host_moe_layer_s": 0.4,
    "step_overhead_s": 0.5,
    "straggler": 0.5,
}
"""Fitted parameters and one standard deviation of their prior, in log space. How sure we were before:
kernel rates are published within 10%, latencies and host times within 1.5 times. Parameters not
named stay at their starting value."""

_FRACTION_LIMIT = 0.97
"""No fitted share of a peak may exceed this."""

_NOISE = 0.05
"""Spread of log throughput that is nobody's fault: the same recipe over releases and sites differs by
0.9 to 1.9% in the median and 4.7 to 25% at the 90th percentile."""

_DEGREES = 4.0
"""Of freedom of the residuals' Student-t."""

_STEP = 0.02
"""Finite-difference step in log space."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A recipe with its measured throughput."""

    id: str
    recipe: Recipe
    tokens_per_s_per_gpu: float
    group: str
    """Cases of one group share one vote: same source, model, GPU and precision."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What a calibration run found."""

    calibration: Calibration
    observations: int
    moved: Mapping[str, tuple[float, float]]
    """``scope.parameter`` -> (start, fitted), for every fitted parameter."""
    informed: Mapping[str, float]
    """``scope.parameter`` -> share of the prior's variance that the cases took away (0 = an echo)."""
    log_residuals: Floats
    """log(predicted / measured) after the fit, in the order of the observations."""
    weights: Floats


def read_observations(paths: Sequence[str | Path]) -> list[Observation]:
    """The cases of the files that can calibrate: a step time or tokens/s as the source states it, a
    recipe that the engine knows, and no mark of doubt."""
    found = [_observation(case) for path in paths for case in read_cases(path)]
    observations = [o for o in found if o is not None]
    if not observations:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: no case states a throughput to fit to", field="CASES"
        )
    return observations


def _observation(case: Case) -> Observation | None:
    read = interpret(case)
    if isinstance(read, Unscorable) or trust_flags(case) or case.measured.oom:
        return None
    recipe = read.recipe
    rates = measured_rates(case, recipe)
    tokens = rates.get("step_time_s") or rates.get("tokens_per_s_per_gpu")
    if tokens is None:
        return None
    gpu = recipe.cluster.gpu.name
    group = "|".join((case.source.title, recipe.model.name, gpu, recipe.precision))
    return Observation(case.id, recipe, tokens, group)


def fit(
    observations: Sequence[Observation],
    start: Calibration,
    *,
    iterations: int = 6,
    progress: Callable[[int, int], None] | None = None,
) -> Fit:
    """Fit ``start``'s parameters to ``observations``."""
    assert observations, "nothing to fit to"
    names = _parameters(start, observations)
    prior = np.log([_get(start, scope, name) for scope, name in names])
    precision = np.diag([_PRIOR_SPREAD[name] ** -2.0 for _, name in names])
    batches = _batches(observations)
    votes = _votes(observations)
    measured = np.log([o.tokens_per_s_per_gpu for o in observations])

    def residual(theta: Floats) -> Floats:
        calibration = _with(start, names, theta)
        return _predicted(batches, len(observations), calibration) - measured

    theta = prior.copy()
    covariance = np.asarray(np.linalg.inv(precision), dtype=np.float64)
    for iteration in range(iterations):
        now = residual(theta)
        jacobian = np.empty((len(now), len(theta)))
        for i in range(len(theta)):
            moved = theta.copy()
            moved[i] -= _STEP
            jacobian[:, i] = (now - residual(moved)) / _STEP
        weight = votes * (_DEGREES + 1) / (_DEGREES + (now / _NOISE) ** 2) / _NOISE**2
        curvature = jacobian.T @ (weight[:, None] * jacobian) + precision
        gradient = jacobian.T @ (weight * now) + precision @ (theta - prior)
        covariance = np.asarray(np.linalg.inv(curvature), dtype=np.float64)
        theta = _bounded(np.asarray(theta - covariance @ gradient, dtype=np.float64), names)
        if progress is not None:
            progress(iteration + 1, iterations)
    calibration = _with(start, names, theta)
    keys = [f"{scope}.{name}" for scope, name in names]
    prior_variance = np.diag(np.linalg.inv(precision))
    return Fit(
        calibration=calibration,
        observations=len(observations),
        moved={k: (float(np.exp(a)), float(np.exp(b))) for k, a, b in zip(keys, prior, theta, strict=True)},
        informed={
            k: float(1 - after / before)
            for k, after, before in zip(keys, np.diag(covariance), prior_variance, strict=True)
        },
        log_residuals=residual(theta),
        weights=votes,
    )


def _parameters(start: Calibration, observations: Iterable[Observation]) -> list[tuple[str, str]]:
    """(scope, name) of every fitted parameter that some observation's GPU uses at its most specific scope."""
    used: set[tuple[str, str]] = set()
    gpus = {o.recipe.cluster.gpu.name: o.recipe.cluster.gpu for o in observations}
    for gpu in gpus.values():
        for name in _PRIOR_SPREAD:
            scopes = (gpu.name, gpu.architecture, gpu.vendor)
            scope = next((s for s in scopes if name in start.overrides.get(s, {})), "default")
            used.add((scope, name))
    return sorted(used)


def _get(calibration: Calibration, scope: str, name: str) -> float:
    return (calibration.default if scope == "default" else calibration.overrides[scope])[name]


def _with(start: Calibration, names: Sequence[tuple[str, str]], theta: Floats) -> Calibration:
    default = dict(start.default)
    overrides = {scope: dict(values) for scope, values in start.overrides.items()}
    for (scope, name), value in zip(names, np.exp(theta), strict=True):
        (default if scope == "default" else overrides[scope])[name] = float(value)
    return Calibration(default, overrides, start.residuals)


def _bounded(theta: Floats, names: Sequence[tuple[str, str]]) -> Floats:
    share = np.array([not name.endswith("_s") and name != "straggler" for _, name in names])
    return np.where(share, np.minimum(theta, np.log(_FRACTION_LIMIT)), theta)


def _votes(observations: Sequence[Observation]) -> Floats:
    """Weight of each observation: a group of k cases counts as sqrt(k)."""
    sizes = Counter(o.group for o in observations)
    return np.array([sizes[o.group] ** -0.5 for o in observations])


def _batches(observations: Sequence[Observation]) -> list[tuple[list[int], Table]]:
    """Tables of observations that share model and cluster, with their positions."""
    together: dict[tuple[object, object], list[int]] = defaultdict(list)
    for i, o in enumerate(observations):
        together[(o.recipe.model, o.recipe.cluster.model_dump_json())].append(i)
    return [(rows, Table.of([observations[i].recipe for i in rows])) for rows in together.values()]


def _predicted(batches: Sequence[tuple[list[int], Table]], count: int, calibration: Calibration) -> Floats:
    """Log of the projected throughput of every observation."""
    predicted = np.empty(count)
    for rows, table in batches:
        predicted[rows] = np.log(project_table(table, calibration=calibration).tokens_per_s_per_gpu)
    return predicted


def residual_quantiles(fitted: Fit, observations: Sequence[Observation]) -> dict[str, tuple[float, float]]:
    """Weighted 10% and 90% quantiles of measured over projected throughput, dense and MoE apart."""
    ratio = np.exp(-fitted.log_residuals)
    moe = np.array([o.recipe.model.is_moe for o in observations])
    result = {}
    for kind, mask in (("dense", ~moe), ("moe", moe)):
        if not mask.any():
            # Nothing to learn from: what was known before stays.
            result[kind] = fitted.calibration.residuals[kind]
            continue
        order = np.argsort(ratio[mask])
        share = np.cumsum(fitted.weights[mask][order])
        low, high = (float(np.interp(q * share[-1], share, ratio[mask][order])) for q in (0.1, 0.9))
        result[kind] = (min(low, 1.0), max(high, 1.0))
    return result


def as_document(
    fitted: Fit, observations: Sequence[Observation], paths: Sequence[str | Path]
) -> dict[str, Any]:
    """The fit in the form of ``calibration.yaml``, with what it was fitted on."""
    calibration = fitted.calibration
    residuals = residual_quantiles(fitted, observations)
    return {
        "version": "0.1",
        "fitted_on": {
            "files": [Path(path).name for path in paths],
            "cases": fitted.observations,
            "groups": len({o.group for o in observations}),
        },
        "echoes": sorted(name for name, share in fitted.informed.items() if share < _ECHO),
        "default": {name: _rounded(value) for name, value in calibration.default.items()},
        "overrides": {
            scope: {name: _rounded(value) for name, value in values.items()}
            for scope, values in calibration.overrides.items()
        },
        "residuals": {kind: [round(low, 3), round(high, 3)] for kind, (low, high) in residuals.items()},
    }


_ECHO = 0.2
"""A parameter whose prior variance the cases shrank by less than this only echoes its prior."""


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
