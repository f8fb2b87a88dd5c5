"""The trace as the graph writes it: a ``TraceWriter`` that can be wound back with the checkpoint.

A node that a kill interrupted runs again from its start. What it had already written is then written
"again": an event equal to the one on file at that place is recognised and skipped, so the trace of a
resumed run is that of an uninterrupted one. Where the second pass differs (only an LLM or a provider
can), a note says so and the trace goes on from there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardwise.traces import Event, TraceWriter, read_trace
from shardwise.traces.canonical import canonical, jsonable
from shardwise.traces.compare import QUIET_TOPICS
from shardwise.traces.events import EVENTS, as_data
from shardwise.traces.redact import redact

_UNCOMPARED = ("v", "seq", "t_s", "prev", "hash", "wall_s", "usage", "attempts", "model")


class Journal(TraceWriter):
    """Appends to the trace at ``path``; ``position`` counts the decisions told so far in this pass."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Callable[[], float] = time.monotonic,
        *,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self._recorded: list[Event] = []
        self.position = 0
        self._on_event = on_event
        super().__init__(path, clock)
        if Path(path).stat().st_size:
            self._recorded = [event for event in read_trace(path) if not _aside(as_data(event))]
        self.rewind(0)

    @property
    def behind(self) -> bool:
        """Whether an earlier pass has already told what comes next."""
        return self.position < len(self._recorded)

    def ahead(self) -> list[Event]:
        """What an earlier pass told from here on."""
        return self._recorded[self.position :]

    def told(self) -> list[Event]:
        """What was told up to here."""
        return self._recorded[: self.position]

    def rewind(self, position: int) -> None:
        """Go back (or on) to where a checkpoint was taken."""
        self.position = min(position, len(self._recorded))
        self.llm_calls = sum(
            event.kind == "llm_response" or (event.kind == "error" and event.where == "llm")
            for event in self.told()
        )

    def append(self, kind: str, **fields: Any) -> Event:
        """Write one event, or recognise it as the one already on file here."""
        if kind == "note" and fields.get("topic") in QUIET_TOPICS:
            return super().append(kind, **fields)
        if self.behind:
            known = self._recorded[self.position]
            if _comparable(as_data(known)) == self._comparable_new(kind, fields):
                self.rewind(self.position + 1)
                return known
            super().append("note", topic="resume", text="the resumed run goes on differently from here")
            self.rewind(len(self._recorded))
        event = super().append(kind, **fields)
        self._recorded.append(event)
        self.position += 1
        if self._on_event is not None:
            self._on_event(event)
        return event

    def _comparable_new(self, kind: str, fields: dict[str, Any]) -> str:
        head = {"seq": 0, "t_s": 0.0, "prev": "", "hash": "", "kind": kind}
        plain = redact(jsonable(fields), self.secrets)
        return _comparable(as_data(EVENTS.validate_python({**plain, **head})))


def _aside(data: dict[str, Any]) -> bool:
    return data["kind"] == "note" and data.get("topic") in QUIET_TOPICS


def _comparable(data: dict[str, Any]) -> str:
    return canonical({key: value for key, value in data.items() if key not in _UNCOMPARED})
