"""A memory verdict: one line, and a table of stages by item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.cli.render.units import gib, percent

VERDICT_STYLE = {"fits": "bold green", "tight": "bold yellow", "out of memory": "bold red"}

_HEADS = {
    "weights": "weights",
    "gradients": "grads",
    "optimizer": "optim",
    "activations": "activ",
    "temporary": "temp",
    "communication": "comm",
    "overhead": "other",
}
_LEVERS = 6
"""Changes shown, those that save most first."""
_SHOWN = 8
"""Stages shown before the middle is left out."""


def verdict_line(memory: Mapping[str, Any]) -> Text:
    """``fits: 204.1 of 288.0 GiB on the fullest GPU (stage 0), 70.9%``."""
    verdict = str(memory["verdict"])
    share = memory["peak_bytes"] / memory["capacity_bytes"]
    return Text.assemble(
        (verdict, VERDICT_STYLE.get(verdict, "bold")),
        f": {gib(memory['peak_bytes'], unit=False)} of {gib(memory['capacity_bytes'])}",
        f" on the fullest GPU (stage {memory['peak_stage']}), {percent(share)}",
    )


def stage_table(memory: Mapping[str, Any]) -> Table:
    """GiB per stage and item; the fullest stage is marked."""
    table = Table(box=box.SIMPLE_HEAD, title="Memory per pipeline stage, GiB", title_justify="left")
    table.title_style = "bold"
    table.add_column("stage", justify="right", no_wrap=True)
    for head in (*_HEADS.values(), "total"):
        table.add_column(head, justify="right", no_wrap=True)
    stages = list(memory["stages"])
    shown = _ends(stages, int(memory["peak_stage"]))
    last = -1
    for stage in shown:
        if stage["stage"] != last + 1:
            table.add_row("...")
        last = stage["stage"]
        peak = stage["stage"] == memory["peak_stage"]
        cells = [gib(stage[item], unit=False) for item in _HEADS]
        mark = ">" if peak else ""
        table.add_row(
            f"{mark}{stage['stage']}", *cells, gib(stage["total"], unit=False), style="bold" if peak else ""
        )
    return table


def memory(document: Mapping[str, Any], *, head: RenderableType | None = None) -> Group:
    """The whole answer of ``shardwise memory``."""
    parts: list[RenderableType] = [head, Text()] if head is not None else []
    parts += [verdict_line(document), three_numbers(document)]
    if document["first_step_bytes"] <= document["capacity_bytes"] < document["peak_bytes"]:
        first = gib(document["first_step_bytes"])
        parts.append(Text(f"  the first step needs {first} and passes; the next ones, with moments, do not"))
    if document["load_bytes"] > document["capacity_bytes"]:
        parts.append(Text(f"  loading a checkpoint needs {gib(document['load_bytes'])}"))
    parts += [peak_line(document), Text(), stage_table(document)]
    if document.get("measured"):
        parts.append(measured_table(document["measured"]))
    if document.get("advice"):
        parts.append(advice(document["advice"]))
    return Group(*parts)


def measured_table(measured: Mapping[str, Any]) -> Group:
    """What the framework's own modules hold beside the formulas, GiB."""
    parts: list[RenderableType] = []
    for stage in measured["stages"]:
        table = Table(box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
        table.title = f"Measured ({measured['mode']}), stage {stage['stage']}, GiB"
        for head in ("item", "formula", "measured", "difference"):
            table.add_column(head, justify="left" if head == "item" else "right", no_wrap=True)
        for item, formula in stage["formula"].items():
            found = stage["measured"][item]
            off = f"{(formula - found) / found:+.2%}" if found else "-"
            table.add_row(
                item,
                gib(formula, unit=False, digits=3),
                gib(found, unit=False, digits=3),
                off,
                style="bold" if item == "allocated" else "",
            )
        parts += [table, Text(f"  peak in the {stage['moment']}")]
        if device := stage.get("device"):
            held, used, total = (gib(device[k]) for k in ("reserved", "device_used", "device_total"))
            parts.append(Text(f"  reserved {held}, device {used} of {total}"))
        parts.append(Text())
    return Group(*parts)


_PARTS = 3
"""Parts of the temporary bytes shown."""


def peak_line(memory: Mapping[str, Any]) -> Text:
    """When the fullest GPU is fullest, and what passes then."""
    peak = next(p for p in memory["peaks"] if p["stage"] == memory["peak_stage"])
    parts = [f"{name} {gib(size)}" for name, size in list(peak["temporary"].items())[:_PARTS]]
    return Text(f"  fullest in: {peak['moment']}" + (f" ({', '.join(parts)})" if parts else ""))


def three_numbers(memory: Mapping[str, Any]) -> Text:
    """What torch counts and what the device counts, of the fullest GPU."""
    return Text(
        f"  allocated {gib(memory['allocated_bytes'])} (tensors), reserved {gib(memory['reserved_bytes'])} "
        f"(with the allocator's slack), device {gib(memory['peak_bytes'])}"
    )


def advice(told: Mapping[str, Any]) -> Group:
    """By how much it is too large, what to cut, and the fewest GPUs."""
    over = f"{gib(told['over_bytes'])} above what may be filled; " if told["over_bytes"] else ""
    table = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
    for lever in told["levers"][:_LEVERS]:
        table.add_row(
            changed(lever["changes"]),
            f"-{gib(lever['saved_bytes'])}",
            gib(lever["peak_bytes"]),
            lever["verdict"],
        )
    parts: list[RenderableType] = [Text(f"{over}cut first: {told['largest_item']}", style="bold"), table]
    fewest = told["fewest_gpus"]
    if fewest:
        how = changed(fewest["changes"]) or "as it is"
        parts.append(Text(f"\nfewest GPUs: {fewest['gpus']} ({how}), {gib(fewest['peak_bytes'])}"))
    elif told["over_bytes"]:
        parts.append(Text("\nfewest GPUs: none found; the layers themselves are too large"))
    return Group(*parts)


def changed(fields: Mapping[str, Any]) -> str:
    """``tp=2 recompute=full``; what is unset or follows from the rest is left out."""
    implied = ("sequence_parallel", "recompute_method", "recompute_num_layers")
    shown = {k: v for k, v in fields.items() if v not in (None, (), [], False) and k not in implied}
    return " ".join(f"{k}={','.join(v) if isinstance(v, (list, tuple)) else v}" for k, v in shown.items())


def _ends(stages: list[Any], peak: int) -> list[Any]:
    if len(stages) <= _SHOWN:
        return stages
    half = _SHOWN // 2
    return [s for i, s in enumerate(stages) if i < half or i >= len(stages) - half or s["stage"] == peak]
