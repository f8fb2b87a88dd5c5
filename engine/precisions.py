"""Bytes of elements: 16-bit tensors and their quantised copies."""

from __future__ import annotations

import numpy as np

from shardwise.engine.lowering import Lowered
from shardwise.engine.recipe import PRECISIONS
from shardwise.engine.table import Floats

HALF = 2.0
"""Bytes of a BF16 or FP16 element."""

_SAVED_INPUT_BYTES: dict[str, float] = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8-delayed": 1.0,
    "fp8-tensorwise": 1.0,
    "fp8-blockwise": 1.03125,
    "mxfp8": 1.03125,
    "nvfp4": 0.5625,
}
"""Bytes per element of a linear's input kept for its weight gradient: the quantised copy, its scales
included (blocks of 128 with FP32, of 32 with E8M0, of 16 with E4M3)."""


def saved_input_bytes(low: Lowered) -> Floats:
    """Bytes per element of a saved linear input, by the row's precision (n,)."""
    return np.asarray([_SAVED_INPUT_BYTES[word] for word in PRECISIONS])[low.table.precision]
