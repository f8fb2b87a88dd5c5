"""What a calibration run found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from shardwise.cli.render.units import percent


def calibration(document: Mapping[str, Any], moved: Mapping[str, Mapping[str, float]], out: str) -> Group:
    """Start and fitted value of each parameter, how much the cases had to say about it, and how well a fit
    without a case's kind predicts it."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("parameter")
    for head in ("start", "fitted", "informed"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, row in moved.items():
        table.add_row(name, f"{row['start']:.3g}", f"{row['fitted']:.3g}", percent(row["informed"]))
    fitted_on = document["fitted_on"]
    return Group(
        Text(f"fitted on {fitted_on['cases']} cases of {', '.join(fitted_on['files'])}"),
        table,
        Text("informed: share of the prior's variance that the cases took away; 0% echoes the prior."),
        cross_validation(document["cross_validation"]),
        Text(f"written to {out}"),
    )


def cross_validation(found: Mapping[str, Any]) -> Group:
    """Errors by what was left out, beside predictions without physics; and how well the fit ranks."""
    table = Table(box=box.SIMPLE_HEAD)
    for head in ("left out", "predicted by", "models"):
        table.add_column(head)
    for head in ("n", "median", "p90", "bias"):
        table.add_column(head, justify="right", no_wrap=True)
    for split, predictors in found["errors"].items():
        for predictor, by_kind in predictors.items():
            for kind, row in by_kind.items():
                table.add_row(
                    split,
                    predictor,
                    kind,
                    str(row["n"]),
                    *(f"{row[name]:.1f}%" for name in ("median", "p90")),
                    f"{row['bias']:+.1f}%",
                )
    lines = [
        f"{kind}: {row['right_pct']:.0f}% of {row['pairs']} pairs of one model in the right order; over "
        f"{row['sweeps']} layout sweeps Kendall's tau {row['median_tau']:.2f}, the best pick "
        f"{row['median_gap_pct']:.1f}% under the measured best"
        for kind, row in found["ranking"].items()
    ]
    return Group(table, *map(Text, lines))
