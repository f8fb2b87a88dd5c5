"""The story of a run, as a person reads it."""

from __future__ import annotations

from pathlib import Path

from shardwise.traces import TraceWriter, read_trace, story
from shardwise.traces.events import KINDS


def test_the_story_tells_what_matters(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t", environ={}) as w:
        w.append(
            "request",
            request={"model": "m"},
            text="tune m on 8 h100",
            llm="openai:x",
            versions={"engine": "1"},
        )
        w.append("plan", baseline={"model": "m", "tp": 1}, candidates=[{"mbs": 2}], text="single axes first")
        base = {"tokens_per_s_per_gpu": 3000.0, "peak_bytes": 200 * 2**30, "verdict": "fits", "mfu": 0.41}
        w.append("projection", key="aaaabbbbcccc", recipe={}, figures=base)
        w.append("prompt", number=0, request_hash="0", messages=[{"role": "user", "content": "?"}])
        answer = {"content": "I check", "tool_calls": [{"name": "memory_check", "args": {}}]}
        w.append("llm_response", number=0, request_hash="0", message=answer, usage={"total_tokens": 18})
        w.append("tool_call", name="memory_check", args={"mbs": 4})
        w.append("tool_result", name="memory_check", content="out of memory", ok=False)
        w.append(
            "candidate",
            changes={"mbs": 4},
            round=1,
            origin="llm",
            rationale="bigger GEMMs",
            expected_gain_pct=5,
        )
        w.append("rejection", by="memory", message="needs 300.0 of 288.0 GiB", round=1, changes={"mbs": 4})
        w.append("candidate", changes={"mbs": 2}, round=1, origin="llm")
        w.append(
            "projection", key="ddddeeee", recipe={}, figures={**base, "tokens_per_s_per_gpu": 3300.0}, round=1
        )
        oom = {"tokens_per_s_per_gpu": 9000.0, "verdict": "out of memory"}
        w.append("projection", key="ffff", recipe={}, figures=oom, round=1)
        w.append("reflection", text="mbs helps while it fits", round=1, best={"tokens_per_s_per_gpu": 3300.0})
        w.append("fallback", provider="openai:x", reason="HTTP 500")
        w.append("budget", used={"oracle_calls": 3}, limits={"oracle_calls": 3}, exhausted="oracle_calls")
        w.append("error", where="llm", message="HTTP 500", number=1)
        w.append("note", text="hm")
        w.append(
            "result",
            best={"recipe": {"model": "m", "mbs": 2}, "projection": {"tokens_per_s_per_gpu": 3300.0}},
            gain_pct=10.0, stopped_because="oracle calls are used up", oracle_calls=3, rejected_by_memory=1,
        )  # fmt: skip
        assert set(w.counts) == set(KINDS)
    told = "\n".join(story(read_trace(tmp_path / "t")))
    for words in (
        "Asked: tune m on 8 h100",
        "baseline: m tp=1",
        "try mbs=2",
        "Round 1",
        "aaaabbbb: 3,000 tokens/s/GPU, MFU 41.0%, 200.0 GiB, fits  <- best so far",
        "LLM answered [18 tokens]: I check; calls memory_check",
        "tool memory_check(mbs=4)",
        "failed: out of memory",
        "llm proposes mbs=4 (expects +5.0%): bigger GEMMs",
        "mbs=4 rejected by memory: needs 300.0 of 288.0 GiB",
        "<- best so far, +10.0%",
        "learned: mbs helps while it fits",
        "openai:x failed: HTTP 500; going on with heuristic",
        "budget: oracle_calls 3 of 3; oracle_calls is used up",
        "best: m mbs=2",
        "+10.0% over the baseline",
        "stopped because oracle calls are used up",
    ):
        assert words in told, words
    assert "9,000 tokens/s/GPU, out of memory  <-" not in told, "what does not fit is never the best"
    assert told.count("Round 1") == 1


def test_every_kind_of_the_oldest_schema_can_be_told() -> None:
    lines = story(read_trace(Path(__file__).parent / "data" / "schema_1.jsonl"))
    assert len(lines) > 15
    assert all(line == line.rstrip() and "\n" not in line for line in lines)


def test_long_text_is_shortened(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t", environ={}) as w:
        w.append("note", text="word " * 500)
    assert len(story(read_trace(tmp_path / "t"))[0]) < 330
