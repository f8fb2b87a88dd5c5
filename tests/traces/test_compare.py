"""Comparing traces: blind to time, ids and folders; exact about every decision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwise.traces import TraceWriter, diff, read_trace

Writing = list[tuple[str, dict[str, Any]]]

RUN: Writing = [
    ("request", {"request": {"model": "m", "out": "runs/a"}, "llm": "openai:x", "run_id": "r1"}),
    (
        "prompt",
        {
            "number": 0,
            "request_hash": "00",
            "messages": [{"role": "user", "content": "go"}],
            "model": "openai:x",
        },
    ),
    (
        "llm_response",
        {
            "number": 0,
            "request_hash": "00",
            "message": {
                "content": "",
                "tool_calls": [{"name": "memory", "args": {"tp": 2}, "id": "call_abc"}],
            },
            "wall_s": 1.5,
            "attempts": 2,
        },
    ),
    ("tool_call", {"name": "memory", "args": {"tp": 2}, "call_id": "call_abc"}),
    ("candidate", {"changes": {"tp": 2}, "key": "k1", "round": 1}),
    ("projection", {"key": "k1", "recipe": {"tp": 2}, "figures": {"tokens_per_s_per_gpu": 3000.0}}),
    ("result", {"best": {"recipe": {"tp": 2}}, "gain_pct": 3.5}),
]


def written(path: Path, events: Writing, clock: Callable[[], float] = lambda: 0.0) -> Path:
    with TraceWriter(path, clock, environ={}) as writer:
        for kind, fields in events:
            writer.append(kind, **fields)
    return path


def edited(index: int, **fields: Any) -> Writing:
    return [(kind, {**old, **fields} if i == index else old) for i, (kind, old) in enumerate(RUN)]


def test_equal_runs_differ_in_nothing(tmp_path: Path) -> None:
    a = written(tmp_path / "a", RUN)
    ticks = iter(range(100))
    other = [
        (
            kind,
            {
                **f,
                **({"run_id": "r2"} if kind == "request" else {}),
                **({"call_id": "zz"} if "call_id" in f else {}),
            },
        )
        for kind, f in RUN
    ]
    other[0][1]["request"] = {"model": "m", "out": "runs/b"}
    call = {"name": "memory", "args": {"tp": 2}, "id": "zz"}
    other[2][1].update(message={"content": "", "tool_calls": [call]}, wall_s=9.0, attempts=1)
    b = written(tmp_path / "b", other, lambda: float(next(ticks)))
    assert diff(a, a) is None
    assert diff(a, b) is None
    assert diff(read_trace(a), b) is None


def test_interruptions_and_retries_are_no_decisions(tmp_path: Path) -> None:
    a = written(tmp_path / "a", RUN)
    noisy = [
        *RUN[:1],
        ("note", {"topic": "retry", "text": "HTTP 500"}),
        RUN[1],
        ("note", {"topic": "resume", "text": "a torn last line"}),
        *RUN[1:],
    ]
    assert diff(a, written(tmp_path / "b", noisy)) is None


def test_a_replay_answers_in_the_models_name(tmp_path: Path) -> None:
    a = written(tmp_path / "a", RUN)
    b = written(tmp_path / "b", edited(0, llm="replay:a", request={"model": "m", "llm": "replay:a"}))
    assert diff(a, b) is None
    c = written(tmp_path / "c", edited(0, llm="openai:other"))
    found = diff(a, c)
    assert found is not None
    assert (found.field, found.then, found.now) == ("llm", "openai:x", "openai:other")


@pytest.mark.parametrize(
    ("index", "fields", "field", "words"),
    [
        (0, {"request": {"model": "n"}}, "request.model", 'event 0 (request): request.model was "m", is "n"'),
        (4, {"changes": {"tp": 4}}, "changes.tp", "changes.tp was 2, is 4"),
        (4, {"changes": {"tp": 2, "pp": 2}}, "changes.pp", "changes.pp was absent, is 2"),
        (
            5,
            {"figures": {"tokens_per_s_per_gpu": 3000.5}},
            "figures.tokens_per_s_per_gpu",
            "was 3000.0, is 3000.5",
        ),
        (
            1,
            {"messages": [{"role": "user", "content": "stop"}]},
            "messages[0].content",
            'event 1 (prompt): messages[0].content was "go", is "stop"',
        ),
        (6, {"gain_pct": None}, "gain_pct", "gain_pct was 3.5, is absent"),
    ],
)
def test_the_first_difference_is_named(
    tmp_path: Path, index: int, fields: dict[str, Any], field: str, words: str
) -> None:
    found = diff(written(tmp_path / "a", RUN), written(tmp_path / "b", edited(index, **fields)))
    assert found is not None
    assert (found.event, found.field) == (index, field)
    assert words in str(found)
    assert found.as_json()["words"] == str(found)


def test_other_events_and_other_lengths(tmp_path: Path) -> None:
    a = written(tmp_path / "a", RUN)
    short = diff(a, written(tmp_path / "b", RUN[:5]))
    assert short is not None
    assert short.words.startswith("event 5: the trace ends here now; then came a projection")
    long = diff(written(tmp_path / "c", RUN[:6]), a)
    assert long is not None
    assert long.words == "event 6: the trace ended here then; now comes a result"
    rejected = [*RUN[:5], ("rejection", {"by": "memory", "message": "too big"}), *RUN[6:]]
    other = diff(a, written(tmp_path / "d", rejected))
    assert other is not None
    assert 'then a projection ("k1"), now a rejection ("too big")' in other.words


def test_a_tool_result_under_another_call_is_a_difference(tmp_path: Path) -> None:
    a = written(tmp_path / "a", RUN)
    found = diff(a, written(tmp_path / "b", edited(3, call_id="call_other")))
    assert found is not None
    assert found.field == "call_id"
