"""A horizontal bar chart in text: label, bar, value, share."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from shardwise.cli.render.units import percent, seconds

BAR_WIDTH = 36


def time_bars(breakdown: Mapping[str, float], *, style: str = "cyan") -> Table:
    """Seconds per item, largest first; items below a thousandth of the whole are left out."""
    whole = sum(breakdown.values())
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    shown = [(name, value) for name, value in breakdown.items() if value > whole / 1000]
    shown.sort(key=lambda item: -item[1])
    longest = max((value for _, value in shown), default=1.0)
    for name, value in shown:
        cells = bar(value / longest)
        table.add_row(f"  {name}", Text(cells, style=style), seconds(value), percent(value / whole))
    return table


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of ``share`` (0 to 1) of ``width`` characters, at least one."""
    return _block() * max(1, round(width * share))


def _block() -> str:
    encoding = (sys.stdout.encoding or "ascii").lower()
    return "█" if encoding.startswith("utf") else "#"
