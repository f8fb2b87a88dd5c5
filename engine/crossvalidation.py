"""How good a calibration is on what it never saw: each case predicted by a fit without its kind.

A random split would leak, since sources repeat one recipe over releases and scales. Three splits leave whole
kinds out: ``configuration`` (the layout, of a combination that is known otherwise), ``combination`` (model
family, GPU and precision), ``family`` and ``gpu``. Beside the engine stand two baselines without physics.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from shardwise.engine.baselines import constant, log_mfu, nearest
from shardwise.engine.fitting import Fitted, Observation
from shardwise.engine.ranking import pairs_in_order, sweeps
from shardwise.engine.table import Bools, Floats

Errors = dict[str, Floats]
"""Split -> log(predicted / measured) of every case, by a calibration that never saw its kind."""


def _combination(o: Observation) -> Hashable:
    return o.family, o.recipe.cluster.gpu.name, o.recipe.precision


def _configuration(o: Observation) -> Hashable:
    r = o.recipe
    sizes = (r.tp, r.pp, r.vpp, r.cp, r.ep, r.etp, r.mbs, r.seq_len, r.world_size)
    return _combination(o), r.model, sizes


SPLITS: dict[str, Callable[[Observation], Hashable]] = {
    "configuration": _configuration,
    "combination": _combination,
    "family": lambda o: o.family,
    "gpu": lambda o: o.recipe.cluster.gpu.name,
}
"""Name -> what is left out together."""


def left_out_errors(fitted: Fitted, split: str) -> Floats:
    """log(predicted / measured) of every case under ``split`` (n,)."""
    return _over_folds(fitted.fitter.observations, split, fitted.predicted_without)


def _over_folds(
    observations: Sequence[Observation], split: str, predict: Callable[[Bools], Floats]
) -> Floats:
    keys = [SPLITS[split](o) for o in observations]
    folds = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    fold = np.asarray([folds[key] for key in keys])
    errors = np.empty(len(keys))
    for number in folds.values():
        left_out = fold == number
        errors[left_out] = predict(left_out)
    return errors


def all_errors(fitted: Fitted) -> Errors:
    """The errors of every split."""
    return {split: left_out_errors(fitted, split) for split in SPLITS}


def report(fitted: Fitted, errors: Errors) -> dict[str, Any]:
    """Split -> predictor -> ``dense | moe`` -> n, median, 90th percentile and bias in percent of throughput;
    and how well the fit ranks."""
    observations, measured = fitted.fitter.observations, fitted.measured
    mfu = log_mfu(observations)
    table: dict[str, Any] = {"in the fit": {"engine": _by_kind(observations, fitted.residuals)}}
    for split, own in errors.items():
        baselines = {
            "nearest case's MFU": _over_folds(
                observations, split, lambda out: _known(nearest, observations, mfu, out)
            ),
            "constant MFU": _over_folds(
                observations, split, lambda out: _known(constant, observations, mfu, out)
            ),
        }
        table[split] = {
            "engine": _by_kind(observations, own),
            **{name: _by_kind(observations, found) for name, found in baselines.items()},
        }
    return {"errors": table, "ranking": _ranking(observations, errors["combination"], measured)}


def _known(
    baseline: Callable[[Sequence[Observation], Floats, Bools], Floats],
    observations: Sequence[Observation],
    mfu: Floats,
    left_out: Bools,
) -> Floats:
    """What ``baseline`` says, NaN where every case is left out."""
    if left_out.all():
        return np.full(len(left_out), np.nan)
    return baseline(observations, mfu, left_out)


def _by_kind(observations: Sequence[Observation], errors: Floats) -> dict[str, dict[str, float]]:
    return {kind: figures(errors[rows]) for kind, rows in kinds(observations).items() if rows.any()}


def kinds(observations: Sequence[Observation]) -> dict[str, Bools]:
    """Masks of dense and MoE cases."""
    moe = np.array([o.recipe.model.is_moe for o in observations])
    return {"dense": ~moe, "moe": moe}


def figures(errors: Floats) -> dict[str, float]:
    """n, median and 90th percentile of the absolute error, and the median signed one, in percent, of the
    cases that have one."""
    percent = 100 * np.expm1(errors[~np.isnan(errors)])
    if not len(percent):
        return {"n": 0, "median": 0.0, "p90": 0.0, "bias": 0.0}
    return {
        "n": len(percent),
        "median": round(float(np.median(np.abs(percent))), 1),
        "p90": round(float(np.percentile(np.abs(percent), 90)), 1),
        "bias": round(float(np.median(percent)), 1),
    }


def _ranking(observations: Sequence[Observation], errors: Floats, measured: Floats) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, rows in kinds(observations).items():
        if rows.any():
            some = [o for o, chosen in zip(observations, rows, strict=True) if chosen]
            found[kind] = {
                **pairs_in_order(some, errors[rows], measured[rows]),
                **sweeps(some, errors[rows], measured[rows]),
            }
    return found
