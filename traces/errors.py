"""What can be wrong with a trace file."""

from __future__ import annotations

from shardwise.engine.errors import ConfigError


class TraceFormatError(ConfigError):
    """A line of a trace cannot be read or an event cannot be written; ``line`` counts from 1."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}", field="trace")
        self.line = line
