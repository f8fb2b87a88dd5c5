"""How far the search's answer is from the best that an exhaustive sweep of the same space finds.

    python benchmarks/regret.py                              the workloads below, a few minutes
    python benchmarks/regret.py llama-3-8b@a100-80gb:1x8     others
    python benchmarks/regret.py --without-prior              the surrogate without agent/napkin.py

The search is the default one: heuristic proposer, 60 oracle calls. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from shardwise.agent import napkin
from shardwise.agent.baseline import choose_baseline
from shardwise.agent.request import TuneRequest
from shardwise.agent.searchspace import SearchSpace
from shardwise.agent.session import tune
from shardwise.agent.trial import recipe_of
from shardwise.engine.sweep import sweep
from shardwise.engine.table import Floats, Table

WORKLOADS = (
    "mixtral-8x22b@mi355x:4x8",
    "llama-3-70b@h100:8x8",
    "llama-3-8b@a100-80gb:1x8",
    "qwen3-30b-a3b@h200:2x8",
    "llama-3.1-405b@b200:32x8",
    "gpt-oss-120b@gb200:16x4",
    "qwen3-235b-a22b@mi300x:32x8",
    "deepseek-v3@h100:128x8",
)


def main() -> None:
    """Measure and print one line per workload."""
    parser = argparse.ArgumentParser(description="Gap between the search and an exhaustive sweep.")
    parser.add_argument("workloads", nargs="*", metavar="MODEL@CLUSTER", default=WORKLOADS)
    parser.add_argument("--without-prior", action="store_true", help="the surrogate knows no step time")
    options = parser.parse_args()
    if options.without_prior:
        napkin.log_time = _nothing
    for workload in options.workloads:
        model, _, cluster = workload.partition("@")
        request = TuneRequest.build({"model": model, "cluster": cluster})
        best = best_of_all(request)
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            result = tune(request, out=Path(folder) / "run")
        found = result.best["projection"]["tokens_per_s_per_gpu"] if result.best else 0.0
        sys.stdout.write(
            f"{workload:32} {100 * (1 - found / best):6.2f}% below the best  "
            f"{result.oracle_calls:3} calls  {time.perf_counter() - start:5.1f} s\n"
        )
        sys.stdout.flush()


def best_of_all(request: TuneRequest) -> float:
    """Tokens/s/GPU of the best recipe of the request's space."""
    baseline = choose_baseline(request)
    anchor = SearchSpace(request, baseline).anchor or baseline.fields
    return sweep(recipe_of(request, anchor), margin=request.margin, top=1).best[0].tokens_per_s_per_gpu


def _nothing(table: Table) -> Floats:
    return np.zeros(len(table))


if __name__ == "__main__":
    main()
