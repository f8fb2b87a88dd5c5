"""What the tools do, as plain functions of a :class:`Bench`: JSON in, JSON out, no oracle call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.engine import legality
from shardwise.engine.errors import ConfigError, unknown_name
from shardwise.engine.memory import report
from shardwise.engine.units import GIB
from shardwise.memory_filter import filter_recipe
from shardwise.tools.bench import Bench, TrialView


def memory_check(bench: Bench, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the incumbent with ``changes`` is legal and fits, and where its memory goes (GiB)."""
    recipe = bench.apply(changes)
    broken = legality.check(recipe)
    if broken:
        return {"legal": False, "violations": [f"{v.rule}: {v.message}" for v in broken[:4]]}
    found = report(recipe)
    worst = next(stage for stage in found.stages if stage.stage == found.peak_stage)
    reason = filter_recipe(recipe, bench.margin).reason(0)
    return {
        "legal": True,
        "fits": reason is None,
        "reason": reason,
        "peak_gib": _gib(found.peak_bytes),
        "capacity_gib": _gib(found.capacity_bytes),
        "peak_stage": found.peak_stage,
        "peak_stage_gib": {name: _gib(value) for name, value in worst.items.items() if value},
    }


def legal_values(bench: Bench, field: str) -> dict[str, Any]:
    """For each value that ``field`` takes in the space: whether it alone is legal, and whether it fits."""
    if field not in bench.choices:
        raise unknown_name("field", field, bench.choices)
    out: list[dict[str, Any]] = []
    for value in bench.choices[field]:
        entry: dict[str, Any] = {"value": value}
        try:
            recipe = bench.apply({field: value})
        except ConfigError as err:
            out.append({**entry, "legal": False, "why": str(err)})
            continue
        broken = legality.check(recipe)
        if broken:
            entry |= {"legal": False, "why": broken[0].message}
        else:
            entry |= {"legal": True, "fits": filter_recipe(recipe, bench.margin).reason(0) is None}
        out.append(entry)
    return {"field": field, "values": out}


def bottleneck(bench: Bench, trial: str) -> dict[str, Any]:
    """Where a trial's step time and memory go: shares of the step, largest first."""
    view = bench.trial(trial)
    total = float(view.projection.get("step_time_s") or 0.0)
    parts = sorted(
        (view.projection.get("time_breakdown_s") or {}).items(), key=lambda item: (-item[1], item[0])
    )
    memory = view.projection.get("memory") or {}
    stages = memory.get("stages") or []
    worst: dict[str, Any] = next(
        (stage for stage in stages if stage["stage"] == memory.get("peak_stage")), {}
    )
    return {
        **_figures(view),
        "share_of_step_pct": {
            name: round(100 * value / total, 1) for name, value in parts if total and value > 0
        },
        "bubble_fraction": view.projection.get("bubble_fraction"),
        "peak_stage_gib": {
            name: _gib(value) for name, value in worst.items() if name not in ("stage", "total") and value
        },
    }


def compare_trials(bench: Bench, first: str, second: str) -> dict[str, Any]:
    """What two trials have different, in the recipe and in the outcome (``second`` against ``first``)."""
    a, b = bench.trial(first), bench.trial(second)
    names = sorted({*a.fields, *b.fields})
    differs = {
        name: [a.fields.get(name), b.fields.get(name)]
        for name in names
        if a.fields.get(name) != b.fields.get(name)
    }
    before, after = (view.projection.get("tokens_per_s_per_gpu") or 0.0 for view in (a, b))
    times = [view.projection.get("time_breakdown_s") or {} for view in (a, b)]
    moved = {
        name: round(times[1].get(name, 0.0) - times[0].get(name, 0.0), 6)
        for name in sorted({*times[0], *times[1]})
    }
    return {
        "first": _figures(a),
        "second": _figures(b),
        "fields": differs,
        "gain_pct": round(100.0 * (after / before - 1.0), 2) if before else None,
        "seconds_moved": {name: value for name, value in moved.items() if value},
    }


def read_notes(bench: Bench) -> dict[str, Any]:
    """The lessons of the rounds so far, newest last."""
    return {"notes": list(bench.notes)}


def _figures(view: TrialView) -> dict[str, Any]:
    memory = view.projection.get("memory") or {}
    speed = view.projection.get("tokens_per_s_per_gpu")
    return {
        "trial": view.name,
        "tokens_per_s_per_gpu": None if speed is None else round(speed, 1),
        "peak_gib": _gib(memory.get("peak_bytes", 0)),
        "fits": view.fits,
    }


def _gib(count: float) -> float:
    return round(count / GIB, 2)
