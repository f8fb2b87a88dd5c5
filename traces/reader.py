"""Reading a trace back, and checking its chain.

:func:`read_trace` gives typed events and refuses junk with the line's number; :func:`verify` says
whether every line is the one that was written, in its place. A trace of an older schema is upgraded on
reading, one of a newer schema is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shardwise.engine.errors import ConfigError
from shardwise.engine.spec import one_line
from shardwise.traces.canonical import GENESIS, digest
from shardwise.traces.errors import TraceFormatError
from shardwise.traces.events import EVENTS, KINDS, SCHEMA_VERSION, Event

UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Version -> how an event of that version becomes one of the next. Formats are read for ever."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a trace is what was written."""

    intact: bool
    events: int
    """Whole events, up to the first problem."""
    problem: str | None = None
    """The first thing that is wrong, in one line."""

    def as_json(self) -> dict[str, Any]:
        return {"intact": self.intact, "events": self.events, "problem": self.problem}


def read_trace(path: str | os.PathLike[str]) -> list[Event]:
    """The events of the trace at ``path`` (a file, or a run folder that holds ``trace.jsonl``).

    Raises :class:`ConfigError` when there is no such file and :class:`TraceFormatError` with the line's
    number for what is no event. The chain is not checked: see :func:`verify`.
    """
    return [_event(data, line) for line, data in _lines(trace_file(path))]


def verify(path: str | os.PathLike[str]) -> Verification:
    """Recompute the chain of the trace at ``path``. Finds lines that were changed, dropped, added, moved
    or torn off in the middle. Whole events missing at the *end* leave a valid chain: ``result`` closes a
    finished run.
    """
    count, prev = 0, GENESIS
    try:
        for line, data in _lines(trace_file(path)):
            problem = _broken_link(data, count, prev)
            if problem:
                return Verification(False, count, f"line {line}: {problem}")
            _event(data, line)
            count, prev = count + 1, data["hash"]
    except TraceFormatError as err:
        return Verification(False, count, str(err))
    if not count:
        return Verification(False, 0, "the trace is empty")
    return Verification(True, count)


def trace_file(path: str | os.PathLike[str]) -> Path:
    """The trace file that ``path`` names: itself, or ``trace.jsonl`` in a run folder."""
    given = Path(path)
    file = given / "trace.jsonl" if os.path.isdir(given) else given
    if not os.path.isfile(file):
        raise ConfigError(f"TRACE = {str(given)!r}: no such trace file or run folder", field="trace")
    return file


def whole_lines(path: Path) -> tuple[int, int]:
    """``(bytes of whole lines, bytes of a torn last line)``. A line is whole when it ends in a newline and is
    JSON, the last of both being what a kill in the middle of a write leaves undone."""
    raw = path.read_bytes()
    kept = raw.rfind(b"\n") + 1
    last = raw[:kept].rstrip(b"\n").rfind(b"\n") + 1
    if kept and not _is_json(raw[last:kept]):
        kept = last
    return kept, len(raw) - kept


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        raw = path.read_bytes()
    except OSError as err:
        raise ConfigError(f"cannot read the trace {str(path)!r}: {err.strerror}", field="trace") from err
    parts = raw.split(b"\n")
    torn = parts.pop()
    for number, part in enumerate(parts, start=1):
        yield number, _object(part, number)
    if torn:
        raise TraceFormatError(f"torn: {len(torn)} bytes without an end of line", line=len(parts) + 1)


def _object(part: bytes, line: int) -> dict[str, Any]:
    try:
        data = json.loads(part.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as err:
        raise TraceFormatError(f"not JSON ({_brief(err)}): {_shown(part)}", line=line) from err
    if not isinstance(data, dict):
        raise TraceFormatError(f"not an event but a JSON {type(data).__name__}: {_shown(part)}", line=line)
    return data


def _event(data: dict[str, Any], line: int) -> Event:
    version = data.get("v")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise TraceFormatError(
            f"v = {version!r}: not a trace event (its schema version is a number from 1)", line=line
        )
    if version > SCHEMA_VERSION:
        raise TraceFormatError(
            f"v = {version}: written by a newer shardwise; this one reads up to {SCHEMA_VERSION}", line=line
        )
    while version < SCHEMA_VERSION:
        data = {**UPGRADES[version](data), "v": version + 1}
        version += 1
    kind = data.get("kind")
    if kind not in KINDS:
        raise TraceFormatError(f"kind = {kind!r}: not one of {', '.join(KINDS)}", line=line)
    try:
        return EVENTS.validate_python(data)
    except ValidationError as err:
        raise TraceFormatError(one_line(err, str(kind)).removeprefix(f"{kind}: "), line=line) from err


def _broken_link(data: dict[str, Any], count: int, prev: str) -> str | None:
    if data.get("seq") != count:
        return f"seq = {data.get('seq')!r}, expected {count}: events are missing, added or moved"
    if data.get("prev") != prev:
        return "does not follow the line before it (prev is another hash)"
    try:
        right = digest(data)
    except TraceFormatError as err:
        return str(err)
    return None if data.get("hash") == right else "its content was changed (the hash does not match)"


def _is_json(part: bytes) -> bool:
    try:
        json.loads(part.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _brief(err: Exception) -> str:
    return str(err).split(":")[0] if isinstance(err, json.JSONDecodeError) else type(err).__name__


def _shown(part: bytes) -> str:
    text = repr(part[:50].decode("utf-8", "replace"))
    return text if len(part) <= 50 else text[:-1] + "...'"
