"""Two traces side by side: the first decision in which they differ, in words.

Compared is what was asked, proposed, rejected, computed and answered; not when, how long, under which
ids or in which folder. Notes of an interruption (topic ``resume``) and of a retry, and a prompt that was
cut off and asked again, are no decisions either.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from shardwise.traces.canonical import canonical
from shardwise.traces.events import Event, NoteEvent, PromptEvent, RequestEvent, as_data
from shardwise.traces.reader import read_trace

_CLOCKS = ("t_s", "wall_s", "seconds", "date")
_CHAIN = ("v", "seq", "prev", "hash")
_PLACES = ("run_id", "run", "run_dir", "out", "trace", "message_id", "attempts")
TRANSIENT = frozenset((*_CLOCKS, *_CHAIN, *_PLACES))
"""Fields that two equal runs may have different, at any depth."""

ID_FIELDS = frozenset({"id", "call_id", "tool_call_id"})
"""Random ids: compared by the order in which they first appear."""

PROPOSER_FIELDS = frozenset(("llm", "base_url"))
"""Who proposes: not compared when one side is a replay, which answers in the other's name."""

QUIET_TOPICS = frozenset({"resume", "retry"})
"""Topics of notes that tell of the machinery and not of a decision."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between two traces."""

    event: int
    """Position among the compared events, from 0."""
    kind: str
    """Kind of that event (the first trace's, or the second's when the first has ended)."""
    field: str
    """Dotted path of the field; empty when a whole event is there on one side only."""
    then: Any
    now: Any
    words: str
    """All of it in one line."""

    def as_json(self) -> dict[str, Any]:
        return {
            "event": self.event, "kind": self.kind, "field": self.field,
            "then": self.then, "now": self.now, "words": self.words,
        }  # fmt: skip

    def __str__(self) -> str:
        return self.words


Trace = str | os.PathLike[str] | Iterable[Event]


def diff(then: Trace, now: Trace) -> Difference | None:
    """The first difference between two traces (paths or events), or None when they tell the same run."""
    events = _read(then), _read(now)
    replayed = any(_is_replay(event) for side in events for event in side)
    old, new = (decisions(side, skip=PROPOSER_FIELDS if replayed else frozenset()) for side in events)
    for index, (was, is_) in enumerate(zip_longest(old, new)):
        if was is None or is_ is None:
            kind = str((was or is_ or {}).get("kind"))
            side = "ends here now; then came" if is_ is None else "ended here then; now comes"
            words = f"event {index}: the trace {side} {_event_words(was or is_ or {})}"
            return Difference(index, kind, "", was, is_, words)
        if was["kind"] != is_["kind"]:
            words = f"event {index}: then {_event_words(was)}, now {_event_words(is_)}"
            return Difference(index, was["kind"], "kind", was["kind"], is_["kind"], words)
        if was != is_:
            path, a, b = _first(was, is_, "")
            words = f"event {index} ({was['kind']}): {path} was {_shown(a)}, is {_shown(b)}"
            return Difference(index, was["kind"], path, a, b, words)
    return None


def decisions(trace: Trace, skip: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """The events that count, as plain data without ``skip`` and what may differ between equal runs."""
    events = _read(trace)
    order: dict[str, str] = {}
    return [
        _normal(as_data(event), order, TRANSIENT | skip)
        for index, event in enumerate(events)
        if not _quiet(events, index)
    ]


def _read(trace: Trace) -> list[Event]:
    return list(read_trace(trace) if isinstance(trace, (str, os.PathLike)) else trace)


def _is_replay(event: Event) -> bool:
    return isinstance(event, RequestEvent) and event.llm.startswith("replay:")


def _quiet(events: list[Event], index: int) -> bool:
    event = events[index]
    if isinstance(event, NoteEvent):
        return event.topic in QUIET_TOPICS
    if isinstance(event, PromptEvent):
        later = (events[i] for i in range(index + 1, len(events)))
        following = next((e for e in later if e.kind in ("prompt", "llm_response", "error")), None)
        return isinstance(following, PromptEvent) and following.number == event.number
    return False


def _normal(value: Any, order: dict[str, str], skip: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _ordinal(item, order)
            if key in ID_FIELDS and isinstance(item, str)
            else _normal(item, order, skip)
            for key, item in value.items()
            if key not in skip
        }
    if isinstance(value, list):
        return [_normal(item, order, skip) for item in value]
    return value


def _ordinal(identifier: str, order: dict[str, str]) -> str:
    return order.setdefault(identifier, f"id-{len(order)}") if identifier else ""


def _first(was: Any, is_: Any, path: str) -> tuple[str, Any, Any]:
    """The first place, in sorted order, where two unequal values differ."""
    if isinstance(was, dict) and isinstance(is_, dict):
        for key in sorted({*was, *is_}):
            if key not in was or key not in is_ or was[key] != is_[key]:
                return _first(was.get(key), is_.get(key), f"{path}.{key}" if path else key)
    if isinstance(was, list) and isinstance(is_, list):
        for index, (a, b) in enumerate(zip_longest(was, is_)):
            if a != b:
                return _first(a, b, f"{path}[{index}]")
    return path, was, is_


def _event_words(event: Mapping[str, Any]) -> str:
    kind = str(event.get("kind"))
    gist = next(
        (event[key] for key in ("changes", "key", "text", "message", "name", "number") if event.get(key)),
        None,
    )
    return f"{_article(kind)} {kind}" + (f" ({_shown(gist)})" if gist is not None else "")


def _article(word: str) -> str:
    return "an" if word[:1] in "aeiou" or word.startswith("llm") else "a"


def _shown(value: Any) -> str:
    if value is None:
        return "absent"
    text = canonical(value)
    return text if len(text) <= 100 else text[:97] + "..."
