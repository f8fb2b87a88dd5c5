"""The trace of a run: its events, writing, reading, checking, comparing and telling it."""

from __future__ import annotations

from shardwise.traces.compare import Difference, diff
from shardwise.traces.errors import TraceFormatError
from shardwise.traces.events import SCHEMA_VERSION, Event
from shardwise.traces.reader import Verification, read_trace, verify
from shardwise.traces.redact import redact
from shardwise.traces.story import story
from shardwise.traces.writer import TraceWriter

__all__ = [
    "SCHEMA_VERSION",
    "Difference",
    "Event",
    "TraceFormatError",
    "TraceWriter",
    "Verification",
    "diff",
    "read_trace",
    "redact",
    "story",
    "verify",
]
