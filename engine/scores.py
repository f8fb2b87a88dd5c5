"""The rows and the summary of a validation: plain statistics over scored cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(slots=True)
class Row:
    """One case with its verdict."""

    id: str
    groups: dict[str, str]
    """Grouping -> the group this case is in."""
    measured: dict[str, Any]
    status: str = "ok"
    """``ok | illegal | unsupported | error``."""
    reason: str | None = None
    predicted: dict[str, Any] | None = None
    metric: str | None = None
    """The measured column compared with; None when the case has none (out of memory, memory only)."""
    error_pct: float | None = None
    """Throughput, 100 x (predicted / measured - 1)."""
    inside_interval80: bool | None = None
    memory_error_pct: float | None = None
    flags: list[str] = field(default_factory=list)
    """``suspect``, ``low-trust``, ``assumed: FIELD``, ``rates-disagree``."""
    assumptions: list[str] = field(default_factory=list)
    out_of_memory: bool = False
    """Whether the measured run ran out of memory."""
    verdict: str | None = None
    """The engine's memory verdict."""

    def ended(self, status: str, reason: str) -> Row:
        """This row, not scored, with its reason."""
        self.status, self.reason = status, reason
        return self

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "status": self.status,
            "reason": self.reason,
            "predicted": self.predicted,
            "measured": self.measured,
            "metric": self.metric,
            "error_pct": self.error_pct,
            "inside_interval80": self.inside_interval80,
            "memory_error_pct": self.memory_error_pct,
            "flags": self.flags,
            "assumptions": self.assumptions,
        }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The summary of all rows, and of each group.

    ``scored`` counts rows with a throughput error. ``bias_pct`` is the median signed error.
    ``interval80_coverage`` is the share of scored rows inside their 80% interval. The ``oom`` counts are
    over rows with a verdict: ``caught`` ran out of memory and do not ``fit``, ``false_alarms`` ran and
    are called out of memory. Figures over nothing are null.
    """
    statuses = dict.fromkeys(("ok", "illegal", "unsupported", "error"), 0)
    for row in rows:
        statuses[row.status] += 1
    return {
        **throughput(rows),
        "statuses": statuses,
        "memory": memory(rows),
        "oom": out_of_memory(rows),
        "by_group": _by_group(rows),
    }


def memory(rows: Sequence[Row]) -> dict[str, Any]:
    """Errors of the peak memory of rows that ran and state one, in percent; null where none does."""
    errors = np.asarray([row.memory_error_pct for row in rows if row.memory_error_pct is not None])
    return {
        "n": int(errors.size),
        "median_abs_error_pct": _median(np.abs(errors)),
        "p90_abs_error_pct": float(np.percentile(np.abs(errors), 90)) if errors.size else None,
        "bias_pct": _median(errors),
    }


def out_of_memory(rows: Sequence[Row]) -> dict[str, int]:
    """How the verdicts sort rows that ran out of memory from rows that ran."""
    judged = [row for row in rows if row.verdict is not None]
    failed = [row for row in judged if row.out_of_memory]
    ran = [row for row in judged if not row.out_of_memory]
    return {
        "n": len(failed),
        "caught": sum(row.verdict != "fits" for row in failed),
        "ran": len(ran),
        "false_alarms": sum(row.verdict == "out of memory" for row in ran),
    }


def throughput(rows: Sequence[Row]) -> dict[str, Any]:
    """Throughput errors of some rows, in percent; null where nothing is scored."""
    errors = np.asarray([row.error_pct for row in rows if row.error_pct is not None], dtype=np.float64)
    inside = [row.inside_interval80 for row in rows if row.inside_interval80 is not None]
    some = errors.size > 0
    return {
        "n": len(rows),
        "scored": int(errors.size),
        "median_abs_error_pct": _median(np.abs(errors)),
        "p90_abs_error_pct": float(np.percentile(np.abs(errors), 90)) if some else None,
        "max_abs_error_pct": float(np.abs(errors).max()) if some else None,
        "bias_pct": _median(errors),
        "interval80_coverage": sum(inside) / len(inside) if inside else None,
    }


def _by_group(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    names = sorted({name for row in rows for name in row.groups})
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        members: dict[str, list[Row]] = {}
        for row in rows:
            members.setdefault(row.groups.get(name, "unknown"), []).append(row)
        found[name] = {
            value: {
                **throughput(members[value]),
                "memory": memory(members[value]),
                "oom": out_of_memory(members[value]),
            }
            for value in sorted(members)
        }
    return found


def _median(values: Iterable[float]) -> float | None:
    array = np.asarray(list(values), dtype=np.float64)
    return float(np.median(array)) if array.size else None
