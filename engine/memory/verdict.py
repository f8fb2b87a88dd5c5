"""From a peak to a verdict."""

from __future__ import annotations

from shardwise.engine.results import DEFAULT_MARGIN, Verdict

TIGHT = 1.0 - DEFAULT_MARGIN
"""From this share of the capacity on a recipe is ``tight``."""


def verdict(peak_bytes: float, capacity_bytes: float) -> Verdict:
    """``fits``, ``tight`` or ``out of memory``."""
    if peak_bytes > capacity_bytes:
        return "out of memory"
    return "tight" if peak_bytes > TIGHT * capacity_bytes else "fits"


def usable_bytes(capacity_bytes: int, margin: float) -> float:
    """What a peak may fill when ``margin``, a share of the capacity, must stay free."""
    return capacity_bytes * (1.0 - margin)
