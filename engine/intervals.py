"""What a calibration stores for :mod:`~shardwise.engine.confidence`: intervals, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.engine.confidence import sizes
from shardwise.engine.fitting import Observation
from shardwise.engine.table import Bools, Floats

_FEWEST = 20
"""Cases that a group needs for quantiles of its own; with fewer, all of the same kind of model are taken."""

_TAIL = 0.1
"""Share of the cases under the lower and above the upper end of an 80% interval."""


def known(observations: Sequence[Observation]) -> dict[str, Any]:
    """The part of a calibration document that says what was measured."""
    gpus: dict[str, set[str]] = {}
    spans: dict[str, dict[str, list[float]]] = {}
    for o in observations:
        gpus.setdefault(o.recipe.cluster.gpu.name, set()).add(o.recipe.precision)
        kind = spans.setdefault("moe" if o.recipe.model.is_moe else "dense", {})
        for name, value in sizes(o.recipe).items():
            kind.setdefault(name, []).append(value)
    return {
        "known_gpus": {gpu: sorted(gpus[gpu]) for gpu in sorted(gpus)},
        "known_sizes": {
            kind: {name: [min(values), max(values)] for name, values in spans[kind].items()}
            for kind in sorted(spans)
        },
    }


def residuals(
    observations: Sequence[Observation], votes: Floats, errors: dict[str, Floats]
) -> dict[str, list[float]]:
    """Kind, software and reach -> the ends of the 80% interval, from cross-validated errors."""
    moe = np.array([o.recipe.model.is_moe for o in observations])
    core = np.array([o.recipe.framework == "megatron-core" for o in observations])
    found: dict[str, list[float]] = {}
    for kind, of_kind in (("dense", ~moe), ("moe", moe)):
        for software, of_software in (("megatron-core", core), ("other", ~core)):
            for reach, split in (("known", "combination"), ("unknown", "gpu")):
                rows = of_kind & of_software
                rows = rows if rows.sum() >= _FEWEST else of_kind
                if rows.any():
                    found[f"{kind} {software} {reach}"] = _quantiles(errors[split], votes, rows)
            known, unknown = (found.get(f"{kind} {software} {reach}") for reach in ("known", "unknown"))
            if known and unknown:
                # Farther off is never surer.
                unknown[:] = [min(known[0], unknown[0]), max(known[1], unknown[1])]
    return found


def _quantiles(errors: Floats, votes: Floats, rows: Bools) -> list[float]:
    ratio = np.exp(-errors[rows])
    order = np.argsort(ratio)
    running = np.cumsum(votes[rows][order])
    middle = (running - votes[rows][order] / 2) / running[-1]
    low, high = (float(np.interp(q, middle, ratio[order])) for q in (_TAIL, 1 - _TAIL))
    return [round(min(low, 1.0), 3), round(max(high, 1.0), 3)]
