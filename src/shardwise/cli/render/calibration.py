"""What a calibration run found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from shardwise.cli.render.units import percent


def calibration(fitted_on: Mapping[str, Any], moved: Mapping[str, Mapping[str, float]], out: str) -> Group:
    """Start and fitted value of each parameter, and how much the cases had to say about it."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("parameter")
    for head in ("start", "fitted", "informed"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, row in moved.items():
        table.add_row(name, f"{row['start']:.3g}", f"{row['fitted']:.3g}", percent(row["informed"]))
    return Group(
        Text(f"fitted on {fitted_on['cases']} cases of {', '.join(fitted_on['files'])}"),
        table,
        Text("informed: share of the prior's variance that the cases took away; 0% echoes the prior."),
        Text(f"written to {out}"),
    )
