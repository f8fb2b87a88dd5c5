"""A projection: the verdict, the figures, where the time goes, and the memory of each stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.cli.render.bars import time_bars
from shardwise.cli.render.legal import violations
from shardwise.cli.render.memory import stage_table, verdict_line
from shardwise.cli.render.units import count, percent, seconds


def figures(document: Mapping[str, Any]) -> Table:
    """Throughput with its interval, step time, model FLOP/s, MFU, bubble."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row("throughput", throughput(document))
    table.add_row("step time", seconds(document["step_time_s"]))
    table.add_row(
        "compute", f"{document['tflops_per_gpu']:.0f} model TFLOP/s per GPU, MFU {percent(document['mfu'])}"
    )
    table.add_row("bubble", f"{percent(document['bubble_fraction'])} of the step")
    shares = document.get("provenance") or {}
    table.add_row(
        "figures are", ", ".join(f"{percent(v)} {k}" for k, v in shares.items() if v) or "simulated"
    )
    return table


def throughput(document: Mapping[str, Any]) -> Text:
    """``3,260 tokens/s/GPU (80% interval 3,010 to 3,490)``."""
    text = Text.assemble((count(document["tokens_per_s_per_gpu"]), "bold"), " tokens/s/GPU")
    interval = document.get("interval80")
    if interval:
        low, high = interval["tokens_per_s_per_gpu"]
        text.append(f"  (80% interval {count(low)} to {count(high)})", style="dim")
    return text


def projection(document: Mapping[str, Any], *, head: RenderableType | None = None) -> Group:
    """The whole answer of ``shardwise project``."""
    parts: list[RenderableType] = [head, Text()] if head is not None else []
    if not document["legal"]:
        n = len(document["violations"])
        title = Text(
            f"illegal: {n} rule{'s' if n > 1 else ''} broken, so there is no figure", style="bold red"
        )
        return Group(*parts, title, violations(document["violations"]))
    parts += [verdict_line(document["memory"]), Text(), figures(document), Text()]
    parts += [Text("Where a step's time goes", style="bold"), time_bars(document["time_breakdown_s"]), Text()]
    return Group(*parts, stage_table(document["memory"]))
