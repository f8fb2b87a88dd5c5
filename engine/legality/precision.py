"""Which number formats the GPU has, and what FP8 parameters need."""

from __future__ import annotations

import numpy as np

from shardwise.engine.cluster import GPU
from shardwise.engine.legality.rule import Fix, Rule, everywhere
from shardwise.engine.legality.suggest import change
from shardwise.engine.recipe import MATRIX_FORMAT, PRECISIONS, Recipe
from shardwise.engine.table import Bools, Table

_WIDER = ("nvfp4", "mxfp8", "fp8-blockwise", "fp8-tensorwise", "fp8-delayed", "bf16", "fp16")


def supported_precisions(gpu: GPU) -> tuple[str, ...]:
    """Recipe precisions whose matrix format ``gpu`` has, in the order of ``PRECISIONS``."""
    return tuple(word for word in PRECISIONS if MATRIX_FORMAT[word] in gpu.peak_flops)


def _supported(table: Table) -> Bools:
    words = supported_precisions(table.cluster.gpu)
    return ~table.is_word("precision", *words) if words else everywhere(table, True)


def _explain_supported(r: Recipe) -> Fix:
    gpu = r.cluster.gpu
    allowed = supported_precisions(gpu)
    what = f"precision={r.precision} is not supported by {gpu.name} (allowed: {', '.join(allowed) or 'none'})"
    start = _WIDER.index(r.precision)
    choice = next((word for word in (*_WIDER[start:], *_WIDER) if word in allowed), None)
    return change(what, precision=choice) if choice else (what, {})


_FP8 = tuple(word for word, matrix in MATRIX_FORMAT.items() if matrix in ("fp8", "mxfp8"))


def _param_gather(table: Table) -> Bools:
    possible = table.is_word("precision", *_FP8) & ~table.is_word("dp_sharding", "none")
    return np.asarray(table.fp8_param_gather & ~possible)


def _explain_param_gather(r: Recipe) -> Fix:
    what = (
        "fp8_param_gather=true needs an FP8 precision and a sharded optimizer, "
        f"not precision={r.precision} with dp_sharding={r.dp_sharding}"
    )
    return change(what, fp8_param_gather=False)


RULES = (
    Rule(
        "precision",
        "MC-120, TT-19 the matrix formats of the GPU",
        ("precision",),
        _supported,
        _explain_supported,
        framework="hardware",
    ),
    Rule(
        "fp8-parameters",
        "MC-120, MC-122 megatron/training/arguments.py",
        ("fp8_param_gather", "precision", "dp_sharding"),
        _param_gather,
        _explain_param_gather,
    ),
)
