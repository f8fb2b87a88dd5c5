"""Units that people read; inside, everything is SI."""

from __future__ import annotations

GIB = 2**30
"""Bytes of a GiB."""
