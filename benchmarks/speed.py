"""How fast the engine and the command line are on this machine.

    python benchmarks/speed.py            a table for people
    python benchmarks/speed.py --json     one JSON document
    python benchmarks/speed.py --quick    smaller tables, for continuous integration

Figures depend on the machine and on what else it does; compare them with each other (see the
``ratios``), not with a limit. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.engine.projection import project, project_table
from shardwise.engine.recipe_io import load_recipe
from shardwise.engine.space import default_axes, legal_space
from shardwise.engine.table import Table
from shardwise.memory_filter import filter_table

RECIPE = {
    "model": "mixtral-8x22b",
    "cluster": "mi355x:4x8",
    "pp": 4,
    "ep": 8,
    "mbs": 2,
    "gbs": 128,
    "seq_len": 8192,
}
CHUNK = 8192
"""Rows per call, so that the arrays stay in cache; what the sweep uses too."""
_MODULES = (
    "import sys; from shardwise.cli.main import run; run(['--help']); "
    "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How fast shardwise is on this machine.")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--quick", action="store_true", help="smaller tables")
    options = parser.parse_args()
    rows = 20_000 if options.quick else 100_000
    figures = {**engine_figures(rows), **command_line_figures(3 if options.quick else 7)}
    if options.json:
        sys.stdout.write(json.dumps(figures, indent=2) + "\n")
        return
    for name, value in figures.items():
        shown = (
            " ".join(value)
            if isinstance(value, list)
            else f"{value:,.4g}"
            if value < 1e4
            else f"{value:,.0f}"
        )
        sys.stdout.write(f"{name:32} {shown}\n")


def engine_figures(rows: int) -> dict[str, Any]:
    """One projection, a table of projections, a table of memory verdicts."""
    recipe = load_recipe(RECIPE)
    single = timed(lambda: project(recipe), repeat=100)
    table = sample(rows)
    projected = timed(lambda: [project_table(part) for part in chunks(table)], repeat=1)
    verdicts = timed(lambda: filter_table(table), repeat=3)
    return {
        "projection_ms": 1e3 * single,
        "table_rows": rows,
        "table_s": projected,
        "projections_per_s": rows / projected,
        "memory_verdicts_per_s": rows / verdicts,
        "ratio_single_to_row": single / (projected / rows),
    }


def command_line_figures(repeat: int) -> dict[str, Any]:
    """Starting the command line in a fresh process, and what that imports."""
    help_ = [sys.executable, "-m", "shardwise", "--help"]
    empty = [sys.executable, "-c", "pass"]
    started = [_process_s(help_) for _ in range(repeat)]
    bare = min(_process_s(empty) for _ in range(repeat))
    done = subprocess.run([sys.executable, "-c", _MODULES], capture_output=True, text=True, check=True)
    standard = set(sys.stdlib_module_names)
    imported = [name for name in done.stderr.split() if name not in standard and not name.startswith("_")]
    return {
        "help_s_first": started[0],
        "help_s_best": min(started),
        "help_s_median": statistics.median(started),
        "ratio_help_to_python": min(started) / bare,
        "help_imports": imported,
    }


def sample(rows: int) -> Table:
    """``rows`` legal recipes, evenly drawn from the whole space of the benchmark's recipe."""
    base = load_recipe(RECIPE)
    space = legal_space(base, default_axes(base))
    index = np.linspace(0, len(space) - 1, rows).astype(np.int64)
    return space.take(index)


def chunks(table: Table) -> list[Table]:
    """The table in parts of ``CHUNK`` rows."""
    return [table.take(np.arange(at, min(at + CHUNK, len(table)))) for at in range(0, len(table), CHUNK)]


def timed(work: Callable[[], object], *, repeat: int) -> float:
    """Median seconds of ``work`` after one warm-up call."""
    work()
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _process_s(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
