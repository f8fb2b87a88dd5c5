"""Published bus bandwidths of collectives beside the engine's.

    python benchmarks/collectives.py            a table for people
    python benchmarks/collectives.py --json     one JSON document

The points are nccl-tests, rccl-tests and DeepEP figures, each with its source in
``tests/data/bus_bandwidths.yaml``.
The engine runs with what was known before any measured training run (``engine/priors.yaml``), without the
launch that a call costs inside a training step. ``tests/engine/test_collectives_published.py`` holds every
point to its tolerance.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from shardwise.engine import catalog
from shardwise.engine.collectives import Network, dispatch_spread, place
from shardwise.engine.efficiency import priors

POINTS = Path(__file__).parents[1] / "tests" / "data" / "bus_bandwidths.yaml"
_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Point:
    """One published figure and ours, GB/s."""

    series: str
    op: str
    gpus: int
    message_bytes: int
    published: float
    ours: float
    tolerance: float
    source: str

    @property
    def error(self) -> float:
        """Ours over published, less one."""
        return self.ours / self.published - 1


def points() -> Iterator[Point]:
    """Every published point, in the file's order."""
    for series in yaml.safe_load(POINTS.read_text(encoding="utf-8")):
        for size, published in series["points"].items():
            gpus, ours = _ours(series, float(size))
            tolerance, source = float(series["tolerance"]), str(series["source"])
            yield Point(
                series["id"], series["op"], gpus, int(size), float(published), ours, tolerance, source
            )


def _ours(series: dict[str, Any], size: float) -> tuple[int, float]:
    cluster = catalog.cluster(series["cluster"])
    launch = float(series.get("host_us", 0.0)) * 1e-6
    efficiency = replace(priors().efficiency(cluster.gpu), collective_launch_s=launch)
    network = Network(cluster, efficiency)
    gpus = int(series.get("members", cluster.world_size))
    group = place(cluster, np.array([gpus]), np.array([1]))
    total = np.array([size])
    if series["op"] == "dispatch":
        # Logical bandwidth counts a token once per domain (or per rank inside one), the sender's own too.
        model = catalog.model(series["model"])
        spread = dispatch_spread(model, group)
        whole = spread.domains if group.domains[0] > 1 else spread.ranks
        counted = whole * group.domains / np.maximum(group.domains - 1, 1)
        return gpus, float(size * counted[0] / network.dispatch(total, group, model)[0]) / _GIGA
    seconds = float(getattr(network, series["op"])(total, group)[0])
    moved = size * (gpus - 1) / gpus * (2 if series["op"] == "all_reduce" else 1)
    return gpus, moved / seconds / _GIGA


def main() -> None:
    """Work out and print."""
    parser = argparse.ArgumentParser(description="Published bus bandwidths beside the engine's.")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    rows = list(points())
    if parser.parse_args().json:
        shown = [
            {"series": p.series, "op": p.op, "gpus": p.gpus, "message_bytes": p.message_bytes}
            | {"published_gb_per_s": p.published, "ours_gb_per_s": p.ours, "error": p.error}
            | {"tolerance": p.tolerance, "source": p.source}
            for p in rows
        ]
        sys.stdout.write(json.dumps(shown, indent=2) + "\n")
        return
    sys.stdout.write(
        f"{'series':22}{'op':16}{'GPUs':>5}{'MiB':>12}{'published':>11}{'ours':>9}{'error':>8}{'allowed':>9}\n"
    )
    for p in rows:
        sys.stdout.write(
            f"{p.series:22}{p.op:16}{p.gpus:>5}{p.message_bytes / 2**20:>12.3f}{p.published:>11.2f}"
            f"{p.ours:>9.2f}{p.error:>+8.1%}{p.tolerance:>9.0%}\n"
        )
    errors = np.abs([p.error for p in rows])
    sys.stdout.write(f"{len(rows)} points, median error {np.median(errors):.1%}, worst {errors.max():.1%}\n")


if __name__ == "__main__":
    main()
