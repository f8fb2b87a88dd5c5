"""Writing and reading: every line is on disk, chained, typed; damage is found and told."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwise.engine.errors import ConfigError
from shardwise.traces import TraceFormatError, TraceWriter, read_trace, verify
from shardwise.traces import reader as reader_module
from shardwise.traces.canonical import GENESIS, canonical, digest
from shardwise.traces.events import EVENTS, KINDS

EXAMPLES: dict[str, dict[str, Any]] = {
    "request": {"request": {"model": "m"}, "text": "tune m", "llm": "heuristic", "versions": {"engine": "1"}},
    "plan": {"baseline": {"tp": 1}, "candidates": [{"mbs": 2}], "text": "sweep"},
    "prompt": {"number": 0, "request_hash": "00", "messages": [{"role": "user", "content": "hi"}]},
    "llm_response": {"number": 0, "request_hash": "00", "message": {"content": "ho"}},
    "tool_call": {"name": "memory", "args": {"tp": 2}, "call_id": "c1"},
    "tool_result": {"name": "memory", "content": {"verdict": "fits"}, "call_id": "c1"},
    "candidate": {"changes": {"mbs": 2}, "origin": "planner", "rationale": "more work per kernel"},
    "rejection": {"by": "memory", "message": "needs 300 GiB of 288"},
    "projection": {"key": "ab", "recipe": {"tp": 1}, "figures": {"tokens_per_s_per_gpu": 1.5}},
    "reflection": {"text": "mbs helps"},
    "note": {"text": "x"},
    "fallback": {"provider": "openai:x", "reason": "HTTP 500"},
    "budget": {"used": {"calls": 3}},
    "error": {"message": "boom"},
    "result": {"best": {"recipe": {}}, "gain_pct": 1.25},
}


def write(path: Path, *notes: str) -> None:
    with TraceWriter(path, environ={}) as writer:
        for text in notes:
            writer.append("note", text=text)


def test_every_kind_is_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "run" / "trace.jsonl"
    assert set(EXAMPLES) == set(KINDS)
    with TraceWriter(path, environ={}) as writer:
        written = [writer.append(kind, **fields) for kind, fields in EXAMPLES.items()]
        assert writer.counts["note"] == 1
    assert read_trace(path) == written == read_trace(path.parent)
    assert verify(path).as_json() == {"intact": True, "events": len(KINDS), "problem": None}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["prev"] == GENESIS
    assert all(b["prev"] == a["hash"] == digest(a) for a, b in pairwise(lines))
    assert [line["seq"] for line in lines] == list(range(len(lines)))


def test_same_events_and_clock_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        ticks = iter(range(1000))
        with TraceWriter(tmp_path / name, lambda ticks=ticks: float(next(ticks)), environ={}) as writer:
            for kind, fields in EXAMPLES.items():
                writer.append(kind, **dict(reversed(fields.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_event_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t", environ={}) as writer:
        for number in range(3):
            writer.append("note", text=str(number))
            assert len((tmp_path / "t").read_bytes().splitlines()) == number + 1


def test_time_counts_from_the_start_over_interruptions(tmp_path: Path) -> None:
    for start in (100.0, 7.0):
        now = [start]
        with TraceWriter(tmp_path / "t", lambda now=now: now[0], environ={}) as writer:
            now[0] += 2.5
            writer.append("note", text="x")
    assert [event.t_s for event in read_trace(tmp_path / "t")] == [2.5, 5.0]


def test_resuming_continues_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, "one", "two")
    write(path, "three")
    assert [event.text for event in read_trace(path)] == ["one", "two", "three"]
    assert verify(path).events == 3


def test_a_changed_trace_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, "one", "two")
    path.write_text(path.read_text().replace("two", "2"))
    with pytest.raises(TraceFormatError, match="line 2: its content was changed"):
        TraceWriter(path)


@pytest.mark.parametrize("tail", [b'{"v":1,"kind":"no', b"\xff\xfe\n", b"{", b'{"half": \n'])
def test_a_torn_last_line_is_cut_off_and_recorded(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "t"
    write(path, "one")
    with path.open("ab") as file:
        file.write(tail)
    assert not verify(path).intact
    write(path, "two")
    events = read_trace(path)
    assert [event.text for event in events] == [
        "one",
        f"a torn last line of {len(tail)} bytes was cut off",
        "two",
    ]
    assert events[1].topic == "resume"
    assert verify(path).intact


def test_a_lone_torn_line_leaves_an_empty_trace(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b'{"v":1')
    write(tmp_path / "t", "one")
    assert len(read_trace(tmp_path / "t")) == 2


def _write_for_ever(path: str) -> None:
    with TraceWriter(path, environ={}) as writer:
        while True:
            writer.append("note", text="x" * 2000)


def test_a_kill_loses_at_most_the_line_being_written(tmp_path: Path) -> None:
    path = tmp_path / "t"
    child = multiprocessing.get_context("spawn").Process(target=_write_for_ever, args=(str(path),))
    child.start()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not (path.exists() and path.stat().st_size > 50_000):
        time.sleep(0.01)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(10)
    write(path, "after")
    assert verify(path).intact
    assert read_trace(path)[-1].text == "after"


def test_two_writers_of_one_trace_are_refused(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t", environ={}), pytest.raises(ConfigError, match="written by another run"):
        TraceWriter(tmp_path / "t", environ={})
    write(tmp_path / "t", "free again")


def test_threads_share_a_writer(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t", environ={}) as writer:
        threads = [
            threading.Thread(target=lambda: [writer.append("note", text="x") for _ in range(20)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert verify(tmp_path / "t").events == 80


def test_numpy_tuples_and_half_characters_are_written_as_plain_json(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t", environ={}) as writer:
        event = writer.append(
            "budget", used={"f": np.float64(0.5), "i": np.int64(3), "t": (1, 2), "s": "\ud83d!"}
        )
    assert event.used == {"f": 0.5, "i": 3, "t": [1, 2], "s": "\ufffd!"}
    assert read_trace(tmp_path / "t") == [event]


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("note", {"text": "x", "colour": "red"}, "colour"),
        ("note", {}, "text"),
        ("note", {"text": 3}, "text = 3"),
        ("dance", {}, "dance"),
        ("note", {"text": "x", "seq": 4}, "seq is set by the writer"),
        ("budget", {"used": {"x": math.nan}}, "budget"),
        ("budget", {"used": {"x": math.inf}}, "budget"),
        ("budget", {"used": {"x": object()}}, "object has no JSON form"),
    ],
)
def test_a_wrong_event_is_refused_in_one_line(
    tmp_path: Path, kind: str, fields: dict[str, Any], says: str
) -> None:
    with TraceWriter(tmp_path / "t", environ={}) as writer:
        with pytest.raises(TraceFormatError) as caught:
            writer.append(kind, **fields)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)
        writer.append("note", text="still fine")
    assert verify(tmp_path / "t").as_json() == {"intact": True, "events": 1, "problem": None}


def test_a_closed_trace_and_a_bad_place_are_refused(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t", environ={})
    writer.close()
    writer.close()
    with pytest.raises(TraceFormatError, match="closed"):
        writer.append("note", text="x")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write the trace"):
        TraceWriter(tmp_path / "file" / "t", environ={})


JUNK = [
    (b"not json\n", "line 1: not JSON"),
    (b"[1]\n", "line 1: not an event but a JSON list"),
    (b"\n", "line 1: not JSON"),
    (b'{"v": 1}\n', "kind = None"),
    (b'{"v": 1, "kind": "dance"}\n', "kind = 'dance'"),
    (b'{"kind": "note"}\n', "v = None"),
    (b'{"v": true, "kind": "note"}\n', "v = True"),
    (b'{"v": 2, "kind": "note"}\n', "newer shardwise"),
    (b'{"v": 1, "kind": "note", "seq": NaN}\n', "not JSON"),
    (b'{"v": 1, "kind": "note", "seq": 0}\n', "line 1"),
    (b"[" * 100_000 + b"\n", "not JSON"),
    (b"\xff\xfe\n", "not JSON"),
    (b'{"v": 1, "kind": "note"', "line 1: torn"),
]


@pytest.mark.parametrize(("junk", "says"), JUNK, ids=[says for _, says in JUNK])
def test_junk_is_refused_with_its_line(tmp_path: Path, junk: bytes, says: str) -> None:
    (tmp_path / "t").write_bytes(junk)
    with pytest.raises(TraceFormatError) as caught:
        read_trace(tmp_path / "t")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert not verify(tmp_path / "t").intact


def test_no_trace_at_all(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="no such trace"):
            read_trace(place)
        with pytest.raises(ConfigError, match="no such trace"):
            verify(place)
    (tmp_path / "empty").write_bytes(b"")
    assert verify(tmp_path / "empty").as_json() == {
        "intact": False,
        "events": 0,
        "problem": "the trace is empty",
    }


def test_an_older_schema_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t", "old words")
    monkeypatch.setattr(reader_module, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(
        reader_module,
        "UPGRADES",
        {1: lambda e: {**e, "text": e["text"].upper()}, 2: lambda e: {**e, "topic": "upgraded"}},
    )
    event = read_trace(tmp_path / "t")[0]
    assert (event.v, event.text, event.topic) == (3, "OLD WORDS", "upgraded")
    assert verify(tmp_path / "t").intact


def test_a_trace_of_schema_1_reads_for_ever() -> None:
    """A file as the first release wrote it; it must never need a change."""
    events = read_trace(Path(__file__).parent / "data" / "schema_1.jsonl")
    assert [event.kind for event in events] == list(KINDS[: len(events)])
    assert verify(Path(__file__).parent / "data" / "schema_1.jsonl").events == len(events) == 15


DAMAGE = {
    "changed": lambda lines: [lines[0], lines[1].replace(b"two", b"TWO"), lines[2]],
    "dropped": lambda lines: [lines[0], lines[2]],
    "first dropped": lambda lines: lines[1:],
    "moved": lambda lines: [lines[1], lines[0], lines[2]],
    "doubled": lambda lines: [lines[0], lines[0], lines[1]],
    "junk added": lambda lines: [*lines, b"{}"],
    "rehashed": lambda lines: [lines[0], _rehash(lines[1]), lines[2]],
}


def _rehash(line: bytes) -> bytes:
    event = {**json.loads(line), "text": "forged"}
    return canonical({**event, "hash": digest(event)}).encode()


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_found(tmp_path: Path, how: str) -> None:
    write(tmp_path / "t", "one", "two", "three")
    lines = (tmp_path / "t").read_bytes().splitlines()
    (tmp_path / "t").write_bytes(b"\n".join(DAMAGE[how](lines)) + b"\n")
    found = verify(tmp_path / "t")
    assert not found.intact
    assert found.problem is not None
    assert found.problem.startswith("line ")


def test_any_flipped_bit_is_found(tmp_path: Path) -> None:
    write(tmp_path / "t", "one", "two")
    whole = (tmp_path / "t").read_bytes()
    for position in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        (tmp_path / "t").write_bytes(bytes(damaged))
        assert not verify(tmp_path / "t").intact, position


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_written_reads_back_equal(tmp_path: Path, data: dict[str, Any]) -> None:
    path = tmp_path / "t"
    path.unlink(missing_ok=True)
    with TraceWriter(path, environ={}) as writer:
        event = writer.append("note", text="x", data=data)
    assert read_trace(path) == [event]
    assert verify(path).intact


@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(str.encode)
    | json_values.map(json.dumps).map(str.encode)
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reading_junk_never_fails_otherwise(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "t").write_bytes(junk + b"\n")
    with pytest.raises(TraceFormatError):
        read_trace(tmp_path / "t")
    assert not verify(tmp_path / "t").intact


def test_events_are_frozen() -> None:
    event = EVENTS.validate_python(
        {"kind": "note", "text": "x", "seq": 0, "t_s": 0.0, "prev": "", "hash": ""}
    )
    with pytest.raises(ValueError, match="frozen"):
        event.text = "y"  # type: ignore[misc]
