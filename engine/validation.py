"""Scores the engine against measured cases: one verdict per case, none dropped, and a summary.

The error is in throughput, ``100 x (predicted / measured - 1)``: positive means that the engine promises
more than was measured. Cases that cannot be scored say why and count in ``n``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from shardwise.engine.cases.architecture import case_model
from shardwise.engine.cases.interpret import Interpretation, interpret
from shardwise.engine.cases.labels import MemoryKind, groups, is_megatron, memory_reading, trust_flags
from shardwise.engine.cases.reading import Case, read_cases
from shardwise.engine.cases.scope import Unscorable
from shardwise.engine.errors import ConfigError
from shardwise.engine.flop_conventions import (
    convention,
    flops_per_token_as,
    measured_tokens_per_s,
    peak_tflops,
)
from shardwise.engine.legality import check
from shardwise.engine.projection import project
from shardwise.engine.recipe import Recipe
from shardwise.engine.results import MemoryReport, Projection, StageMemory, Violation
from shardwise.engine.scores import Row, summary
from shardwise.engine.units import GIB

METRICS = ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct")
"""Columns to compare with, the best first."""

DISAGREE_PCT = 5.0
"""A case whose tokens/s and TFLOP/s (or step time) differ by more is flagged ``rates-disagree``."""

STRUCTURAL_RULES = frozenset(
    {
        "world-size",
        "expert-world-size",
        "global-batch-size",
        "attention-heads",
        "pipeline-layers",
        "virtual-stages",
        "virtual-stages-pipeline",
        "experts",
        "precision",
    }
)
"""Rules of arithmetic and hardware, asked of every case. The others are Megatron-Core's own and would
reject runs that another framework has done."""

SPLIT_RULES = frozenset(
    {"pipeline-layers", "pipeline-uneven-split", "pipeline-split-options", "virtual-stages"}
)
"""Not asked where the recipe only approximates a hand-made pipeline layout."""


def validate(
    paths: Sequence[str | Path],
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Score every case of the files, in file order.

    ``jobs`` worker processes share the cases; the answer does not depend on it. ``progress`` is called with
    the number of cases done and the number of all. Raises :class:`ConfigError` for a file that cannot be
    read and for ``jobs`` below 1.
    """
    if jobs < 1:
        raise ConfigError(f"jobs = {jobs}: must be at least 1", field="jobs")
    cases = [case for path in paths for case in read_cases(path)]
    rows: list[Row] = []
    for row in _rows(cases, jobs):
        rows.append(row)
        if progress is not None:
            progress(len(rows), len(cases))
    return {"cases": [row.as_json() for row in rows], "summary": summary(rows)}


def _rows(cases: Sequence[Case], jobs: int) -> Iterable[Row]:
    if jobs == 1 or len(cases) < 2:
        return map(score, cases)
    return _parallel(cases, min(jobs, len(cases)))


def _parallel(cases: Sequence[Case], jobs: int) -> Iterator[Row]:
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(score, cases, chunksize=max(min(len(cases) // (4 * jobs), 64), 1))


def score(case: Case) -> Row:
    """One case: interpreted, checked, projected and held against what was measured.

    An engine fault on one case is reported as that case's ``error`` and does not end the others.
    """
    row = Row(case.id, groups(case), _measured(case), flags=list(trust_flags(case)))
    read = interpret(case)
    if isinstance(read, Unscorable):
        return row.ended(read.status, read.reason)
    row.assumptions = list(read.assumptions)
    broken = _violations(case, read)
    if broken:
        return row.ended("illegal", "; ".join(f"{v.rule}: {v.message}" for v in broken))
    try:
        projection = project(read.recipe, check_legality=False)
    except Exception as err:
        return row.ended("error", f"{type(err).__name__}: {err}")
    _compare(row, case, read, projection)
    return row


def _measured(case: Case) -> dict[str, Any]:
    return case.measured.model_dump(mode="json")


def _violations(case: Case, read: Interpretation) -> list[Violation]:
    violations = check(read.recipe)
    recipe = read.recipe
    if recipe.num_layers_in_first_pipeline_stage or recipe.num_layers_in_last_pipeline_stage:
        violations = tuple(v for v in violations if v.rule not in SPLIT_RULES)
    if not is_megatron(case):
        violations = tuple(v for v in violations if v.rule in STRUCTURAL_RULES)
    return list(violations)


def _compare(row: Row, case: Case, read: Interpretation, projection: Projection) -> None:
    recipe, measured = read.recipe, case.measured
    memory, tokens, step = projection.memory, projection.tokens_per_s_per_gpu, projection.step_time_s
    assert memory is not None and tokens is not None and step is not None
    model = case_model(case, [])
    per_token = flops_per_token_as(convention(case, model, recipe.pp), model, recipe.seq_len)
    tflops = tokens * per_token / 1e12
    row.predicted = {
        "tokens_per_s_per_gpu": tokens,
        "tflops_per_gpu": tflops,
        "step_time_s": step,
        "mfu_pct": 100 * tflops / peak_tflops(case, recipe),
        "peak_mem_gib": memory.peak_bytes / GIB,
        "oom": memory.verdict == "out of memory",
    }
    row.out_of_memory, row.verdict = bool(measured.oom), memory.verdict
    if measured.oom:
        return
    if measured.peak_mem_gib:
        predicted = _matching_memory(case, memory)
        row.memory_error_pct = 100 * (predicted / measured.peak_mem_gib - 1)
    stated = measured_rates(case, recipe)
    if not stated:
        return
    row.metric, actual = next(iter(stated.items()))
    row.error_pct = 100 * (tokens / actual - 1)
    if projection.interval80 is not None:
        low, high = projection.interval80
        row.inside_interval80 = low <= actual <= high
    if any(abs(rate / actual - 1) * 100 > DISAGREE_PCT for rate in stated.values()):
        row.flags.append("rates-disagree")


def measured_rates(case: Case, recipe: Recipe) -> dict[str, float]:
    """Every throughput that the case states, as tokens/s/GPU, by its column, the best column first.

    Step time is converted with the recipe's batch, TFLOP/s and MFU with the source's FLOP convention.
    Empty for a case that ran out of memory or gives no throughput.
    """
    measured = case.measured
    if measured.oom:
        return {}
    rates: dict[str, float | None] = dict.fromkeys(METRICS)
    if measured.step_time_s:
        rates["step_time_s"] = recipe.gbs * recipe.seq_len / measured.step_time_s / recipe.world_size
    rates["tokens_per_s_per_gpu"] = measured.tokens_per_s_per_gpu
    converted = measured_tokens_per_s(case, recipe, case_model(case, []))
    rates["tflops_per_gpu" if measured.tflops_per_gpu else "mfu_pct"] = converted
    return {name: rate for name, rate in rates.items() if rate}


def _matching_memory(case: Case, memory: MemoryReport) -> float:
    """GiB that the engine says for what the source measured: which rank, and how much of the device."""
    kind, where = memory_reading(case)
    stages = {"first": memory.stages[:1], "last": memory.stages[-1:]}.get(where, memory.stages)
    return max(_torch_figure(stage, kind) for stage in stages) / GIB


def _torch_figure(stage: StageMemory, kind: MemoryKind) -> int:
    return {"device": stage.total, "reserved": stage.reserved, "allocated": stage.allocated}[kind]
