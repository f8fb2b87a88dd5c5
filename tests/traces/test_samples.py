"""Traces that earlier versions wrote stay readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.traces import read_trace, story, verify

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "traces" / "samples").glob("*.jsonl"))


def test_there_are_samples() -> None:
    assert SAMPLES


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_intact_and_tells_its_run(path: Path) -> None:
    assert verify(path).intact
    events = read_trace(path)
    assert (events[0].kind, events[-1].kind) == ("request", "result")
    assert {"plan", "candidate", "projection", "reflection", "budget"} <= {event.kind for event in events}
    told = story(events)
    assert told[0].startswith("Asked: ")
    assert any(line.strip().startswith("best: ") for line in told)
