"""How far the engine is from what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from textwrap import shorten
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.cli.render.units import NONE, percent, signed_percent

_REASON = 110
"""Characters of a reason that are shown; the JSON has all."""


def validation(document: Mapping[str, Any], *, worst: int = 8) -> Group:
    """Summary, groups, the worst cases, and why cases were not scored."""
    parts: list[RenderableType] = [_summary(document["summary"])]
    groups = document["summary"].get("by_group") or {}
    if groups:
        parts += [Text(), _groups(groups)]
        if document["summary"]["memory"]["n"] or document["summary"]["oom"]["n"]:
            parts += [Text(), _memory_groups(groups["framework"])]
    scored = [case for case in document["cases"] if case.get("error_pct") is not None]
    if scored and worst > 0:
        parts += [Text(), _worst(sorted(scored, key=lambda case: -abs(case["error_pct"]))[:worst])]
    left_out = Counter(
        (case["status"], case.get("reason") or "no reason given")
        for case in document["cases"]
        if case["status"] != "ok"
    )
    if left_out:
        parts += [Text(), _left_out(left_out)]
    return Group(*parts)


def _summary(summary: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row("cases", f"{summary['n']}, of which scored {summary['scored']}")
    table.add_row(
        "throughput error",
        f"median {_pct(summary['median_abs_error_pct'])}, "
        f"90th percentile {_pct(summary['p90_abs_error_pct'])}, worst {_pct(summary['max_abs_error_pct'])}",
    )
    table.add_row(
        "bias", f"{signed_percent(summary['bias_pct'])} (positive: promises more than was measured)"
    )
    table.add_row("80% interval", f"held {percent(summary['interval80_coverage'])} of the measured values")
    memory = summary["memory"]
    table.add_row(
        "memory error",
        f"median {_pct(memory['median_abs_error_pct'])}, "
        f"90th percentile {_pct(memory['p90_abs_error_pct'])}, "
        f"bias {signed_percent(memory['bias_pct'])} over {memory['n']} cases",
    )
    oom = summary["oom"]
    table.add_row(
        "out of memory",
        f"{oom['caught']} of {oom['n']} caught, "
        f"{oom['false_alarms']} false alarms among {oom['ran']} that ran",
    )
    return table


def _groups(groups: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("group", overflow="fold")
    for head in ("cases", "median error", "p90", "bias"):
        table.add_column(head, justify="right", no_wrap=True)
    for grouping, members in groups.items():
        for name, row in members.items():
            if row["scored"]:
                table.add_row(
                    f"{grouping}: {name}",
                    str(row["scored"]),
                    _pct(row["median_abs_error_pct"]),
                    _pct(row["p90_abs_error_pct"]),
                    signed_percent(row["bias_pct"]),
                )
    return table


def _memory_groups(frameworks: Mapping[str, Any]) -> Table:
    """Frameworks with a measured peak or a run out of memory: memory depends on whose modules run."""
    table = Table(box=box.SIMPLE_HEAD, title="Memory", title_justify="left", title_style="bold")
    table.add_column("framework", overflow="fold")
    for head in ("peaks", "median error", "p90", "bias", "out of memory", "false alarms"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, row in frameworks.items():
        memory, oom = row["memory"], row["oom"]
        if memory["n"] or oom["n"]:
            table.add_row(
                name,
                str(memory["n"]),
                _pct(memory["median_abs_error_pct"]),
                _pct(memory["p90_abs_error_pct"]),
                signed_percent(memory["bias_pct"]),
                f"{oom['caught']} of {oom['n']}",
                f"{oom['false_alarms']} of {oom['ran']}",
            )
    return table


def _worst(cases: list[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Furthest off", title_justify="left", title_style="bold")
    table.add_column("case", overflow="fold")
    table.add_column("metric", no_wrap=True)
    table.add_column("error", justify="right", no_wrap=True)
    for case in cases:
        table.add_row(str(case["id"]), str(case.get("metric") or NONE), signed_percent(case["error_pct"]))
    return table


def _left_out(reasons: Counter[tuple[str, str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Not scored", title_justify="left", title_style="bold")
    table.add_column("cases", justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for (status, reason), number in reasons.most_common(12):
        table.add_row(str(number), status, shorten(reason, _REASON, placeholder=" ..."))
    return table


def _pct(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}%"
