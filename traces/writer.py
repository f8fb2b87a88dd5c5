"""Writing a trace: one line per event, on disk before the call returns, chained by hash.

A line is written whole, flushed and synced, so that a kill loses at most the line being written. Opening
an existing trace continues its chain; a torn last line is cut off and a note says so. Secrets are
redacted before the hash is taken, so they are neither in the file nor guessable from it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError

from shardwise.engine.errors import ConfigError
from shardwise.engine.spec import one_line
from shardwise.traces.canonical import GENESIS, canonical, digest, jsonable
from shardwise.traces.errors import TraceFormatError
from shardwise.traces.events import EVENTS, SCHEMA_VERSION, Event, as_data
from shardwise.traces.reader import read_trace, verify, whole_lines
from shardwise.traces.redact import known_secrets, redact


class TraceWriter:
    """Appends events to the trace at ``path`` (made, with its folder, if it is not there).

    ``clock`` gives seconds; ``t_s`` counts from the first event of the run, over interruptions too.
    ``secrets`` are values to redact wherever they occur, beside the secret variables of the environment.
    Use it as a context manager or :meth:`close` it. Raises :class:`ConfigError` when the file cannot be
    written or another process is writing it, :class:`TraceFormatError` when an existing file is no
    intact trace.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Callable[[], float] = time.monotonic,
        *,
        secrets: Iterable[str] = (),
        environ: dict[str, str] | None = None,
    ) -> None:
        self.path = Path(path)
        self.secrets: tuple[str, ...] = known_secrets(dict(os.environ) if environ is None else environ)
        """Values that are redacted wherever they occur."""
        self.hide(*secrets)
        self.counts: Counter[str] = Counter()
        """Events of each kind so far, those of earlier sittings included."""
        self.llm_calls = 0
        """Prompts that got an answer or failed for good; the number of the next prompt."""
        self._clock = clock
        self._lock = threading.Lock()
        self._seq = 0
        self._prev = GENESIS
        self._elapsed = 0.0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
        except OSError as err:
            raise ConfigError(
                f"cannot write the trace {str(self.path)!r}: {err.strerror}", field="trace"
            ) from err
        try:
            _lock_file(self._file.fileno(), self.path)
            torn = self._resume()
        except ConfigError:
            self._file.close()
            raise
        self._start = clock()
        if torn:
            self.append("note", topic="resume", text=f"a torn last line of {torn} bytes was cut off")

    def append(self, kind: str, **fields: Any) -> Event:
        """Write one event and return it, once it is on disk. Raises :class:`TraceFormatError` naming the
        field that does not belong to ``kind``, is missing, or has no JSON form (NaN, infinity).
        """
        with self._lock:
            if self._file.closed:
                raise TraceFormatError(f"the trace {str(self.path)!r} is closed")
            event = self._build(kind, fields)
            line = canonical(as_data(event)).encode() + b"\n"
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._seq, self._prev = event.seq + 1, event.hash
            self._count(event)
            return event

    def hide(self, *secrets: str) -> None:
        """Redact these values from now on."""
        known = set(self.secrets) | {secret for secret in secrets if secret}
        self.secrets = tuple(sorted(known, key=lambda value: (-len(value), value)))

    def close(self) -> None:
        """Close the file; the lock goes with it. Closing twice is harmless."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _build(self, kind: str, fields: dict[str, Any]) -> Event:
        try:
            plain = redact(jsonable(fields), self.secrets)
        except TraceFormatError as err:
            raise TraceFormatError(f"event {kind}: {err}") from err
        t_s = round(self._elapsed + self._clock() - self._start, 6)
        head = {
            "v": SCHEMA_VERSION,
            "seq": self._seq,
            "t_s": t_s,
            "prev": self._prev,
            "hash": "",
            "kind": kind,
        }
        if clash := sorted(set(plain) & set(head)):
            raise TraceFormatError(f"event {kind}: {clash[0]} is set by the writer")
        try:
            draft = EVENTS.validate_python({**plain, **head})
        except ValidationError as err:
            raise TraceFormatError(one_line(err, f"event {kind}")) from err
        return draft.model_copy(update={"hash": digest(as_data(draft))})

    def _count(self, event: Event) -> None:
        self.counts[event.kind] += 1
        if event.kind == "llm_response" or (event.kind == "error" and event.where == "llm"):
            self.llm_calls += 1

    def _resume(self) -> int:
        """Take up the chain of what is there; the bytes of a torn last line, which is cut off."""
        kept, torn = whole_lines(self.path)
        if torn:
            os.truncate(self.path, kept)
        found = verify(self.path)
        if not found.intact and kept:
            raise TraceFormatError(f"{self.path.name} was changed since it was written: {found.problem}")
        for event in read_trace(self.path):
            self._seq, self._prev, self._elapsed = event.seq + 1, event.hash, event.t_s
            self._count(event)
        return torn


def _lock_file(fd: int, path: Path) -> None:
    """Take the one writer's lock on the file; released when it is closed, even by a kill."""
    try:
        import fcntl
    except ImportError:  # no advisory locks on this system; the chain still shows two writers
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as err:
        raise ConfigError(f"the trace {str(path)!r} is being written by another run", field="trace") from err
